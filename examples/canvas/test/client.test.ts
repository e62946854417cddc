import { ServiceError, WorkflowNotFoundError, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, ApplicationFailure } from '@temporalio/client';
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BoxkeeperClient, listQuery } from '../src/boxkeeper.js';
import { queries, signals, updates } from '../src/contract.js';
import { milliseconds } from '../src/duration.js';
import { BoxkeeperError, OutcomeUnknownError, refusalIn, untilKnown } from '../src/outcome.js';

const lost = () => new WorkflowUpdateRPCTimeoutOrCancelledError('no answer');
const grpc = (code: number) => new ServiceError('failed', { cause: Object.assign(new Error('from the server'), { code, details: 'from the server', metadata: {} }) });

test('there is a method for each update, signal and query that callers send', () => {
  const methods = Object.getOwnPropertyNames(BoxkeeperClient.prototype);
  const names: string[] = [...Object.keys(updates), ...Object.keys(signals), ...Object.keys(queries)];
  assert.deepEqual(names.filter((name) => name !== 'observed' && !methods.includes(name)), [], 'workers send observed');
});

test('lengths are read, and nothing else is', () => {
  for (const [text, want] of [['90s', 90_000], ['1d12h', 129_600_000], ['1m30s', 90_000], ['250ms', 250], ['2m', 120_000]] as const) {
    assert.equal(milliseconds(text), want, text);
  }
  for (const text of ['', 'never', '15', '2 m', '-1h', '1.5h', '1w']) {
    assert.throws(() => milliseconds(text), (err: BoxkeeperError) => err.errorClass === 'Invalid', text);
  }
});

/** A client whose box never comes, and whose hold is gone after some renewals. */
class NeverThere extends BoxkeeperClient {
  renewals = 0;

  constructor(private readonly lasts: number) {
    super(undefined as never);
  }

  override connect = () => Promise.resolve({} as never);
  override release = () => Promise.resolve({} as never);
  override status = () => Promise.resolve({ state: 'resuming', reason: { code: 'requested', text: 'someone connected' } } as never);

  override renew = async () => {
    if (++this.renewals > this.lasts) throw new BoxkeeperError('NotFound', 'there is no hold any more; connect again');
    return {} as never;
  };
}

test('a hold is renewed while its box is on its way, and work that lost it does not begin', async () => {
  const boxes = new NeverThere(2);
  let worked = false;
  await assert.rejects(
    boxes.holdWhile('x', { lease: '1s' }, async () => {
      worked = true;
    }, 20_000),
    (err: BoxkeeperError) => err.errorClass === 'NotFound',
  );
  assert.deepEqual([boxes.renewals, worked], [3, false]);
});

test('a list query holds what was asked, and refuses what could change its meaning', () => {
  assert.equal(listQuery({}), "WorkflowType = 'Box' AND ExecutionStatus = 'Running'");
  assert.equal(
    listQuery({ state: 'suspended', owner: 'user-17', dueBefore: new Date(0) }),
    "WorkflowType = 'Box' AND ExecutionStatus = 'Running' AND BoxState = 'suspended' AND BoxOwner = 'user-17' AND BoxNextActionAt < '1970-01-01T00:00:00.000Z'",
  );
  assert.throws(() => listQuery({ owner: "x' OR BoxOwner != 'x" }), (err: BoxkeeperError) => err.errorClass === 'Invalid' && err.message.startsWith('owner: '));
});

test('an error says its class, and an unknown outcome is none', () => {
  const refused = new WorkflowUpdateFailedError('failed', ApplicationFailure.nonRetryable('lease: 5 is not a duration', 'Invalid'));
  assert.deepEqual([refusalIn(refused)?.errorClass, refusalIn(refused)?.message], ['Invalid', 'lease: 5 is not a duration']);
  const older = new WorkflowUpdateFailedError('failed', ApplicationFailure.nonRetryable('unknown update', 'wrapError'));
  assert.equal(refusalIn(older)?.errorClass, 'Unknown');
  assert.equal(refusalIn(new WorkflowNotFoundError('gone', 'box/x', undefined))?.errorClass, 'NotFound');
  assert.equal(refusalIn(grpc(7))?.errorClass, 'Unauthorized');
  assert.equal(refusalIn(new TypeError('a fault of ours'))?.errorClass, 'Internal');
  for (const unclear of [lost(), grpc(4), grpc(14), grpc(13), grpc(2)]) assert.equal(refusalIn(unclear), undefined);
});

test('an unknown outcome is asked again until it is known', async () => {
  const again: boolean[] = [];
  const answer = await untilKnown({ what: 'connect x', patience: 10_000, tryFor: 1_000, pause: 1 }, async (_, repeated) => {
    again.push(repeated);
    if (again.length < 3) throw lost();
    return 'known';
  });
  assert.deepEqual([answer, again], ['known', [false, true, true]]);
});

test('a refusal is not asked again', async () => {
  let tries = 0;
  await assert.rejects(
    untilKnown({ what: 'renew x', patience: 10_000, tryFor: 1_000, pause: 1 }, async () => {
      tries++;
      throw new WorkflowUpdateFailedError('failed', ApplicationFailure.nonRetryable('there is no hold', 'NotFound'));
    }),
    (err: BoxkeeperError) => err.errorClass === 'NotFound',
  );
  assert.equal(tries, 1);
});

test('an outcome that stays unknown names the request id to go on with', async () => {
  await assert.rejects(
    untilKnown({ what: 'connect x', requestId: 'c-1', patience: 0, tryFor: 1_000, pause: 1 }, async () => {
      throw lost();
    }),
    (err: OutcomeUnknownError) => err instanceof OutcomeUnknownError && err.requestId === 'c-1' && err.message.includes('request id c-1'),
  );
});
