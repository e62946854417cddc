package box

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// maxJitter is the most that a deadline is armed late on purpose. It stays well
// under lateBy, so that a box that waited for its turn is not taken for one
// whose owner was down.
const maxJitter = 20 * time.Second

// jitterShare is the part of a window that jitter may add to it: two per cent
// is not noticed in a bill, and short windows stay short.
const jitterShare = 50

// jitter returns how much later than its deadline a workspace's idle timer is
// armed: always the same for one workspace and window, spread evenly over
// workspaces. Boxes that were created, released or left alone together, such as
// all of them after an outage, then don't fall due in the same second, and the
// engine serves each in time.
//
// Only the idle deadline may move. A wall is a maximum, an undo window and a
// notice are promises with a date, and the paused TTL starts with the suspend,
// which the idle timer has spread already.
func jitter(workspace string, window Duration) time.Duration {
	most := min(window.Std()/jitterShare, maxJitter)
	if most <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(workspace))
	part := binary.BigEndian.Uint64(sum[:8]) % uint64(most)
	return time.Duration(part).Truncate(time.Millisecond) //nolint:gosec // it is below most
}

// Armed returns the step with the time at which its timer is set, which is what
// people are told: the deadline that [Next] answers, and for an idle box up to
// two per cent and 20 s more. It is never earlier than the deadline, never at
// or after the hard maximum, and the same at every call for the same facts.
// Next acts from the deadline on, so an event in between is not waited out.
func (f *Facts) Armed(step Step) Step {
	if step.Kind != StepWait || step.Then != StepQuiesce || step.Purpose != PurposeIdle || step.Reason.Code != ReasonIdle {
		return step
	}
	at := step.At.Add(jitter(f.Spec.Workspace, f.IdleAfter()))
	if wall, walled := f.wallAt(); walled && !at.Before(wall) {
		return step
	}
	step.At = at
	return step
}
