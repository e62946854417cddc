package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// sight is one reading of a box: its phase, and what it was read from.
type sight struct {
	phase    box.Phase
	evidence string
	since    time.Time
	frozen   bool // suspended, with its processes standing still
	alive    []proc
	leader   *proc // boxd, if it is alive
	dir      bool  // the directory is there
}

// Observe reads the record, the directory and the process table.
func (d *Driver) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	present, err := d.own(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	if !present {
		return box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "no box has this id here"}, nil
	}
	seen, _, err := d.look(ref.Name)
	if err != nil {
		return box.Observation{}, err
	}
	if seen.phase == box.PhaseGone {
		// The place may have been unmounted under the reading.
		if _, err := d.own(ctx, ref); err != nil {
			return box.Observation{}, err
		}
	}
	return d.observation(ref, seen), nil
}

func (d *Driver) observation(ref box.Ref, seen sight) box.Observation {
	out := box.Observation{Ref: ref, Phase: seen.phase, Evidence: seen.evidence}
	if seen.phase == box.PhaseSuspended {
		out.MemoryKept = box.No
		if seen.frozen {
			out.MemoryKept = box.Yes
		}
	}
	if !seen.since.IsZero() {
		out.Age = box.Span(max(0, time.Since(seen.since).Round(time.Millisecond)))
	}
	return out
}

// look reads a box without its lock. The record says what we are doing to it:
// a reading during which it changed mixes before and after, and is repeated.
func (d *Driver) look(name string) (sight, *record, error) {
	const tries = 10
	before, err := d.place.read(name)
	for range tries {
		if err != nil {
			return sight{}, nil, err
		}
		table, err := d.scan()
		if err != nil {
			return sight{}, nil, err
		}
		seen, err := d.see(name, before, table)
		if err != nil {
			return sight{}, nil, err
		}
		after, err := d.place.read(name)
		if err != nil {
			return sight{}, nil, err
		}
		if before.same(after) {
			return seen, after, nil
		}
		before = after
	}
	return sight{}, nil, box.Errorf(box.ClassConflict, "box %s changes all the time; look again", name)
}

// see makes one reading against rec, which must be older than the table.
func (d *Driver) see(name string, rec *record, table table) (sight, error) {
	info, err := os.Lstat(d.place.box(name))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return sight{}, ioError("look at the directory of box "+name, err)
	case err == nil && !info.IsDir():
		return sight{phase: box.PhaseUnknown, evidence: d.place.box(name) + " is not a directory"}, nil
	}
	seen := sight{dir: err == nil}
	seen.alive, seen.leader = table.members(name, rec, nil)
	d.judge(name, rec, &seen)
	return seen, nil
}

// judge sets the phase.
func (d *Driver) judge(name string, rec *record, seen *sight) {
	say := func(phase box.Phase, since time.Time, format string, args ...any) {
		seen.phase, seen.since, seen.evidence = phase, since, fmt.Sprintf(format, args...)
	}
	count := len(seen.alive)
	switch {
	case rec == nil && !seen.dir && count == 0:
		say(box.PhaseGone, time.Time{}, "no record, no directory and no process of it on this machine")
	case rec == nil:
		say(box.PhaseUnknown, time.Time{}, "no record, but directory there: %t, processes: %d", seen.dir, count)
	case rec.Intent == intentDelete:
		say(box.PhaseFailed, time.Time{}, "deletion began and is not finished")
	case !seen.dir && rec.Made && count == 0:
		say(box.PhaseGone, time.Time{}, "its directory was removed, and no process of it is left")
	case !seen.dir && rec.Made:
		say(box.PhaseFailed, time.Time{}, "its directory was removed under %d running processes", count)
	case count > 0 && allStopped(seen.alive):
		seen.frozen = true
		say(box.PhaseSuspended, rec.SuspendedAt, "all %d processes are stopped", count)
	case seen.leader != nil && rec.Intent == intentSuspend:
		say(box.PhaseRunning, rec.StartedAt, "a suspend began and is not finished: %d processes are left", count)
	case seen.leader != nil:
		say(box.PhaseRunning, rec.StartedAt, "process %d runs; its log is %s", seen.leader.pid, filepath.Join(d.place.box(name), logFile))
	case count > 0 && rec.Intent == intentSuspend:
		say(box.PhaseRunning, rec.StartedAt, "a suspend began and is not finished: %d processes are left", count)
	case count > 0 && rec.Process == nil && d.place.busy(name):
		// Seen between its fork and its session: it leads none yet.
		say(box.PhaseStarting, time.Time{}, "it is being started")
	case count > 0:
		say(box.PhaseFailed, time.Time{}, "%s; %d processes are left", d.exit(name, rec), count)
	case rec.Intent == intentSuspend && rec.Kind == SuspendFreeze:
		say(box.PhaseSuspended, rec.SuspendedAt, "directory there; its frozen processes have ended: %s", d.exit(name, rec))
	case rec.Intent == intentSuspend:
		say(box.PhaseSuspended, rec.SuspendedAt, "no process of it left, directory there")
	case rec.Process == nil && d.place.busy(name):
		say(box.PhaseStarting, time.Time{}, "it is being started")
	default:
		say(box.PhaseFailed, time.Time{}, "%s", d.exit(name, rec))
	}
}

// exit says how boxd ended, as far as it is known.
func (d *Driver) exit(name string, rec *record) string {
	if rec.Process == nil {
		return "its process was not started"
	}
	d.mu.Lock()
	c := d.children[name]
	d.mu.Unlock()
	if c != nil && c.process == *rec.Process {
		// It has ended, so its status is here in a moment; the bound is for a
		// parent that is itself being stopped.
		late := time.NewTimer(time.Second)
		defer late.Stop()
		select {
		case <-c.done:
			return c.reason
		case <-late.C:
		}
	}
	if boot, err := currentBoot(); err == nil && boot != rec.Process.Boot {
		return fmt.Sprintf("process %d ended when the machine was restarted", rec.Process.PID)
	}
	return fmt.Sprintf("process %d has ended; its worker was not there to see why", rec.Process.PID)
}

func allStopped(all []proc) bool {
	for _, p := range all {
		if !p.stopped {
			return false
		}
	}
	return true
}

// table is one reading of the process table.
type table struct {
	procs []proc
	boot  string
	boxes map[int]string // pid to the box that its environment names, if of this engine
	place place
}

func (d *Driver) scan() (table, error) {
	boot, err := currentBoot()
	if err != nil {
		return table{}, ioError("read the boot id", err)
	}
	engine, err := d.place.id()
	if err != nil {
		return table{}, err
	}
	procs, err := processTable()
	if err != nil {
		return table{}, ioError("read the process table", err)
	}
	t := table{procs: procs, boot: boot, boxes: map[int]string{}, place: d.place}
	for _, p := range procs {
		if p.dead || p.kernel {
			continue
		}
		if env := environOf(p.pid); env[markEngine] == engine && env[markBox] != "" {
			t.boxes[p.pid] = env[markBox]
		}
	}
	return t, nil
}

// members scans and returns the living processes of a box, and boxd among them.
func (d *Driver) members(name string, rec *record, known []proc) ([]proc, *proc, error) {
	t, err := d.scan()
	if err != nil {
		return nil, nil, err
	}
	all, boxd := t.members(name, rec, known)
	return all, boxd, nil
}

// members are the processes with the box's marker in their environment, boxd
// by its record, its session, those of known that still live, and all their
// descendants.
func (t table) members(name string, rec *record, known []proc) (all []proc, boxd *proc) {
	recorded := rec != nil && rec.Process != nil && rec.Process.Boot == t.boot
	recycled := false
	for i, p := range t.procs {
		switch {
		case !recorded || p.pid != rec.Process.PID:
		case p.start != rec.Process.Start:
			recycled = true
		case !p.dead:
			boxd = &t.procs[i]
		}
	}
	// A session keeps the number of its leader from being used again, so what
	// boxd left in its session can be told by it. Not for certain: all may have
	// ended, and another session of that number lost its leader as well. So a
	// process must also have its directory or its output in the box.
	orphaned := func(p proc) bool {
		return recorded && !recycled && boxd == nil && p.group == rec.Process.PID && within(p.pid, t.place.box(name))
	}
	self := os.Getpid()
	in := map[int]bool{}
	for _, p := range t.procs {
		session := boxd != nil && p.group == boxd.pid // which is boxd itself, too
		if p.pid != self && (session || listed(known, p) || t.boxes[p.pid] == name || orphaned(p)) {
			in[p.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range t.procs {
			if !in[p.pid] && in[p.ppid] && p.pid != self { // a worker's children are boxes of others
				in[p.pid], grown = true, true
			}
		}
	}
	for i, p := range t.procs {
		if !in[p.pid] || p.dead || p.pid <= 1 {
			continue
		}
		all = append(all, p)
		// Between a start and its record only the session that it leads tells.
		if boxd == nil && rec != nil && rec.Process == nil && t.boxes[p.pid] == name && p.group == p.pid {
			boxd = &t.procs[i]
		}
	}
	return all, boxd
}

func listed(known []proc, p proc) bool {
	for _, k := range known {
		if k.pid == p.pid && k.start == p.start {
			return true
		}
	}
	return false
}

func pids(all []proc) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = fmt.Sprint(p.pid)
	}
	return strings.Join(texts, ", ")
}
