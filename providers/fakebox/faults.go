package fakebox

import (
	"context"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Op names one method of the driver.
type Op string

// The methods that can be made to fail and that are logged.
const (
	OpFingerprint Op = "fingerprint"
	OpCreate      Op = "create"
	OpObserve     Op = "observe"
	OpSuspend     Op = "suspend"
	OpResume      Op = "resume"
	OpDeepen      Op = "deepen"
	OpAdjust      Op = "adjust"
	OpDelete      Op = "delete"
	OpEndpoint    Op = "endpoint"
	OpList        Op = "list"
	OpAdopt       Op = "adopt"
)

// Fault makes calls of one method go wrong. Exactly one of the effects is used,
// the first that is set.
type Fault struct {
	Op Op
	// Skip lets that many calls pass first.
	Skip int
	// Times is how many calls go wrong; zero means one, negative all.
	Times int

	// Hang waits until the caller's context ends; nothing is done.
	Hang bool
	// Class answers an error of this class; nothing is done.
	Class      box.Class
	RetryAfter time.Duration
	Message    string
	// Lost does the work and answers as if the connection had broken.
	Lost bool
	// Stale answers a list with what was there when the fault was injected.
	Stale bool
	// Fingerprint is what OpFingerprint answers instead.
	Fingerprint string
	// Phase is what OpObserve claims of a box that is there: a lying server.
	Phase box.Phase

	stale map[string][]driver.Listed
}

// Call is one entry of the log.
type Call struct {
	Op    Op
	Box   string
	At    time.Time
	Class box.Class // of the error that was answered, empty for success
}

// Inject adds a fault to the script. Faults for one method take effect in the
// order they were added.
func (c *Cloud) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	if f.Stale {
		c.settle()
		f.stale = map[string][]driver.Listed{}
		for _, b := range c.boxes() {
			if id := b.identity.Installation; f.stale[id] == nil {
				f.stale[id] = c.list(id)
			}
		}
	}
	c.faults = append(c.faults, &f)
}

// next takes the fault for one call of op, the zero Fault if there is none.
func (c *Cloud) next(op Op) Fault {
	for _, f := range c.faults {
		switch {
		case f.Op != op || f.Times == 0:
			continue
		case f.Skip > 0:
			f.Skip--
			return Fault{}
		case f.Times > 0:
			f.Times--
		}
		return *f
	}
	return Fault{}
}

// call runs one method of the driver under the cloud's lock, with its fault,
// and logs it.
func call[T any](ctx context.Context, c *Cloud, op Op, name string, do func(Fault) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, box.Errorf(classOf(err), "%s: %w", op, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	fault := c.next(op)
	at := len(c.calls)
	c.calls = append(c.calls, Call{Op: op, Box: name, At: c.clock()})
	fail := func(err error) (T, error) {
		c.calls[at].Class = box.ClassOf(err)
		return none, err
	}
	switch {
	case fault.Hang:
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		return fail(box.Errorf(classOf(ctx.Err()), "%s: %w", op, ctx.Err()))
	case fault.Class != "":
		text := fault.Message
		if text == "" {
			text = "scripted fault"
		}
		return fail(&box.Error{Class: fault.Class, Message: text, RetryAfter: fault.RetryAfter})
	}
	c.settle()
	out, err := do(fault)
	if err != nil {
		return fail(err)
	}
	if fault.Lost {
		return fail(box.Errorf(box.ClassUnavailable, "the connection broke before the answer came"))
	}
	return out, nil
}

func classOf(err error) box.Class {
	if err == context.DeadlineExceeded { //nolint:errorlint // the value that Context.Err documents
		return box.ClassDeadlineExceeded
	}
	return box.ClassCanceled
}
