package reclaim

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
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
	if len(names) == 0 {
		return false
	}
	held := heldOpen()
	defer r.noteProgress(true)
	for _, entry := range names {
		if r.stopped.Err() != nil {
			return true
		}
		if r.owns(entry.name) {
			left = true // its pass has yet to look through it
			continue
		}
		if user := users[entry.name]; user != "" {
			tell(entry.name, "in use by "+user)
			continue
		}
		if why := r.returnStranger(entry.name); why != "" {
			tell(entry.name, why)
			continue
		}
		var out removal
		r.discard(entry.name, held, &out)
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
	fd, err := r.tree.openTrash()
	if errors.Is(err, unix.ENOENT) {
		return nil, nil, nil
	}
	if err == nil {
		names, err = readDir(fd)
		unix.Close(fd)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the trash: %w", err)
	}
	if len(names) == 0 {
		return nil, nil, nil
	}
	users, err = r.users(nil)
	return names, users, err
}

// returnStranger puts back what a pass moved by name and what is not what it
// had chosen, or what must stay; it would have done so itself, had the process
// not been killed in between. It returns what became of it, empty when the entry is ours to delete.
func (r *Reclaimer) returnStranger(name string) string {
	parts := entryForm.FindStringSubmatch(name)
	if parts == nil {
		return ""
	}
	plan, err := r.recall(parts[1])
	if err != nil {
		return ""
	}
	at, _ := strconv.Atoi(parts[2])
	r.mu.Lock()
	known := at < len(plan.Items)
	r.mu.Unlock()
	if !known {
		return ""
	}
	r.pass.Lock()
	defer r.pass.Unlock()
	r.mu.Lock()
	entry := plan.Items[at]
	r.mu.Unlock()
	trash, err := r.tree.openTrash()
	if err != nil {
		return reason(err)
	}
	defer unix.Close(trash)
	if r.holds(trash, name, &entry) {
		return r.prove(name, &entry)
	}
	dir, base := path.Split(entry.Path)
	parent, err := r.tree.openDir(r.tree.fd, strings.TrimSuffix(dir, "/"))
	if err != nil {
		return "is not what was chosen, and cannot be put back: " + reason(err)
	}
	defer unix.Close(parent)
	return r.putBack(trash, name, parent, base)
}
