package reclaim

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// How long after a try something that is left in the trash is tried again: at
// first soon, since most users are short-lived, then ever more rarely, so that
// one which stays for days costs a look at the processes every ten minutes.
const (
	sweepSoon = time.Second
	sweepMost = 10 * time.Minute
)

// sweep deletes what lies in the trash, and tries again until nothing is left
// or the Reclaimer is closed. One goroutine does that; a second call wakes it.
func (r *Reclaimer) sweep() {
	r.mu.Lock()
	running := r.sweeping
	r.sweeping = true
	if running {
		select {
		case r.again <- struct{}{}:
		default: // it is woken already
		}
	}
	r.mu.Unlock()
	if running {
		return
	}
	told := map[string]string{}
	for wait := sweepSoon; ; wait = min(2*wait, sweepMost) {
		left := r.resume(told)
		r.mu.Lock()
		if r.stopped.Err() != nil || !left && len(r.again) == 0 {
			r.sweeping = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.again:
			wait = sweepSoon / 2 // doubled before the next try
		case <-r.stopped.Done():
		}
		timer.Stop()
	}
}

// resume deletes what an earlier process or pass left in the trash, what a
// process still uses excepted, and reports whether something is left. Each
// reason is logged once; told carries them from try to try.
func (r *Reclaimer) resume(told map[string]string) (left bool) {
	tell := func(name, why string) {
		left = true
		if told[name] != why {
			told[name] = why
			r.opts.Log.Warn("left in the trash; it is tried again", "entry", name, "why", why)
		}
	}
	names, users, err := r.leftOver()
	if err != nil {
		tell(trashName, err.Error())
		return left
	}
	for _, entry := range names {
		if r.stopped.Err() != nil {
			return true
		}
		if user := users[entry.name]; user != "" {
			tell(entry.name, "in use by "+user)
			continue
		}
		if !r.mayGo(entry.name) {
			left = true // its pass has yet to look through it, or put it back
			continue
		}
		var out removal
		r.discard(entry.name, &out)
		if out.left > 0 {
			tell(entry.name, fmt.Sprintf("removed in part, %d left: %v", out.left, out.faults))
		}
	}
	return left
}

// leftOver lists the trash between two passes, when nothing in it is about to
// be put back, and who uses what in it.
func (r *Reclaimer) leftOver() (names []dirEntry, users map[string]string, err error) {
	if r.tree.usable() != nil {
		return nil, nil, nil // nothing is ever deleted here
	}
	r.pass.Lock()
	defer r.pass.Unlock()
	fd, names, err := r.tree.list(r.tree.fd, trashName)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the trash: %w", err)
	}
	unix.Close(fd)
	if len(names) == 0 {
		return nil, nil, nil
	}
	users, err = r.users()
	return names, users, err
}
