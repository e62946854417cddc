// The Canvas backend's side of the contract: docs/contract.md. It holds
// workspace ids and nothing else; a box, its address and its keys may change at
// each resume.
import { Client, Connection, WorkflowExecutionAlreadyStartedError, type ConnectionOptions } from '@temporalio/client';
import { defineSearchAttributeKey, type SearchAttributePair } from '@temporalio/common';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  queries,
  searchAttributes,
  signals,
  taskQueue,
  updates,
  vocabulary,
  wireVersion,
  workflowIdPrefix,
  workflowType,
  type Confirmation,
  type Queries,
  type Signals,
  type Spec,
  type State,
  type Status,
  type Updates,
} from './contract.js';
import { milliseconds } from './duration.js';
import { BoxkeeperError, untilKnown } from './outcome.js';

export { BoxkeeperError, OutcomeUnknownError } from './outcome.js';

/** A request without its id: leave the id out to get a new one, give it to repeat a request. */
export type Ask<N extends keyof Updates> = Omit<Updates[N]['request'], 'request_id'> & { request_id?: string };
export type Answer<N extends keyof Updates> = Updates[N]['answer'];
export type Carried<N extends keyof Signals> = Omit<Signals[N], 'request_id'>;

export interface Listed {
  workspace: string;
  /** `draining` is listed as `suspending`. */
  state: State | undefined;
  provider: string | undefined;
  owner: string | undefined;
  epoch: number | undefined;
  /** Not set while it runs, since each use moves it: `why` tells it. */
  nextActionAt: Date | undefined;
  suspendedSince: Date | undefined;
}

export interface Filter {
  state?: State;
  owner?: string;
  provider?: string;
  /** Only those whose armed deadline is due before. A running box has none in the index. */
  dueBefore?: Date;
  /** Also those that are box-archived. */
  ended?: boolean;
}

const second = 1_000;
const minute = 60 * second;

// These answer when the work is done; the others answer at once.
const waits: Partial<Record<keyof Updates, number>> = {
  [updates.reclaim]: 15 * minute,
  [updates.export]: 60 * minute,
  [updates.requestDelete]: 5 * minute, // it looks into a running box
  [updates.adopt]: 5 * minute, // the provider is asked
  [updates.abandon]: 5 * minute, // it is recorded for ever
};

const key = {
  provider: defineSearchAttributeKey(searchAttributes.boxProvider.name, searchAttributes.boxProvider.type),
  state: defineSearchAttributeKey(searchAttributes.boxState.name, searchAttributes.boxState.type),
  owner: defineSearchAttributeKey(searchAttributes.boxOwner.name, searchAttributes.boxOwner.type),
  epoch: defineSearchAttributeKey(searchAttributes.boxEpoch.name, searchAttributes.boxEpoch.type),
  nextActionAt: defineSearchAttributeKey(searchAttributes.boxNextActionAt.name, searchAttributes.boxNextActionAt.type),
  suspendedSince: defineSearchAttributeKey(searchAttributes.boxSuspendedSince.name, searchAttributes.boxSuspendedSince.type),
};

export class BoxkeeperClient {
  constructor(
    private readonly client: Client,
    /** How long a request that answers at once is repeated for, in milliseconds. */
    private readonly patience = 30 * second,
  ) {}

  static async connectTo(connection: ConnectionOptions, namespace = 'default'): Promise<BoxkeeperClient> {
    return new BoxkeeperClient(new Client({ connection: await Connection.connect(connection), namespace }));
  }

  async close(): Promise<void> {
    await this.client.connection.close();
  }

  /**
   * Starts a workspace. It answers when Temporal has stored the start, before
   * there is a box. AlreadyExists: the id is in use or was used; ask its status.
   * A spec that is wrong is found by the workflow, not here: see `started`.
   */
  async start(spec: Omit<Spec, 'version'>): Promise<void> {
    const attributes: SearchAttributePair[] = [
      { key: key.provider, value: spec.provider },
      { key: key.state, value: 'creating' satisfies State },
      { key: key.epoch, value: 1 },
    ];
    if (spec.owner !== undefined) attributes.push({ key: key.owner, value: spec.owner });
    await untilKnown({ what: `start ${spec.workspace}`, patience: this.patience, tryFor: 10 * second }, async (deadline, again) => {
      try {
        await this.client.withDeadline(deadline, () =>
          this.client.workflow.start(workflowType, {
            workflowId: workflowIdPrefix + spec.workspace,
            taskQueue,
            workflowIdReusePolicy: 'REJECT_DUPLICATE',
            workflowIdConflictPolicy: 'FAIL',
            typedSearchAttributes: attributes,
            args: [{ spec: { version: wireVersion, ...spec } }],
          }),
        );
      } catch (err) {
        // A try before this one may have been the start: whose it is decides.
        if (!again || !(err instanceof WorkflowExecutionAlreadyStartedError) || !(await this.isOurs(spec))) throw err;
      }
    });
  }

  /**
   * Waits until the workspace has left `creating` and answers its status. A spec
   * that boxkeeper refused is thrown as Invalid with the field named.
   */
  async started(workspace: string, patience = 5 * minute): Promise<Status> {
    const handle = this.client.workflow.getHandle(workflowIdPrefix + workspace);
    return this.until(workspace, (s) => s.state !== 'creating' && s.state !== 'starting', patience).catch(async (err: unknown) => {
      const { status } = await handle.describe();
      if (status.name !== 'FAILED') throw err;
      return untilKnown({ what: `start ${workspace}`, patience, tryFor: 10 * second }, async () => {
        await handle.result(); // throws what it failed with
        throw err;
      });
    });
  }

  /** Wakes the box if needed and takes a hold. Answers at once; `until` it is running. */
  connect(workspace: string, ask: Ask<'connect'>): Promise<Answer<'connect'>> {
    return this.update(workspace, updates.connect, ask);
  }

  /**
   * Does something while the box is held awake: takes a hold, waits until the box
   * runs, renews the hold at half of its lease, also while it waits, and releases
   * it. The signal that `work` gets is aborted when the hold is gone all the same,
   * at the hard maximum say: stop then, and connect again. When it is gone before
   * the box runs, NotFound is thrown and `work` is not called.
   */
  async holdWhile<T>(
    workspace: string,
    ask: Omit<Ask<'connect'>, 'holder_id' | 'request_id'>,
    work: (lost: AbortSignal) => Promise<T>,
    patience = 5 * minute,
  ): Promise<T> {
    const hold = { holder_id: `canvas-${randomUUID()}`, lease: ask.lease ?? '2m' }; // never used again: a late release ends no other hold
    const half = milliseconds(hold.lease) / 2;
    if (half < second / 2) throw new BoxkeeperError('Invalid', `lease: ${hold.lease} is too short to be renewed in time; use 1s or more`);
    await this.connect(workspace, { ...ask, ...hold });
    const ended = new AbortController();
    const lost = new AbortController();
    const renewing = this.renewUntil(ended.signal, half, workspace, hold, lost);
    try {
      await this.until(workspace, (s) => s.state === 'running' || lost.signal.aborted, patience);
      lost.signal.throwIfAborted();
      return await work(lost.signal);
    } finally {
      ended.abort();
      await renewing;
      await this.release(workspace, { holder_id: hold.holder_id }).catch(() => undefined); // or its lease ends by itself
    }
  }

  /** Extends a hold. NotFound: the hold is gone, connect again under a new holder_id. */
  renew(workspace: string, ask: Ask<'renew'>): Promise<Answer<'renew'>> {
    return this.update(workspace, updates.renew, ask);
  }

  release(workspace: string, ask: Ask<'release'>): Promise<Answer<'release'>> {
    return this.update(workspace, updates.release, ask);
  }

  suspend(workspace: string, ask: Ask<'suspend'> = {}): Promise<Answer<'suspend'>> {
    return this.update(workspace, updates.suspend, ask);
  }

  resume(workspace: string, ask: Ask<'resume'> = {}): Promise<Answer<'resume'>> {
    return this.update(workspace, updates.resume, ask);
  }

  /** Frees disk in a running box, or plans it. Waits for the pass. */
  reclaim(workspace: string, ask: Ask<'reclaim'> = {}): Promise<Answer<'reclaim'>> {
    return this.update(workspace, updates.reclaim, ask);
  }

  /** Takes or refreshes the export. Waits until it was read back. */
  export(workspace: string, ask: Ask<'export'> = {}): Promise<Answer<'export'>> {
    return this.update(workspace, updates.export, ask);
  }

  setPolicy(workspace: string, ask: Ask<'set-policy'>): Promise<Answer<'set-policy'>> {
    return this.update(workspace, updates.setPolicy, ask);
  }

  keep(workspace: string, ask: Ask<'keep'>): Promise<Answer<'keep'>> {
    return this.update(workspace, updates.keep, ask);
  }

  freeze(workspace: string, ask: Ask<'freeze'>): Promise<Answer<'freeze'>> {
    return this.update(workspace, updates.freeze, ask);
  }

  /** Takes over a box that is there, by its provider's id. Waits until the provider has answered. */
  adopt(workspace: string, ask: Ask<'adopt'>): Promise<Answer<'adopt'>> {
    return this.update(workspace, updates.adopt, ask);
  }

  /** Makes a new box in place of a lost one, with the exported history. Answers at once; `until` it is running. */
  restore(workspace: string, ask: Ask<'restore'> = {}): Promise<Answer<'restore'>> {
    return this.update(workspace, updates.restore, ask);
  }

  /** Makes a new, empty box in place of a lost one. Answers at once; `until` it is running. */
  replace(workspace: string, ask: Ask<'replace'> = {}): Promise<Answer<'replace'>> {
    return this.update(workspace, updates.replace, ask);
  }

  /** Ends the watch over a box that cannot be had any more, for ever: it may go on costing money. */
  abandon(workspace: string, ask: Ask<'abandon'>): Promise<Answer<'abandon'>> {
    return this.update(workspace, updates.abandon, ask);
  }

  /** Stops every destructive step of the box, or lets them go on. `status.hold` says that it is on. */
  hold(workspace: string, hold: Carried<'hold'>): Promise<void> {
    return this.signal(workspace, signals.hold, hold);
  }

  /** Says what a deletion would lose. Deletes nothing: show it to a person, then `confirmDelete` its token. */
  requestDelete(workspace: string, ask: Ask<'request-delete'> = {}): Promise<Answer<'request-delete'>> {
    return this.update(workspace, updates.requestDelete, ask);
  }

  /**
   * Sends the confirmation, which Temporal keeps with no worker up, and waits for
   * what became of it: a signal has no answer of its own.
   */
  async confirmDelete(workspace: string, confirm: Carried<'confirm-delete'>): Promise<Confirmation | undefined> {
    const before = (await this.status(workspace)).last_confirmation?.at;
    await this.signal(workspace, signals.confirmDelete, confirm);
    // A repeated confirmation changes nothing, unless it accepts a loss that a
    // blocked deletion waits for.
    const repeated = (s: Status) =>
      s.last_confirmation?.accepted === true && s.last_confirmation.token === confirm.token && s.state !== 'delete-blocked';
    return (await this.until(workspace, (s) => s.last_confirmation?.at !== before || repeated(s), this.patience)).last_confirmation;
  }

  /**
   * Takes a request or a confirmation back, and waits for what became of it:
   * accepted when the deletion is off, refused when there was none or it was too
   * late. May be repeated.
   */
  async cancelDelete(workspace: string, cancel: Carried<'cancel-delete'> = {}): Promise<Confirmation | undefined> {
    const before = (await this.status(workspace)).last_confirmation?.at;
    await this.signal(workspace, signals.cancelDelete, cancel);
    return (await this.until(workspace, (s) => s.last_confirmation?.cancel === true && (s.last_confirmation.at !== before || s.deletion === undefined), this.patience)).last_confirmation;
  }

  /** Reports use outside of a hold. Send it when use starts and then at most every 30 s. */
  activity(workspace: string, seen: Carried<'activity'> = {}): Promise<void> {
    return this.signal(workspace, signals.activity, seen);
  }

  status(workspace: string): Promise<Status> {
    return this.query(workspace, queries.status);
  }

  why(workspace: string): Promise<Queries['why']> {
    return this.query(workspace, queries.why);
  }

  /** Asks the status until it is as wanted. Looking is no use of the box. */
  async until(workspace: string, wanted: (s: Status) => boolean, patience = 5 * minute): Promise<Status> {
    for (const giveUp = Date.now() + patience; ; await sleep(second)) {
      const status = await this.status(workspace);
      if (wanted(status)) return status;
      if (Date.now() >= giveUp) {
        throw new BoxkeeperError('DeadlineExceeded', `${workspace} is ${status.state}: ${status.failure?.message ?? status.reason.text}`);
      }
    }
  }

  /**
   * Lists suspended workspaces that something happens to before a time: people are
   * told, or the expiry, which then comes next. Those that have expired wait in
   * `awaiting-confirmation`, which is a filter of its own.
   */
  expiringBefore(time: Date, filter: Pick<Filter, 'owner' | 'provider'> = {}): AsyncGenerator<Listed> {
    return this.list({ ...filter, state: 'suspended', dueBefore: time });
  }

  /** Lists workspaces from Temporal's index, which is a moment behind. */
  async *list(filter: Filter = {}): AsyncGenerator<Listed> {
    for await (const found of this.client.workflow.list({ query: listQuery(filter) })) {
      const has = found.typedSearchAttributes;
      const state = has.get(key.state);
      yield {
        workspace: found.workflowId.slice(workflowIdPrefix.length),
        state: state === undefined ? undefined : (vocabulary.State.find((known) => known === state) ?? 'unknown'),
        provider: has.get(key.provider),
        owner: has.get(key.owner),
        epoch: has.get(key.epoch),
        nextActionAt: has.get(key.nextActionAt),
        suspendedSince: has.get(key.suspendedSince),
      };
    }
  }

  private update<N extends keyof Updates>(workspace: string, name: N, ask: Ask<N>): Promise<Answer<N>> {
    const requestId = ask.request_id ?? randomUUID();
    const patience = waits[name] ?? this.patience;
    return untilKnown({ what: `${name} ${workspace}`, requestId, patience, tryFor: waits[name] === undefined ? 10 * second : minute }, (deadline) =>
      this.client.withDeadline(deadline, () =>
        this.client.workflow.getHandle(workflowIdPrefix + workspace).executeUpdate<Answer<N>, [unknown]>(name, {
          updateId: requestId, // Temporal's own memory of it, beside boxkeeper's
          args: [{ ...ask, request_id: requestId }],
        }),
      ),
    );
  }

  private query<N extends keyof Queries>(workspace: string, name: N): Promise<Queries[N]> {
    return untilKnown({ what: `${name} of ${workspace}`, patience: this.patience, tryFor: 10 * second }, (deadline) =>
      this.client.withDeadline(deadline, () => this.client.workflow.getHandle(workflowIdPrefix + workspace).query<Queries[N]>(name)),
    );
  }

  private signal<N extends keyof Signals>(workspace: string, name: N, payload: Carried<N>): Promise<void> {
    // All signals of the contract are safe to repeat.
    return untilKnown({ what: `${name} to ${workspace}`, patience: this.patience, tryFor: 10 * second }, (deadline) =>
      this.client.withDeadline(deadline, () => this.client.workflow.getHandle(workflowIdPrefix + workspace).signal(name, payload)),
    );
  }

  private async renewUntil(ended: AbortSignal, every: number, workspace: string, ask: Ask<'renew'>, lost: AbortController): Promise<void> {
    while (await pause(every, ended)) {
      try {
        await this.renew(workspace, ask);
      } catch (err) {
        // Anything but NotFound is tried again: half of the lease is left.
        if (err instanceof BoxkeeperError && err.errorClass === 'NotFound') return lost.abort(err);
      }
    }
  }

  private async isOurs(spec: Omit<Spec, 'version'>): Promise<boolean> {
    const { typedSearchAttributes: has } = await this.client.workflow.getHandle(workflowIdPrefix + spec.workspace).describe();
    return has.get(key.owner) === spec.owner && has.get(key.provider) === spec.provider;
  }
}

/** Waits, and says whether it was to the end. */
async function pause(ms: number, ended: AbortSignal): Promise<boolean> {
  return sleep(ms, true, { signal: ended }).catch(() => false);
}

/** The list query of a filter. Invalid: a value that could not be one, so that nothing is ever injected. */
export function listQuery(filter: Filter): string {
  const terms = [`WorkflowType = '${workflowType}'`];
  const equal = (name: string, field: keyof Filter, value: string | undefined) => {
    if (value === undefined) return;
    if (!/^[A-Za-z0-9@._:/+-]{1,128}$/.test(value)) throw new BoxkeeperError('Invalid', `${field}: use letters, digits and @._:/+-`);
    terms.push(`${name} = '${value}'`);
  };
  if (filter.ended !== true) terms.push("ExecutionStatus = 'Running'");
  equal(searchAttributes.boxState.name, 'state', filter.state);
  equal(searchAttributes.boxOwner.name, 'owner', filter.owner);
  equal(searchAttributes.boxProvider.name, 'provider', filter.provider);
  if (filter.dueBefore !== undefined) terms.push(`${searchAttributes.boxNextActionAt.name} < '${filter.dueBefore.toISOString()}'`);
  return terms.join(' AND ');
}
