package digitalocean_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
)

// world is a fake, two workers, and what they know.
type world struct {
	t       *rapid.T
	p       place
	workers []*digitalocean.Driver
	refs    map[string]box.Ref
	proven  map[string]time.Duration // ids of proven deletions, and what was billed then
	stale   bool                     // a list may have been behind
	lag     time.Duration            // until a resume is shown
}

func (w *world) worker() *digitalocean.Driver {
	return w.workers[rapid.IntRange(0, len(w.workers)-1).Draw(w.t, "worker")]
}

func (w *world) billed(id string) time.Duration {
	s := w.p.statement(w.t, id)
	return s.Running + s.Paused
}

func (w *world) workspace() string {
	return rapid.SampledFrom([]string{"a", "b"}).Draw(w.t, "workspace")
}

// on runs act on a box that somebody has a ref of.
func (w *world) on(act func(d *digitalocean.Driver, ref box.Ref)) func() {
	return func() {
		if ref, ok := w.refs[w.workspace()]; ok {
			act(w.worker(), ref)
		}
	}
}

func (w *world) deleted(d *digitalocean.Driver, ref box.Ref) bool {
	seen, err := d.Delete(w.t.Context(), ref)
	if err != nil {
		return false
	}
	require.Equal(w.t, box.PhaseGone, seen.Phase)
	require.False(w.t, w.p.statement(w.t, ref.ID).Alive(), "deleted, and it is there")
	if _, before := w.proven[ref.ID]; !before {
		w.proven[ref.ID] = w.billed(ref.ID)
	}
	return true
}

func (w *world) create() {
	workspace := w.workspace()
	seen, err := w.worker().Create(w.t.Context(), createRequest(workspace))
	if err != nil {
		require.NotEqual(w.t, box.ClassAlreadyExists, box.ClassOf(err), "our own box is foreign: %v", err)
		return
	}
	alive := w.p.statement(w.t, seen.Ref.ID).Alive()
	switch seen.Phase {
	case box.PhaseGone, box.PhaseFailed, box.PhaseUnknown:
		require.False(w.t, alive)
	case box.PhaseStarting, box.PhaseRunning, box.PhaseSuspended:
		require.True(w.t, alive)
	}
	w.refs[workspace] = seen.Ref
}

func (w *world) list() {
	begun := w.p.service.Now() // a create that is late may land in the middle
	found, err := w.worker().List(w.t.Context(), installation)
	if err != nil {
		return
	}
	var ids []string
	for _, one := range found {
		require.NotEqual(w.t, "theirs", one.Observation.Ref.Name)
		ids = append(ids, one.Observation.Ref.ID)
	}
	for _, s := range w.p.service.Bill() {
		if s.Alive() && s.Name != "theirs" && !s.Created.After(begun) && !w.stale {
			require.Contains(w.t, ids, s.ID, "a box that is there is not listed")
		}
	}
}

// actions are what the workers do, what the service does by itself, and what goes
// wrong on the way.
func (w *world) actions() map[string]func() {
	ctx := w.t.Context()
	out := map[string]func(){
		"create": w.create,
		"list":   w.list,
		"observe": w.on(func(d *digitalocean.Driver, ref box.Ref) {
			seen, err := d.Observe(ctx, ref)
			require.NotEqual(w.t, box.ClassNotFound, box.ClassOf(err))
			if err == nil && seen.Phase == box.PhaseGone {
				require.False(w.t, w.p.statement(w.t, ref.ID).Alive(), "gone, and it is there")
			}
		}),
		"suspend": w.on(func(d *digitalocean.Driver, ref box.Ref) {
			// While a resume is not shown yet a session that runs is told to be paused:
			// nobody can tell the difference, and its idle timeout is the net.
			if _, err := d.Suspend(ctx, ref); err == nil && w.lag == 0 {
				require.Equal(w.t, "PAUSED", w.p.statement(w.t, ref.ID).Status)
			} else if box.ClassOf(err) == box.ClassNotFound {
				require.False(w.t, w.p.statement(w.t, ref.ID).Alive())
			}
		}),
		"resume": w.on(func(d *digitalocean.Driver, ref box.Ref) {
			if _, err := d.Resume(ctx, ref, driver.Start{}); err == nil {
				require.Contains(w.t, []string{"READY", "DETACHED", "PROVISIONING"}, w.p.statement(w.t, ref.ID).Status)
			} else if box.ClassOf(err) == box.ClassNotFound {
				require.False(w.t, w.p.statement(w.t, ref.ID).Alive())
			}
		}),
		"endpoint":           w.on(func(d *digitalocean.Driver, ref box.Ref) { _, _ = d.Endpoint(ctx, ref) }),
		"delete":             w.on(func(d *digitalocean.Driver, ref box.Ref) { w.deleted(d, ref) }),
		"the service pauses": w.on(func(_ *digitalocean.Driver, ref box.Ref) { w.p.service.PauseNow(ref.ID, "idle") }),
		"a trigger resumes":  w.on(func(_ *digitalocean.Driver, ref box.Ref) { w.p.service.ResumeNow(ref.ID, "trigger") }),
		"somebody destroys":  w.on(func(_ *digitalocean.Driver, ref box.Ref) { w.p.service.DestroyNow(ref.ID) }),
		"it fails":           w.on(func(_ *digitalocean.Driver, ref box.Ref) { w.p.service.FailNow(ref.ID) }),
		"a checkpoint holds": w.on(func(_ *digitalocean.Driver, ref box.Ref) { w.p.service.HoldDelete(ref.ID, 1) }),
		"time passes": func() {
			w.p.service.Advance(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 2 * time.Hour}).Draw(w.t, "time"))
		},
		"the money": func() {
			w.p.service.SetBalance(poor, rapid.SampledFrom([]float64{0, 25, 25}).Draw(w.t, "balance"))
		},
		"a list is behind": func() {
			w.stale = true
			w.p.service.Inject(fake.Fault{
				Op:    rapid.SampledFrom([]fake.Op{fake.OpList, fake.OpConfigSessions}).Draw(w.t, "list"),
				Stale: true, Times: rapid.IntRange(1, 3).Draw(w.t, "times"),
			})
		},
	}
	fault := func() { w.p.service.Inject(w.fault()) }
	out["a fault"], out["another fault"], out["a third fault"] = fault, fault, fault
	return out
}

// fault is an answer that is none, before or after the work, or whose work comes
// late. No answer is a lie.
func (w *world) fault() fake.Fault {
	f := rapid.SampledFrom([]fake.Fault{
		{Cut: true},
		{Cut: true, After: true},
		{Status: 503, After: true},
		{Status: 500, Late: time.Second},
		{Cut: true, Late: time.Hour},
		{Status: 500},
		{Status: 429},
		fake.BadGateway(""),
		fake.LoginPage(""),
	}).Draw(w.t, "fault")
	f.Op = rapid.SampledFrom([]fake.Op{
		"", fake.OpCreate, fake.OpCreate, fake.OpConfigCreate, fake.OpGet, fake.OpList, fake.OpPause, fake.OpResume, fake.OpDelete,
		fake.OpIngress, fake.OpConfigGet, fake.OpConfigList, fake.OpConfigDelete, fake.OpConfigSessions, fake.OpAccount, fake.OpCheckpointList,
	}).Draw(w.t, "op")
	f.Skip = rapid.IntRange(0, 2).Draw(w.t, "skip")
	f.Times = rapid.IntRange(1, 3).Draw(w.t, "times")
	return f
}

func (w *world) check() {
	audit := w.p.sane(w.t)
	require.NotContains(w.t, audit.Deleted, "theirs", "a wrong delete")
	for id, then := range w.proven {
		require.Equal(w.t, then, w.billed(id), "a box is paid for after its deletion was proven")
	}
}

// end deletes what the workers know and what a list shows, until nothing is there,
// as a pass over the boxes of an installation would.
func (w *world) end() {
	w.p.service.SetBalance(poor, 25)
	for range 30 {
		w.p.service.Advance(2 * time.Hour)
		d := w.workers[0]
		done := true
		for _, workspace := range []string{"a", "b"} {
			if ref, ok := w.refs[workspace]; ok {
				done = w.deleted(d, ref) && done
			}
		}
		found, err := d.List(w.t.Context(), installation)
		done = done && err == nil && len(found) == 0
		for _, one := range found {
			w.deleted(d, one.Observation.Ref)
		}
		if alive := w.p.service.Audit().Alive; done && len(alive) == 1 {
			require.Equal(w.t, []string{"theirs"}, alive)
			w.check()
			return
		}
	}
	w.t.Fatalf("after all deletions there is %v", w.p.service.Audit().Alive)
}

// TestWhateverHappensThereIsOneBox runs random lives of two boxes with two workers.
func TestWhateverHappensThereIsOneBox(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lag := rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "lag")
		p := newPlace(t, fake.Options{
			Tick:            200 * time.Millisecond,
			ForgetDestroyed: rapid.Bool().Draw(t, "forgets"),
			ResumeLag:       lag,
			Destroying:      rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "destroying"),
			HoldConfigs:     rapid.Bool().Draw(t, "holds"),
			DeleteAgain:     rapid.SampledFrom([]int{204, 404}).Draw(t, "again"),
		})
		p.stray(t, "theirs")
		w := &world{t: t, p: p, workers: []*digitalocean.Driver{p.new(t, installation), p.new(t, installation)}, refs: map[string]box.Ref{}, proven: map[string]time.Duration{}, lag: lag}
		actions := w.actions()
		var names []string
		for name := range actions {
			names = append(names, name)
		}
		slices.Sort(names)
		for range rapid.IntRange(5, 40-3*race.Slowness).Draw(t, "steps") {
			actions[rapid.SampledFrom(names).Draw(t, "step")]()
			w.check()
		}
		w.end()
	})
}
