package activities

import (
	"context"
	"errors"

	"go.temporal.io/sdk/temporal"

	"github.com/openhands/boxkeeper/box"
)

// translate turns an error class into a Temporal error: its type is the class,
// so that the workflow acts on the class and never on text. A class that the
// same call cannot get past is not retried. Who listens to events goes along, as
// it does with an outcome.
func translate(ctx context.Context, err error, listeners []box.Listener) error {
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return temporal.NewCanceledError()
	}
	class := box.ClassOf(err)
	detail := box.StepFailure{Class: class, NotBegun: class == box.ClassUnauthorized, Block: box.BlockOf(err), Listeners: listeners}
	options := temporal.ApplicationErrorOptions{NonRetryable: !class.Retryable() || class == box.ClassNotFound}
	if e, ok := errors.AsType[*box.Error](err); ok {
		options.NextRetryDelay = e.RetryAfter
		if e.RetryAfter > longestInlineWait {
			// A wait longer than a heartbeat is the workflow's: it is durable there.
			options.NonRetryable = true
			detail.RetryAfter = box.Duration(e.RetryAfter)
		}
	}
	if _, ok := errors.AsType[notBegun](err); ok {
		detail.NotBegun = true
	}
	options.Details = []any{detail}
	if class == box.ClassConflict || class == box.ClassExhausted || class == box.ClassUnavailable {
		options.Category = temporal.ApplicationErrorCategoryBenign
	}
	return temporal.NewApplicationErrorWithOptions(err.Error(), string(class), options)
}

// FailureOf reads the class and the words back from the error of an activity.
// An error without a class, such as a time-out of the engine's, leaves the
// outcome unknown.
func FailureOf(err error) box.StepFailure {
	if temporal.IsCanceledError(err) {
		return box.StepFailure{Class: box.ClassCanceled, Message: "cancelled"}
	}
	if app, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		out := box.StepFailure{Class: box.Class(app.Type()), Message: app.Message()}
		var detail box.StepFailure
		if app.HasDetails() && app.Details(&detail) == nil {
			out.RetryAfter, out.NotBegun, out.Block, out.Listeners = detail.RetryAfter, detail.NotBegun, detail.Block, detail.Listeners
		}
		return out
	}
	if _, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		return box.StepFailure{Class: box.ClassDeadlineExceeded, Message: "no worker finished it in time; its outcome is unknown"}
	}
	return box.StepFailure{Class: box.ClassUnknown, Message: "it ended without an answer; its outcome is unknown"}
}

// notBegun marks an error from before the provider was told anything.
type notBegun struct{ err error }

func (e notBegun) Error() string { return e.err.Error() }
func (e notBegun) Unwrap() error { return e.err }
