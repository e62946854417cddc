import type { ActivitySignal } from './contract.js';
const second = 1_000;

/**
 * Tells a box of its use without a signal for every key that is pressed: the
 * first at once, then at most one in `every`, which holds what came meanwhile.
 * Nothing is lost: operations are collected, and an age says when the last use
 * was. Make one per box, and close it when its user leaves.
 *
 * `every` must be well below the box's idle time; the contract asks for 30 s.
 */
export class ActivityReporter {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private used: number | undefined; // when, since the last signal
  private begun: string[] = [];
  private ended: string[] = [];
  private sent = -Infinity;
  private sending: Promise<void> = Promise.resolve();

  constructor(
    private readonly send: (seen: ActivitySignal) => Promise<void>,
    private readonly failed: (err: unknown) => void,
    private readonly origin = 'canvas',
    private readonly every = 30 * second,
  ) {}

  /** Use was seen now; with the ids of operations that began or ended. */
  report(operations: Pick<ActivitySignal, 'begun' | 'ended'> = {}): void {
    this.used = Date.now();
    this.begun.push(...(operations.begun ?? []));
    this.ended.push(...(operations.ended ?? []));
    this.timer ??= setTimeout(() => this.flush(), Math.max(0, this.sent + this.every - this.used));
  }

  /** Sends what waits, and waits until it is sent. */
  async close(): Promise<void> {
    this.flush();
    await this.sending;
  }

  private flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (this.used === undefined) return;
    const ago = Math.floor((Date.now() - this.used) / second);
    const seen: ActivitySignal = { origin: this.origin };
    if (ago > 0) seen.idle_for = `${ago}s`;
    if (this.begun.length > 0) seen.begun = this.begun;
    if (this.ended.length > 0) seen.ended = this.ended;
    [this.used, this.begun, this.ended, this.sent] = [undefined, [], [], Date.now()];
    this.sending = this.sending.then(() => this.send(seen)).catch((err: unknown) => {
      // The operations are told again: a hold that never ends keeps a box awake.
      this.begun = [...(seen.begun ?? []), ...this.begun];
      this.ended = [...(seen.ended ?? []), ...this.ended];
      this.failed(err);
    });
  }
}
