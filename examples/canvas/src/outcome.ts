// What a call came to: an answer, a refusal with its class, or nothing that is
// known. Act on the class, never on the text.
import {
  ApplicationFailure,
  isGrpcServiceError,
  WorkflowExecutionAlreadyStartedError,
  WorkflowFailedError,
  WorkflowNotFoundError,
  WorkflowUpdateFailedError,
  WorkflowUpdateRPCTimeoutOrCancelledError,
} from '@temporalio/client';
import { setTimeout as sleep } from 'node:timers/promises';
import { vocabulary, type Class } from './contract.js';

/**
 * A refusal. Its message is a sentence for a person, which starts with the field
 * at fault where there is one.
 */
export class BoxkeeperError extends Error {
  override readonly name: string = 'BoxkeeperError';

  constructor(
    readonly errorClass: Class,
    message: string,
    options?: { cause?: unknown },
  ) {
    super(message, options);
  }
}

/**
 * No answer came: the request may be carried out. Send it again with the same
 * request id, as often as you like; it is not done twice.
 */
export class OutcomeUnknownError extends BoxkeeperError {
  override readonly name = 'OutcomeUnknownError';

  constructor(
    what: string,
    readonly requestId: string | undefined,
    cause: unknown,
  ) {
    super('DeadlineExceeded', `${what}: no answer, so the outcome is unknown; ask again${requestId === undefined ? '' : ` with request id ${requestId}`}`, { cause });
  }
}

function isClass(text: string | null | undefined): text is Class {
  return vocabulary.Class.some((known) => known === text);
}

// Codes of gRPC, https://grpc.io/docs/guides/status-codes.
const notSent: Record<number, Class> = {
  3: 'Invalid', // INVALID_ARGUMENT
  5: 'NotFound', // NOT_FOUND: the namespace
  7: 'Unauthorized', // PERMISSION_DENIED
  12: 'Unsupported', // UNIMPLEMENTED
  16: 'Unauthorized', // UNAUTHENTICATED
};

/**
 * Says what an error of the Temporal client means: a refusal, or undefined when
 * nobody knows what came of the request.
 */
export function refusalIn(err: unknown): BoxkeeperError | undefined {
  if (err instanceof BoxkeeperError) return err;
  if (err instanceof WorkflowUpdateFailedError || err instanceof WorkflowFailedError) {
    const { cause } = err;
    if (cause instanceof ApplicationFailure) {
      // Another type is not of the contract: an older worker that does not know
      // the update, say.
      return new BoxkeeperError(isClass(cause.type) ? cause.type : 'Unknown', cause.message, { cause });
    }
    return new BoxkeeperError('Unknown', cause?.message ?? err.message, { cause: err });
  }
  if (err instanceof WorkflowExecutionAlreadyStartedError) {
    return new BoxkeeperError('AlreadyExists', `${err.workflowId} exists, or existed: ask its status`, { cause: err });
  }
  if (err instanceof WorkflowNotFoundError) {
    return new BoxkeeperError('NotFound', `${err.workflowId} has ended, or there never was one: ask its status`, { cause: err });
  }
  if (err instanceof WorkflowUpdateRPCTimeoutOrCancelledError) return undefined;
  const sent = isGrpcServiceError(err) ? err : err instanceof Error && isGrpcServiceError(err.cause) ? err.cause : undefined;
  if (sent !== undefined) {
    const known = notSent[sent.code];
    return known === undefined ? undefined : new BoxkeeperError(known, sent.details || sent.message, { cause: err });
  }
  return new BoxkeeperError('Internal', err instanceof Error ? err.message : String(err), { cause: err });
}

export interface Repetition {
  /** What is asked, for the message of an error. */
  readonly what: string;
  /** The id that makes repeating safe, if the call has one. */
  readonly requestId?: string;
  /** How long to go on asking, in milliseconds. */
  readonly patience: number;
  /** How long one try waits for its answer, in milliseconds. */
  readonly tryFor: number;
  /** The pause after the first try, in milliseconds; it doubles up to 5 s. */
  readonly pause?: number;
}

/**
 * Asks until there is an answer, a refusal, or no more patience. `call` gets the
 * deadline of its try and whether an earlier try ended without an answer; it must
 * be safe to repeat.
 */
export async function untilKnown<T>(how: Repetition, call: (deadline: number, again: boolean) => Promise<T>): Promise<T> {
  const giveUp = Date.now() + how.patience;
  for (let pause = how.pause ?? 250, again = false; ; pause = Math.min(pause * 2, 5_000), again = true) {
    try {
      return await call(Math.min(Date.now() + how.tryFor, giveUp), again);
    } catch (err) {
      const refusal = refusalIn(err);
      if (refusal !== undefined) throw refusal;
      if (Date.now() + pause >= giveUp) throw new OutcomeUnknownError(how.what, how.requestId, err);
    }
    await sleep(pause);
  }
}
