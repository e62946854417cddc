// Package driver is the contract between the portable type in package
// providers and the adapter of one provider. Users of boxkeeper never see it;
// whoever writes a driver needs only this text, box, and drivertest. The order
// of the work, what to do with the answers that providers really give, and where
// a driver is hooked up, is in docs/providers/writing-a-driver.md; this text is
// the law.
//
// Rules for every driver:
//
//   - "Already so" is success: suspending a suspended box, resuming a running
//     one and deleting one that is proven gone return the observation, no error.
//   - "Could not read" is an error, never [box.PhaseGone]. Gone needs an answer
//     from the provider that the id is absent under the ref's fingerprint, or in a
//     state that is its word for the end of a box and its files: its own answer,
//     from the address that was asked, with a credential that it accepts. A 404 of
//     a gateway, of a router without that path, behind a redirect or without a
//     body is none, and neither is a list that lacks it.
//   - A nil error is a proof: an outcome that is not (yet) proven is an error.
//     What was asked for is no proof; what is read afterwards is.
//   - An answer is about the box of the ref or it is an error of class Unknown:
//     its id, name, marks and place are compared.
//   - A state that the driver does not know, or none, is [box.PhaseUnknown] in an
//     observation and an error of class Unknown or Unavailable where a phase has
//     to be proven. It is never the nearest phase that is known.
//   - An error says by its class what was done. Unauthorized, FailedPrecondition,
//     Invalid, Unsupported, NotFound and AlreadyExists say that nothing was:
//     after a request that was, or may have been, carried out a driver MUST NOT
//     return them. See [Unsettled].
//   - A wait that the provider asks for is passed on with the error, as
//     RetryAfter: Exhausted for a rate, a quota or missing funds, Unavailable for
//     a provider that is busy. A driver makes none up from what it cannot read.
//     Exhausted for a quota or missing funds says so by [box.Block]; a rate does not.
//   - Retries inside a provider's SDK are off: the engine retries. Redirects are
//     not followed: a credential would go along.
//   - An answer is read up to a bound, and no field of it is trusted to be there.
//   - No driver keeps a secret, writes one to a log or puts one in an error or an
//     Evidence; providers do repeat what they were sent. An error is shorter than
//     2000 bytes and repeats no body.
//   - Evidence is the provider's word for the state, a reason, a status or a
//     request id, in one line; what is beyond 1000 characters is cut. Age is the
//     difference of two times of the provider's own clock, zero when it does not
//     say and never less; it is not compared with ours.
//   - Every method is safe for concurrent use and returns soon after ctx ends.
//     ctx.Err is asked right before each request that changes something, also
//     after a wait: it may end without Done, when this worker stood still and
//     another one may have gone on.
//   - Methods on refs that are not this installation's return
//     FailedPrecondition and change nothing, and so do refs whose fingerprint is
//     another place, or whose id cannot be one of this provider's.
//   - A driver never invents Ref.Provider: it returns the one it was given. The
//     portable type fills it in.
//   - A driver that claims Fence MUST refuse, with Conflict and before it changes
//     anything, a mutating call whose fence is older than one that it has seen
//     for this name, and MUST remember the fence of each mutating call that it
//     carries out, in the same breath and also after the box is gone. See [WithFence].
package driver

import (
	"context"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Driver is one configured instance of a provider. "MUST" marks what
// drivertest checks.
type Driver interface {
	// Capabilities returns the row. It MUST be constant and complete
	// (box.Capabilities.Missing is empty), and it sends nothing: a length of time
	// that an account sets, or that nobody knows, is an option of the instance. Yes
	// is what the provider keeps on every call, not what it mostly does. What is not
	// known for certain is the answer that relies on less, and Untested says so: Yes
	// for LookingIsUse and ExportNeedsRunning, No for every other claim. The two
	// proofs name what is read afterwards, and where, not what was asked for.
	Capabilities() box.Capabilities

	// Fingerprint returns the account, region or engine that this instance
	// talks to, without a secret. It MUST be the same on every call while the
	// instance talks to the same place, also of another worker's driver, and
	// another one in another place. It is read afresh when cheap, so that a
	// swapped account is noticed. One that cannot be read is an error, never "".
	Fingerprint(ctx context.Context) (string, error)

	// Create makes the box named req.Identity.Name() and starts it. It MUST be
	// idempotent by name: a repeated call returns the same ref, one box exists.
	// A box of that name with other labels MUST be refused with AlreadyExists
	// and left alone. A lost answer is resolved by the next call: it looks by the
	// name first, and since such a look may lag it also makes the box in a way
	// that the provider refuses or joins the second time, by a unique name or a
	// key of idempotency. The ref in the answer MUST carry the id, the name, the
	// epoch and the fingerprint, and an answer of a driver that claims NativeIdle
	// MUST carry the timers as read back from the provider. A box of ours that is
	// suspended or failed is answered as it is. It does not wait for the agent-server.
	Create(ctx context.Context, req CreateRequest) (box.Observation, error)

	// Observe reads the box on the control plane, by its id. It MUST NOT wake,
	// extend or start it. An absent box is an Observation with PhaseGone, not an
	// error. PhaseFailed is a box that is there and whose processes ended: it is
	// started again while somebody needs it, so an unclear state is not failed.
	Observe(ctx context.Context, ref box.Ref) (box.Observation, error)

	// Suspend makes the box stop costing compute while its files are kept, and
	// returns only with proof (PhaseSuspended) or an error: Unavailable while it
	// is under way, or while a box that is starting cannot be told yet. It MUST be
	// safe to repeat. A failed box whose files are kept, and whose compute is not
	// paid for, becomes a suspended one; where the provider suspends none that
	// failed it is FailedPrecondition. For a gone box it MUST return NotFound.
	Suspend(ctx context.Context, ref box.Ref) (box.Observation, error)

	// Resume wakes a suspended box, or starts a failed one whose files are there;
	// the ref in the answer may differ, and since that answer may be lost the ref
	// from before MUST still lead to the box. A running box is left alone, and a
	// failed one that the provider cannot start is FailedPrecondition. It does not
	// wait for the agent-server. For a gone box it MUST return NotFound, and MUST
	// NOT create an empty one in its place. A driver whose boxes keep their memory
	// has no use for start.
	Resume(ctx context.Context, ref box.Ref, start Start) (box.Observation, error)

	// Delete destroys the box and all that we own beside it, from every phase,
	// and returns only with proof (PhaseGone) or an error: Unavailable while the
	// deletion is under way. It MUST be safe to repeat. No error of the provider
	// is a proof but its own NotFound; Unauthorized is one of ours to mend.
	Delete(ctx context.Context, ref box.Ref) (box.Observation, error)

	// Endpoint says how to reach the agent-server of a running box. The answer
	// holds a credential, in its header and never in its URL: it is used at once
	// and never stored. For a suspended or failed box it MUST return
	// FailedPrecondition, for a gone one NotFound, and for one whose phase is
	// unknown an error of class Unknown or Unavailable. One that is starting, or
	// has no address yet, is Unavailable: ask again. It sends nothing to the box
	// itself.
	Endpoint(ctx context.Context, ref box.Ref) (Endpoint, error)

	// ErrorClass maps an error that a method of this driver returned, and says
	// how long the provider asks to wait, zero when it names nothing, never less.
	// It MUST return ClassUnknown for what it does not know. What a caller does
	// with each class is in docs/providers/writing-a-driver.md.
	ErrorClass(err error) (class box.Class, retryAfter time.Duration)
}

// Lister lists every box of this installation, suspended ones included. A
// driver that claims List implements it; a partial list MUST be an error, and so
// MUST one whose pages repeat themselves. A list may lag: it proves nothing of a
// single box, neither that it is there nor that it is gone. Boxes with other
// marks, or none, are left out; one of ours whose state is unknown is not. An
// installation that is not the driver's is FailedPrecondition.
type Lister interface {
	List(ctx context.Context, installation string) ([]Listed, error)
}

// Listed is one box of a list.
type Listed struct {
	Identity    box.Identity
	Observation box.Observation
}

// Watcher tells when a box ends or changes by itself. A driver that claims
// Watch implements it.
type Watcher interface {
	// Watch calls emit once for each change it sees, first for boxes that
	// changed while nobody watched, until ctx ends, and then returns nil; an
	// error means that changes may have been missed: watch again. emit may be
	// called from several goroutines and twice for one change. A change that we
	// asked for is not reported. It never polls a box.
	Watch(ctx context.Context, emit func(Listed)) error
}

// Adopter takes over boxes by the provider's own id. A driver that claims Adopt
// implements it.
type Adopter interface {
	// Adopt reads the box with this id, whoever made it, and answers it under the
	// ref that all other methods take from then on. It MUST NOT start, wake or
	// suspend it. It MUST be safe to repeat, also after a lost answer.
	//
	// A box that is marked as this installation's and as.Workspace's is answered
	// as it is, under the epoch of its mark, and nothing is written. One that is
	// marked as anything else MUST be refused with FailedPrecondition and left
	// alone. One without any mark, where the provider shows that nobody made it
	// for a workspace, is marked as as; where that cannot be shown it MUST be
	// refused with FailedPrecondition. An id that is not there is NotFound, and a
	// name that is taken AlreadyExists.
	Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error)
}

// Adjuster sets the provider's own timers of a running box again, which also
// starts them anew. A driver that claims NativeAdjust implements it.
type Adjuster interface {
	// Adjust MUST be safe to repeat, MUST NOT wake a suspended box (that is
	// FailedPrecondition), and answers an observation whose Native is what the
	// provider says afterwards. For a gone box it MUST return NotFound.
	Adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error)
}

// Deepener suspends a box deeper whose memory is kept, so that it holds its files
// only. A driver that claims Deepen implements it, and MUST say MemoryKept of
// every suspended box.
type Deepener interface {
	// Deepen gives up the memory of a suspended box and returns only with proof
	// (PhaseSuspended, MemoryKept No, the same ref) or an error. It MUST be safe to
	// repeat, also after a lost answer; a suspended box that keeps no memory is
	// answered as it is. It MUST NOT wake the box, nor let it run on the way in such
	// a manner that anybody is served. A box that is not suspended MUST be refused
	// with FailedPrecondition and left alone. For a gone box it MUST return NotFound.
	//
	// A call that was cut off may have left anything: the caller reads the box
	// again, and suspends it again should it be found awake.
	Deepen(ctx context.Context, ref box.Ref) (box.Observation, error)
}

// CreateRequest is what a driver needs to make a box.
type CreateRequest struct {
	Identity box.Identity
	// Image is empty where the spec names none: then the instance's own is meant,
	// and Invalid says that it has none either.
	Image string
	// Labels are the caller's own, for people who look at the provider. Where it
	// has no place for them they are left out; nothing depends on them.
	Labels map[string]string
	Start  Start
	// Native are the timers that the provider is to keep itself. Where it would
	// set one that is zero here by itself, that one is switched off, or made as
	// long as it may be.
	Native box.Native
}

// Start is what the processes of a box need each time they start. It holds
// secrets; it is resolved right before the call and never stored. What is to be
// in the environment of the agent-server comes from [Start.Variables].
type Start struct {
	Env       map[string]string
	SecretEnv map[string]box.Secret
	// SessionKey is the agent-server's key, as the variable OH_SESSION_API_KEYS_0.
	// A driver whose provider makes the key leaves it out.
	SessionKey box.Secret
}

// Endpoint is how to reach an agent-server. URL may carry a path prefix.
type Endpoint struct {
	URL string
	// SessionKey is empty from a driver whose boxes keep the key that they were
	// started with: the portable type derives it again. A driver whose provider
	// makes or changes the key returns it here.
	SessionKey box.Secret
	// Header holds further headers, such as a provider's own token.
	Header map[string]box.Secret
}
