package retention

import "time"

// Interval and Rest are what a test of the schedule goes by.
const (
	Interval = interval
	Rest     = rest
)

// Clock is what a test sets in place of the machine's clocks.
type Clock struct {
	Wall         time.Time
	Mono, Asleep time.Duration
}

// Pass moves all clocks on, as time does.
func (c *Clock) Pass(d time.Duration) { c.Wall, c.Mono = c.Wall.Add(d), c.Mono+d }

// Suspend moves the wall clock alone, as it looks after a suspend.
func (c *Clock) Suspend(d time.Duration) { c.Wall, c.Asleep = c.Wall.Add(d), c.Asleep+d }

// WithClock makes a keeper that goes by clock, on a machine started as boot.
func WithClock(root string, rules *Rules, opts Options, clock *Clock, boot string) *Keeper {
	k := New(root, rules, opts)
	k.now = func() reading {
		return reading{wall: time.Duration(clock.Wall.UnixNano()), mono: clock.Mono, asleep: clock.Asleep}
	}
	k.boot = boot
	k.start()
	return k
}
