package workers

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	watchAgain = 5 * time.Second // before a watch that broke is begun again, doubled each time
	watchMost  = time.Minute
	// watchSteady is how long a watch must last before it is called whole again: one
	// that ends each time right after it began is not.
	watchSteady = time.Minute
)

// keepOn begins a watch again and again until ctx ends. That it broke is said
// once, and again when it has lasted twice as long as the last time that it was
// said; that it works again is said once.
func keepOn(ctx context.Context, log *zap.Logger, watch func(context.Context) error) {
	var down outage
	for ctx.Err() == nil {
		steady := time.AfterFunc(watchSteady, func() {
			if lasted, ok := down.over(time.Now()); ok {
				log.Info("watching a provider works again", zap.Duration("broken_for", lasted))
			}
		})
		err := watch(ctx)
		steady.Stop()
		if ctx.Err() != nil {
			return
		}
		pause, say := down.broke(time.Now())
		if say {
			log.Warn("watching a provider broke; it is begun again until it works, and what it would have told is found by the next look", zap.Error(err), zap.Duration("next_try_in", pause))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// outage is something that broke and did not work since. The zero value is none.
type outage struct {
	mu          sync.Mutex
	since, said time.Time
	tries       int
}

// broke takes in that it broke, and returns when to try again and whether to say
// so.
func (o *outage) broke(now time.Time) (pause time.Duration, say bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	pause = min(watchAgain<<min(o.tries, 10), watchMost)
	o.tries++
	if o.since.IsZero() {
		o.since = now
	} else if now.Sub(o.since) < 2*max(o.said.Sub(o.since), watchMost) {
		return pause, false
	}
	o.said = now
	return pause, true
}

// over takes in that it works, and returns for how long it did not.
func (o *outage) over(now time.Time) (lasted time.Duration, ended bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return 0, false
	}
	lasted = now.Sub(o.since)
	o.since, o.said, o.tries = time.Time{}, time.Time{}, 0
	return lasted, true
}
