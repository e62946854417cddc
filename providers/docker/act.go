package docker

import (
	"context"
	"time"

	"github.com/openhands/boxkeeper/providers/driver"
)

// act does one request that changes something, within the time for it. It asks
// right before whether the caller's ctx has ended, which may be without a signal:
// a worker that stood still must not act beside the one that went on. The ctx that
// do gets is its own and would not say.
func (s *session) act(ctx context.Context, within time.Duration, do func(ctx context.Context) error) error {
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := do(short)
	if err == nil || !driver.Settled(classOf(ctx, err)) {
		s.acted = true // it was carried out, or may have been
	}
	return err
}

// after is the error of a call: once a request of it was carried out no class may
// say that nothing was done.
func (s *session) after(err error) error {
	if s.acted {
		return driver.Unsettled(err)
	}
	return err
}
