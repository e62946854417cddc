// Against a running boxkeeperd, whose address is in TEMPORAL_ADDRESS. Without it
// these tests fail: they prove nothing on their own.
import { Client, Connection, WorkflowUpdateRPCTimeoutOrCancelledError, type WorkflowClientInterceptor } from '@temporalio/client';
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';
import { BoxkeeperClient, type Listed } from '../../src/boxkeeper.js';
import { updates, workflowIdPrefix } from '../../src/contract.js';
import { live } from '../../src/main.js';
import { BoxkeeperError, refusalIn } from '../../src/outcome.js';

const address = process.env['TEMPORAL_ADDRESS'];
let connection: Connection;
let boxes: BoxkeeperClient;
let raw: Client;

before(async () => {
  assert.ok(address, 'TEMPORAL_ADDRESS must name the engine of a boxkeeperd');
  connection = await Connection.connect({ address });
  raw = new Client({ connection });
  boxes = new BoxkeeperClient(raw);
});

const made: string[] = [];

// Boxes outlive the engine, so none is left behind.
after(async () => {
  const left = await Promise.all(made.map(end));
  await connection?.close();
  assert.deepEqual(left.filter((state) => state !== 'box-archived'), []);
});

async function end(workspace: string): Promise<string> {
  const { state } = await boxes.status(workspace);
  if (state === 'box-archived') return state;
  await boxes.freeze(workspace, { on: false });
  await boxes.cancelDelete(workspace);
  const { confirmation_token: token } = await boxes.requestDelete(workspace);
  await boxes.confirmDelete(workspace, { token, without_history: true });
  return (await boxes.until(workspace, (s) => s.state === 'box-archived')).state;
}

const fresh = (what: string) => `${what}-${randomUUID().slice(0, 8)}`;
const owner = 'canvas-test';

async function running(what: string, its: BoxkeeperClient = boxes): Promise<string> {
  const workspace = fresh(what);
  made.push(workspace);
  await its.start({ workspace, owner, provider: 'local' });
  assert.equal((await its.started(workspace)).state, 'running');
  return workspace;
}

function refusedAs(errorClass: string, says: RegExp) {
  return (err: unknown) => {
    assert.ok(err instanceof BoxkeeperError, String(err));
    assert.equal(err.errorClass, errorClass, err.message);
    assert.match(err.message, says);
    return true;
  };
}

async function listed(wanted: (found: Listed[]) => boolean, list: () => AsyncGenerator<Listed>): Promise<Listed[]> {
  for (let tries = 0; ; tries++) { // the index is a moment behind
    const found: Listed[] = [];
    for await (const one of list()) found.push(one);
    if (wanted(found) || tries === 50) return found;
    await new Promise((wake) => setTimeout(wake, 200));
  }
}

test('the example lives a whole life', async () => {
  const lines: string[] = [];
  const workspace = fresh('life');
  made.push(workspace);
  const life = await live(boxes, workspace, (line) => lines.push(line));
  assert.equal(life.state, 'box-archived');
  assert.deepEqual(life.refused, ['refused', 'AlreadyExists']);
  assert.equal(life.covered, true, 'what was deleted was exported');
  for (const state of ['creating', 'running', 'suspended', 'undo-window', 'deleting', 'box-archived']) {
    assert.ok(life.transitions.includes(state), `${state} is missing in ${life.transitions.join(' ')}`);
  }
  assert.ok(lines.some((line) => line.startsWith('taken back: ')));
  const status = await boxes.status(workspace);
  assert.equal(status.last_confirmation?.accepted, true);
  await assert.rejects(boxes.connect(workspace, { holder_id: 'tab' }), refusedAs('NotFound', /ended/));
});

test('what is wrong is refused with its class and the field at fault', async () => {
  const workspace = await running('wrong');
  const sent = (name: string, request: object) =>
    raw.workflow.getHandle(workflowIdPrefix + workspace).executeUpdate(name, { args: [{ request_id: randomUUID(), ...request }] });
  const asIs = (call: Promise<unknown>) =>
    call.catch((err: unknown) => {
      throw refusalIn(err);
    });
  await assert.rejects(boxes.connect(workspace, { holder_id: 'tab', lease: '2 minutes' }), refusedAs('Invalid', /^lease: "2 minutes" is not a duration/));
  await assert.rejects(boxes.connect(workspace, { holder_id: 'tab', lease: '13h' }), refusedAs('Invalid', /^lease: 13h is too long/));
  await assert.rejects(boxes.setPolicy(workspace, { policy: { idle: '-1h' } }), refusedAs('Invalid', /^policy\.idle: "-1h" is not a duration/));
  await assert.rejects(boxes.connect(workspace, { holder_id: '' }), refusedAs('Invalid', /^holder_id: /));
  await assert.rejects(asIs(sent(updates.connect, { holder_id: 'tab', lease: 120 })), refusedAs('Invalid', /^lease: 120 is not a duration/));
  await assert.rejects(asIs(sent(updates.keep, { on: 'yes' })), refusedAs('Invalid', /^on: string was sent where true or false belongs/));
  await assert.rejects(boxes.renew(workspace, { holder_id: 'nobody' }), refusedAs('NotFound', /connect again/));
  await boxes.freeze(workspace, { on: true });
  await assert.rejects(boxes.suspend(workspace), refusedAs('FailedPrecondition', /frozen/));
  assert.deepEqual((await boxes.status(workspace)).holders, undefined, 'a refusal leaves no trace');

  await sent(updates.connect, { holder_id: 'tab', a_field_of_tomorrow: { deep: [1] } });
  assert.deepEqual((await boxes.status(workspace)).holders?.map((h) => h.id), ['tab'], 'an unknown field is ignored');
});

test('a spec that is wrong fails its start, with the field named', async () => {
  const worded = fresh('worded');
  await boxes.start({ workspace: worded, provider: 'local', policy: { idle: 'half an hour' } });
  await assert.rejects(boxes.started(worded), refusedAs('Invalid', /policy\.idle: "half an hour" is not a duration/));
  const secret = fresh('secret');
  await boxes.start({ workspace: secret, provider: 'local', env: { LLM_API_KEY: 'in the clear' } });
  await assert.rejects(boxes.started(secret), refusedAs('Invalid', /^env\.LLM_API_KEY: looks like a secret/));
});

test('a lost answer is asked again under the same request id, and nothing is done twice', async () => {
  const asked: string[] = [];
  const loseFirst: WorkflowClientInterceptor = {
    async startUpdate(input, next) {
      asked.push(`${input.updateName} ${input.options.updateId}`);
      const answer = await next(input);
      if (asked.length === 1) throw new WorkflowUpdateRPCTimeoutOrCancelledError('the answer was lost on its way');
      return answer;
    },
  };
  const unlucky = new BoxkeeperClient(new Client({ connection, interceptors: { workflow: [loseFirst] } }));
  const workspace = await running('lost', unlucky);
  const answer = await unlucky.connect(workspace, { holder_id: 'tab', request_id: 'c-1', by: owner });
  assert.deepEqual(asked, ['connect c-1', 'connect c-1']);
  const { holders } = await boxes.status(workspace);
  assert.deepEqual(holders?.map((h) => [h.id, h.until]), [['tab', answer.lease_until]], 'one hold, taken once');
});

test('a start whose answer was lost is known to be ours', async () => {
  let starts = 0;
  const loseFirst: WorkflowClientInterceptor = {
    async startWithDetails(input, next) {
      starts++;
      const answer = await next(input);
      if (starts === 1) throw Object.assign(new Error('lost'), { code: 4, details: 'lost', metadata: {} });
      return answer;
    },
  };
  const unlucky = new BoxkeeperClient(new Client({ connection, interceptors: { workflow: [loseFirst] } }));
  const workspace = fresh('begun');
  made.push(workspace);
  await unlucky.start({ workspace, owner, provider: 'local' });
  assert.equal(starts, 2);
  await assert.rejects(unlucky.start({ workspace, owner: 'another', provider: 'local' }), refusedAs('AlreadyExists', /ask its status/));
});

test('a hold is renewed while work goes on, and gone after it', async () => {
  const workspace = await running('held');
  const seen = await boxes.holdWhile(workspace, { lease: '2s', origin: 'test' }, async (lost) => {
    const first = (await boxes.status(workspace)).holders?.[0];
    await new Promise((wake) => setTimeout(wake, 3_500)); // longer than the lease
    assert.equal(lost.aborted, false);
    return [first, (await boxes.status(workspace)).holders?.[0]];
  });
  assert.equal(seen[0]?.id, seen[1]?.id);
  assert.ok((seen[1]?.until ?? '') > (seen[0]?.until ?? ''), 'it was renewed');
  assert.equal((await boxes.status(workspace)).holders, undefined);

  await boxes.holdWhile(workspace, { lease: '2s' }, async (lost) => {
    const [hold] = (await boxes.status(workspace)).holders ?? [];
    await boxes.release(workspace, { holder_id: hold?.id ?? '' });
    await new Promise((heard) => lost.addEventListener('abort', heard));
    assert.equal(lost.aborted, true, 'work is told when its hold is gone');
  });
});

test('workspaces are found by state, owner and what is due', async () => {
  const workspace = await running('found');
  const mine = fresh('owner');
  await boxes.suspend(workspace);
  await boxes.until(workspace, (s) => s.state === 'suspended');
  const isThere = (found: Listed[]) => found.some((one) => one.workspace === workspace);
  const inAMonth = new Date(Date.now() + 31 * 86_400_000);

  const suspended = await listed(isThere, () => boxes.list({ state: 'suspended', owner, provider: 'local' }));
  const entry = suspended.find((one) => one.workspace === workspace);
  assert.ok(entry?.nextActionAt instanceof Date && entry.suspendedSince instanceof Date);
  assert.deepEqual([entry.state, entry.owner, entry.provider, entry.epoch], ['suspended', owner, 'local', 1]);
  assert.ok(isThere(await listed(isThere, () => boxes.expiringBefore(inAMonth, { owner }))));
  assert.ok(!isThere(await listed(() => true, () => boxes.expiringBefore(new Date(), { owner }))), 'nothing is due today');
  assert.deepEqual(await listed(() => true, () => boxes.list({ owner: mine })), []);
});

test('a hold keeps an agreed deletion waiting, and what is for a lost box is refused for one that is there', async () => {
  const workspace = await running('stopped');
  await assert.rejects(boxes.restore(workspace), refusedAs('FailedPrecondition', /lost/));
  await assert.rejects(boxes.replace(workspace), refusedAs('FailedPrecondition', /lost/));
  await assert.rejects(boxes.adopt(workspace, { box_id: 'another' }), refusedAs('FailedPrecondition', /has a box/));
  await assert.rejects(boxes.abandon(workspace, { reason: 'a test' }), refusedAs('FailedPrecondition', /within reach/));
  await boxes.hold(workspace, { on: true, by: owner, reason: 'a test' });
  assert.deepEqual((await boxes.until(workspace, (s) => s.hold !== undefined)).hold?.by, owner);
  const loss = await boxes.requestDelete(workspace);
  await boxes.confirmDelete(workspace, { token: loss.confirmation_token, by: owner });
  await boxes.until(workspace, (s) => s.state === 'exporting' && s.next_action === 'delete');
  const why = await boxes.why(workspace);
  assert.equal(why.next_reason.code, 'on-hold');
  assert.equal(why.next_action_at, undefined);
  await boxes.hold(workspace, { on: false, by: owner });
  await boxes.until(workspace, (s) => s.state === 'box-archived');
});

test('a lost or late deletion is told from one that was agreed', async () => {
  const workspace = await running('asked');
  const nothing = await boxes.cancelDelete(workspace);
  assert.deepEqual([nothing?.accepted, nothing?.reason.code], [false, 'refused'], 'there was nothing to take back');
  const loss = await boxes.requestDelete(workspace, { undo: '1h' });
  const wrong = await boxes.confirmDelete(workspace, { token: '00000' });
  assert.deepEqual([wrong?.accepted, wrong?.reason.code], [false, 'refused']);
  const accepted = await boxes.confirmDelete(workspace, { token: loss.confirmation_token, by: owner });
  assert.deepEqual([accepted?.accepted, accepted?.token], [true, loss.confirmation_token]);
  const repeated = await boxes.confirmDelete(workspace, { token: loss.confirmation_token, by: owner });
  assert.deepEqual(repeated, accepted, 'repeating a confirmation is safe');
  const back = await boxes.cancelDelete(workspace, { by: owner });
  assert.deepEqual([back?.accepted, back?.cancel, back?.by, back?.reason.code], [true, true, owner, 'cancelled']);
  assert.equal((await boxes.status(workspace)).deletion, undefined);
});
