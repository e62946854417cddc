package activities

import (
	"context"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/openhands/boxkeeper/box"
)

// pulse knows whether this process stood still: stopped, swapped out, or on a
// machine that slept. The engine has then given the step to another worker, and
// what goes on here is a second execution that nobody waits for. It must not
// reach the provider: the box may have been woken since. A process that was only
// cut off from the engine does not stand still; against that one the provider's
// side holds a fence, where its row claims one.
type pulse struct {
	mu    sync.Mutex
	last  time.Time
	bound time.Duration
	stood bool
	told  []any // the newest details of a heartbeat
}

type pulseKey struct{}

// check reports for how long this process stood still, if for too long. Once
// true it stays true for this execution.
func (p *pulse) check() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	// The monotonic clock stops while a machine sleeps, the wall clock does not.
	if now.Sub(p.last) > p.bound || now.Round(0).Sub(p.last.Round(0)) > p.bound {
		p.stood = true
	}
	p.last = now
	return p.stood
}

// tell sends a heartbeat with what was done so far. Those that follow repeat it,
// since only the newest one is shown: a step that is silent for minutes, such as
// a box that packs a large history, still shows how far it came.
func tell(ctx context.Context, done ...any) {
	if p, ok := ctx.Value(pulseKey{}).(*pulse); ok {
		p.mu.Lock()
		p.told = done
		p.mu.Unlock()
	}
	activity.RecordHeartbeat(ctx, done...)
}

func (p *pulse) details() []any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

// fencedContext ends, for whoever asks it, as soon as this process stood still:
// a driver that waited for a lock asks before it goes on.
type fencedContext struct {
	context.Context //nolint:containedctx // it is a context
	pulse           *pulse
}

// Err returns why the execution is over.
func (c fencedContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if c.pulse.check() {
		return context.Canceled
	}
	return nil
}

// fence puts the pulse of ctx around another context that does not end with it.
func fence(ctx, other context.Context) context.Context {
	if p, ok := ctx.Value(pulseKey{}).(*pulse); ok {
		return fencedContext{other, p}
	}
	return other
}

// fenced refuses what must not be done by an execution that was given up. Call
// it right before each mutation at the provider.
func fenced(ctx context.Context) error {
	if p, ok := ctx.Value(pulseKey{}).(*pulse); ok && p.check() {
		return stoodStill()
	}
	return nil
}

func stoodStill() error {
	return box.Errorf(box.ClassUnavailable, "this worker stood still for so long that another may have gone on; nothing was done")
}

// beat sends heartbeats until the returned stop is called, so that a dead
// worker is noticed and a cancellation arrives. The context it returns ends when
// this process stood still.
func beat(ctx context.Context) (beating context.Context, stop func()) {
	p := &pulse{last: time.Now(), bound: standstill}
	if given := activity.GetInfo(ctx).HeartbeatTimeout; given > 0 {
		p.bound = min(p.bound, given*2/3)
	}
	beating, cancel := context.WithCancelCause(context.WithValue(ctx, pulseKey{}, p))
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-beating.Done():
				return
			case <-tick.C:
				if p.check() {
					cancel(stoodStill())
					return
				}
				activity.RecordHeartbeat(beating, p.details()...)
			}
		}
	})
	return beating, func() { close(done); wait.Wait(); cancel(nil) }
}

// standstill is the longest pause of this process that is taken for granted.
const standstill = 20 * time.Second
