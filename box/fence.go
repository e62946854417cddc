package box

import (
	"fmt"
	"time"
)

// Fence orders the steps of one workspace's life, so that a provider's side can
// refuse one that a newer step overtook: its worker was cut off, not stopped,
// and never learned that another one went on.
//
// It only grows: over continue-as-new, since both parts are carried, and when a
// workflow of the same id begins anew, since that begins later. Zero means that
// nobody gave one, and is never refused.
type Fence struct {
	// Began is when the count of steps began, in milliseconds since 1970 on the
	// engine's clock.
	Began int64 `json:"began,omitzero"`
	Step  int   `json:"step,omitzero"`
}

// IsZero reports whether no fence was given.
func (f Fence) IsZero() bool { return f == Fence{} }

// Before reports whether f is of an older step than other.
func (f Fence) Before(other Fence) bool {
	if f.Began != other.Began {
		return f.Began < other.Began
	}
	return f.Step < other.Step
}

// String returns the fence for people and logs.
func (f Fence) String() string {
	return fmt.Sprintf("step %d of the life that began %s", f.Step, time.UnixMilli(f.Began).UTC().Format(time.RFC3339))
}

// Fence returns the fence of the step that began last.
func (f *Facts) Fence() Fence {
	fence := Fence{Step: f.Steps}
	if !f.Began.IsZero() {
		fence.Began = f.Began.UnixMilli()
	}
	return fence
}
