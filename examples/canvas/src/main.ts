// Walks one workspace through a whole life, the way the Canvas backend would.
//
//   npm start                          a boxkeeperd on this machine
//   TEMPORAL_ADDRESS=host:7233 npm start
//
// It prints what happens and, as its last line, what it came to as JSON.
import { randomUUID } from 'node:crypto';
import { pathToFileURL } from 'node:url';
import { BoxkeeperClient, BoxkeeperError } from './boxkeeper.js';

export interface Life {
  workspace: string;
  state: string;
  conversations: number;
  covered: boolean;
  refused: string[];
  transitions: string[];
}

export async function live(boxes: BoxkeeperClient, workspace: string, say: (line: string) => void = () => {}): Promise<Life> {
  const owner = 'canvas-example';
  const refused: string[] = [];

  await boxes.start({ workspace, owner, provider: 'local', policy: { idle: '30m', paused_ttl: '14d' } });
  say(`started ${workspace}`);

  await boxes.holdWhile(workspace, { by: owner, origin: 'example' }, async () => {
    const why = await boxes.why(workspace);
    say(`it is ${why.state}: ${why.next_reason.text}; it can be stopped by ${why.who_can_stop_it ?? 'nobody'}`);
    const plan = await boxes.reclaim(workspace, { by: owner, dry_run: true });
    say(`${plan.items?.length ?? 0} things could be reclaimed, ${plan.planned_bytes} bytes`);
  });

  await boxes.suspend(workspace, { by: owner });
  const suspended = await boxes.until(workspace, (s) => s.state === 'suspended');
  say(`suspended; next: ${suspended.next_action ?? 'nothing'} at ${suspended.next_action_at ?? 'no time'}`);

  // A person is shown what would be lost, and takes their time.
  const shown = await boxes.requestDelete(workspace, { by: owner, undo: '1h' });
  say(`a deletion would lose: ${shown.not_exported.join('; ')}`);
  await boxes.confirmDelete(workspace, { token: shown.confirmation_token, by: owner });
  const back = await boxes.cancelDelete(workspace, { by: owner });
  say(`taken back: ${back?.reason.text ?? 'there was nothing to take back'}`);

  // A token that was taken back confirms nothing any more.
  const late = await boxes.confirmDelete(workspace, { token: shown.confirmation_token, by: owner });
  if (late?.accepted === false) refused.push(late.reason.code);

  const loss = await boxes.requestDelete(workspace, { by: owner });
  const accepted = await boxes.confirmDelete(workspace, { token: loss.confirmation_token, by: owner });
  if (accepted?.accepted !== true) throw new Error(`the confirmation was refused: ${accepted?.reason.text ?? 'no answer'}`);
  const end = await boxes.until(workspace, (s) => s.state === 'box-archived' || s.state === 'delete-blocked');
  say(`${end.state}: ${end.reason.text}`);

  // The id is closed for ever.
  try {
    await boxes.start({ workspace, owner, provider: 'local' });
  } catch (err) {
    if (!(err instanceof BoxkeeperError) || err.errorClass !== 'AlreadyExists') throw err;
    refused.push(err.errorClass);
  }
  const why = await boxes.why(workspace);
  return {
    workspace,
    state: end.state,
    conversations: loss.conversations,
    covered: loss.covered,
    refused,
    transitions: why.transitions.map((t) => t.to),
  };
}

async function main(): Promise<void> {
  const boxes = await BoxkeeperClient.connectTo({ address: process.env['TEMPORAL_ADDRESS'] ?? '127.0.0.1:7233' }, process.env['TEMPORAL_NAMESPACE']);
  try {
    console.log(JSON.stringify(await live(boxes, `canvas-${randomUUID().slice(0, 8)}`, console.log)));
  } finally {
    await boxes.close();
  }
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) await main();
