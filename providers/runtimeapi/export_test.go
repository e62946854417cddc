package runtimeapi

import "time"

// WithGrace makes the wait after an unclear create short enough for a test.
func (d *Driver) WithGrace(grace time.Duration) *Driver {
	d.grace = grace
	return d
}
