import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ActivityReporter } from '../src/activity.js';
import type { ActivitySignal } from '../src/contract.js';

test('a day of key presses is one signal in thirty seconds, and loses nothing', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout', 'Date'] });
  const sent: ActivitySignal[] = [];
  const reporter = new ActivityReporter(async (seen) => void sent.push(seen), (err) => assert.fail(String(err)));
  for (let i = 0; i < 1000; i++) {
    reporter.report(i % 100 === 0 ? { begun: [`op-${i}`], ended: [`op-${i - 100}`] } : {});
    t.mock.timers.tick(100);
  }
  await reporter.close();
  assert.equal(sent.length, 5, 'the first at once, three in a hundred seconds, and what was left');
  assert.deepEqual(sent.flatMap((s) => s.begun ?? []).length, 10);
  assert.equal(sent[0]?.idle_for, undefined);
  await reporter.close();
  assert.equal(sent.length, 5, 'nothing waits, nothing is sent');
});

test('operations of a signal that failed are told again', async () => {
  const sent: ActivitySignal[] = [];
  let down = true;
  let failures = 0;
  const reporter = new ActivityReporter(
    async (seen) => {
      if (down) throw new Error('the engine is away');
      sent.push(seen);
    },
    () => void failures++,
    'canvas',
    0,
  );
  reporter.report({ begun: ['op-1'] });
  await reporter.close();
  assert.equal(failures, 1);
  down = false;
  reporter.report({ ended: ['op-1'] });
  await reporter.close();
  assert.deepEqual(sent, [{ origin: 'canvas', begun: ['op-1'], ended: ['op-1'] }]);
});
