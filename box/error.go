package box

import (
	"errors"
	"fmt"
	"time"
)

// Class says what kind of failure an error is, and so what a caller does about
// it. Act on the class, never on the text. Persisted: values never change
// meaning.
type Class string

// The classes. The comment says what the caller does.
const (
	ClassUnknown            Class = "Unknown"            // look again before doing anything; never destroy on it
	ClassNotFound           Class = "NotFound"           // the thing is not there; gone only with a driver's proof
	ClassAlreadyExists      Class = "AlreadyExists"      // look it up, adopt it if it is ours
	ClassInvalid            Class = "Invalid"            // the request is wrong: change the named field
	ClassFailedPrecondition Class = "FailedPrecondition" // the state forbids it: change the state first
	ClassConflict           Class = "Conflict"           // another operation is under way: try again later
	ClassUnauthorized       Class = "Unauthorized"       // repair the credentials; never "gone"
	ClassExhausted          Class = "Exhausted"          // quota, rate or disk: wait RetryAfter, or free room
	ClassUnavailable        Class = "Unavailable"        // try again
	ClassUnsupported        Class = "Unsupported"        // this provider cannot do it: no request was sent
	ClassCanceled           Class = "Canceled"           // the caller gave up
	ClassDeadlineExceeded   Class = "DeadlineExceeded"   // no answer in time: the outcome is unknown
	ClassInternal           Class = "Internal"           // a fault of ours
)

// Retryable reports whether the same call may succeed later with nothing else
// changed.
func (c Class) Retryable() bool {
	switch c {
	case ClassInvalid, ClassUnauthorized, ClassUnsupported, ClassFailedPrecondition, ClassCanceled:
		return false
	case ClassUnknown, ClassNotFound, ClassAlreadyExists, ClassConflict, ClassExhausted,
		ClassUnavailable, ClassDeadlineExceeded, ClassInternal:
		return true
	}
	return true
}

// Error is the one error type that crosses package borders. Message is a
// sentence for a person, with the next step; it never carries a secret.
type Error struct {
	Class Class
	// Field names the refused input, such as "policy.idle"; empty when no
	// single field is at fault.
	Field   string
	Message string
	// RetryAfter is what the other side asked for; zero when it named nothing.
	RetryAfter time.Duration
	// Block says what the account lacks, beside the class Exhausted; empty for
	// anything else, such as a rate. Read it with [BlockOf].
	Block Block
	Err   error
}

// Error returns the field, the message and the cause.
func (e *Error) Error() string {
	text := e.Message
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.Err == nil {
		return text
	}
	if _, said := e.Err.(hidden); said { //nolint:errorlint // only our own direct wrapper hides its text
		return text
	}
	return text + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of the first [Error] in err's chain, ClassUnknown
// when there is none, and "" for nil.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return ClassUnknown
}

// Errorf returns an error of class with a formatted message; a %w verb keeps
// the cause reachable.
func Errorf(class Class, format string, args ...any) error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Class: class, Message: wrapped.Error(), Err: hidden{errors.Unwrap(wrapped)}.orNil()}
}

// Invalidf returns a ClassInvalid error that names the field at fault.
func Invalidf(field, format string, args ...any) error {
	return &Error{Class: ClassInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// hidden keeps a cause in the chain without repeating its text, which the
// message already holds.
type hidden struct{ err error }

func (h hidden) Error() string { return "" }
func (h hidden) Unwrap() error { return h.err }

func (h hidden) orNil() error {
	if h.err == nil {
		return nil
	}
	return h
}
