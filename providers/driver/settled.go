package driver

import (
	"errors"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Settled reports whether callers take an error of this class to say that
// nothing was done: they then open the way back from a deletion, or end a create
// without another look.
func Settled(class box.Class) bool {
	switch class {
	case box.ClassUnauthorized, box.ClassFailedPrecondition, box.ClassInvalid, box.ClassUnsupported, box.ClassNotFound, box.ClassAlreadyExists:
		return true
	case box.ClassUnknown, box.ClassConflict, box.ClassExhausted, box.ClassUnavailable, box.ClassCanceled, box.ClassDeadlineExceeded, box.ClassInternal:
	}
	return false
}

// Unsettled returns err for a call of which an earlier request was, or may have
// been, carried out: a class that is [Settled] becomes Unavailable, so that the
// caller looks again. Others stay as they are, and so does nil.
func Unsettled(err error) error {
	if err == nil || !Settled(box.ClassOf(err)) {
		return err
	}
	var wait time.Duration
	if e, ok := errors.AsType[*box.Error](err); ok {
		wait = e.RetryAfter
	}
	return &box.Error{Class: box.ClassUnavailable, Message: "it may be done, but what followed was not answered; look again", RetryAfter: wait, Err: unclassed{err}}
}

// unclassed keeps the words of an error and hides its class.
type unclassed struct{ err error }

func (u unclassed) Error() string { return u.err.Error() }
