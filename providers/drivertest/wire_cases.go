package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
	"github.com/openhands/boxkeeper/providers/driver"
)

// wired is a bench whose driver speaks over a line.
type wired struct {
	*bench
	wire Wire
	line *Line
}

// runWire runs the cases of the wire, over the bare driver: what the portable
// type adds is checked by the other cases.
func runWire(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	place := func(t *testing.T) (wired, bool) {
		t.Helper()
		h := newHarness(t)
		w, ok := h.(Wire)
		if !ok {
			return wired{}, false
		}
		under := &lossy{Driver: h.Driver(t, ours)}
		return wired{&bench{target: bare{under, ours}, h: h, wire: under, row: under.Capabilities()}, w, w.Line()}, true
	}
	first, ok := place(t)
	if !ok {
		t.Log("nothing to check: the harness has no line, so its driver talks no HTTP")
		return
	}
	for _, f := range slices.Concat(faults(), states(first.wire.StateFields()), times()) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range steps() {
				if s.claimed != nil && s.claimed(first.row) != box.Yes {
					continue
				}
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					w, _ := place(t)
					w.eachRequest(t, s, f)
				})
			}
		})
	}
	t.Run("fields that are missing or null", func(t *testing.T) {
		t.Parallel()
		for _, s := range steps() {
			if s.claimed != nil && s.claimed(first.row) != box.Yes {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				eachField(t, s, func() wired { w, _ := place(t); return w })
			})
		}
	})
	for _, c := range wireCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, _ := place(t)
			c.run(t, w)
		})
	}
}

// eachRequest breaks one request of a call after the other, each time with a
// box of its own where the call may change it.
func (w wired) eachRequest(t *testing.T, s step, f fault) {
	t.Helper()
	ref := s.ready(t, w.bench, "clean")
	w.line.open()
	if _, err := s.call(t.Context(), w.bench, "clean", ref); err != nil {
		t.Fatalf("%s over a line that is whole: %v", s.name, err)
	}
	n := w.line.requests()
	if n == 0 {
		t.Logf("nothing to check: %s sends nothing", s.name)
		return
	}
	const many = max(1, 5/race.Slowness) // which one it is matters to no race
	for k := 1; k <= n; k++ {
		if k > 1 && (f.head || k < n && (f.few || k > many)) {
			continue
		}
		_ = w.try(t, s, f, k, fmt.Sprintf("request-%d", k), ref)
	}
}

// eachField leaves out one field after the other, in all answers to a call.
func eachField(t *testing.T, s step, place func() wired) {
	t.Helper()
	w := place()
	fields := map[string]field{}
	const workspace, epoch = "clean", "1"
	ref := s.ready(t, w.bench, workspace)
	name := box.Identity{Installation: ours, Workspace: workspace, Epoch: 1}.Name()
	w.line.snap(1, false, fieldsOf(fields, []string{ours, workspace, epoch, name}))
	_, err := s.call(t.Context(), w.bench, workspace, ref)
	w.line.mend()
	if err != nil {
		t.Fatalf("%s over a line that is whole: %v", s.name, err)
	}
	var all []field
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		all = append(all, fields[name])
	}
	tries := 0
	try := func(f fault) error {
		// So many boxes are made in one place: there are a hundred tries, and who looks for
		// a box in a list reads all that are there.
		const boxes = 6
		if s.changes && tries%boxes == 0 {
			w = place()
		}
		tries++
		return w.try(t, s, f, 1, fmt.Sprintf("field-%d", tries), ref)
	}
	const many = 40
	if len(all) <= many {
		for i, of := range all {
			for _, null := range []bool{false, true} {
				if i%race.Slowness == 0 { // a field is read by one goroutine
					_ = try(without([]field{of}, null))
				}
			}
		}
		return
	}
	// A mark may be missing from a list; no other field may hide behind one.
	for _, mark := range []bool{false, true} {
		group := slices.DeleteFunc(slices.Clone(all), func(of field) bool { return of.mark != mark })
		for chunk := range slices.Chunk(group, many) {
			eachNeeded(chunk, try)
		}
	}
}

// eachNeeded finds the fields of a large answer that a driver needs, by leaving
// out many at once: a call that does well without them needs none of them. Those
// that are needed are left out one by one, and are null in turn.
func eachNeeded(fields []field, try func(fault) error) {
	switch err := try(without(fields, false)); {
	case err == nil:
	case len(fields) == 1:
		_ = try(without(fields, true))
	default:
		eachNeeded(fields[:len(fields)/2], try)
		eachNeeded(fields[len(fields)/2:], try)
	}
}

// try makes one call over a broken line, judges what it says, and then makes it
// again over one that is whole. A call that only reads is about the box of ref. It
// returns what the broken one ended with.
func (w wired) try(t *testing.T, s step, f fault, k int, workspace string, ref box.Ref) error {
	t.Helper()
	bad := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s, %s, request %d: %s", s.name, f.name, k, fmt.Sprintf(format, args...))
	}
	name := ref.Name
	if s.changes {
		name = box.Identity{Installation: ours, Workspace: workspace, Epoch: 1}.Name()
		ref = s.ready(t, w.bench, workspace)
	}
	serve, after := f.make(t, w.line)
	broken := w.line.snap(k, f.once, serve)
	said, err := w.endure(t, s, f, broken, workspace, ref)
	hits, carried := w.line.mend()
	if s.name == "create" && w.wire.Boxes(t, name) == 0 {
		carried = false // what was done was not the box
	}
	if problem := after(); problem != "" {
		bad("%s", problem)
	}
	if again := w.line.twice(); f.told && again != "" {
		bad("%s was sent again after it was refused; the engine retries, and no driver", again)
	}
	w.keepsSecrets(said, err, bad)
	if seen, _ := said.about(ref); seen.Age < 0 {
		bad("the phase began in %s; an age is never less than nothing", -seen.Age.Std())
	}
	switch {
	case err != nil && hits > 0:
		w.judge(s, f, err, carried, bad)
	case err == nil && hits > 0 && s.changes && !f.work && !f.once && (s.ends || !carried):
		bad("no error, and so a claim of %+v, though no request was answered", said.seen)
	case err == nil && hits > 0 && f.blind && (k == 1 || s.ends):
		if seen, any := said.about(ref); any && seen.Phase != box.PhaseUnknown && seen.Phase != box.PhaseGone && s.name != "adjust" {
			bad("it is said to be %q, which nothing says; answer %q or an error", seen.Phase, box.PhaseUnknown)
		}
	}
	if err == nil {
		if s.name == "create" && w.wire.Boxes(t, name) != 1 {
			bad("no error, and %d boxes", w.wire.Boxes(t, name))
		}
		at := ref
		if !said.seen.Ref.IsZero() {
			at = said.seen.Ref
		}
		_, told := said.about(ref)
		lacks := f.mark && s.name == "list" && !told
		if problem := s.right(said, ref, look(t, w.bench, at)); problem != "" && !lacks {
			bad("no error, and what it says is not so: %s", problem)
		}
	}
	clean := s.again(t, w.bench, workspace, ref)
	at := ref
	if !clean.seen.Ref.IsZero() {
		at = clean.seen.Ref
	}
	if problem := s.right(clean, at, look(t, w.bench, at)); problem != "" {
		bad("the next call, over a line that is whole: %s", problem)
	}
	if got := w.wire.Boxes(t, name); got != s.leaves {
		bad("%d boxes of the name in the end, want %d", got, s.leaves)
	}
	return err
}

// late is a context whose deadline comes when the test says so: when the request
// that is to be too slow has arrived. A real one comes before it on a slow machine,
// and is waited for on a quick one.
type late struct {
	value func(key any) any
	until time.Time
	over  chan struct{}
}

func overdue(parent context.Context) (ctx context.Context, end func()) {
	l := late{parent.Value, time.Now().Add(soon), make(chan struct{})}
	return l, sync.OnceFunc(func() { close(l.over) })
}

func (l late) Deadline() (time.Time, bool) { return l.until, true }
func (l late) Done() <-chan struct{}       { return l.over }
func (l late) Value(key any) any           { return l.value(key) }

func (l late) Err() error {
	select {
	case <-l.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// soon bounds a call whose caller gave up. It is far more than one needs: what
// fails it goes on for ever.
const soon = 5 * time.Second

// endure makes a call that must come back by itself, or soon after its context
// ended.
func (w wired) endure(t *testing.T, s step, f fault, broken *breakage, workspace string, ref box.Ref) (answer, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if f.ends == deadline {
		ctx, cancel = overdue(ctx)
		defer cancel()
	}
	type result struct {
		said answer
		err  error
	}
	done := make(chan result, 1)
	go func() {
		said, err := s.call(ctx, w.bench, workspace, ref)
		done <- result{said, err}
	}()
	held := broken.held
	bound := patience
	if f.ends != patient {
		bound = soon
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for {
		select {
		case <-held:
			if held = nil; f.ends != patient {
				cancel()
			}
		case r := <-done:
			return r.said, r.err
		case <-timer.C:
			w.line.mend()
			t.Fatalf("%s, %s: the call did not return within %s", s.name, f.name, bound)
		}
	}
}

// longest is how long the text of an error may be: it is kept in histories.
const longest = 2000

// judge looks at an error.
func (w wired) judge(s step, f fault, err error, carried bool, bad func(string, ...any)) {
	class, asked := w.wireClass(err)
	switch {
	case carried && s.changes && driver.Settled(class):
		bad("the class is %s, which tells the caller that nothing was done, but a request of this call was carried out (%v)", class, err)
	case class == box.ClassNotFound:
		bad("NotFound, which nothing proves (%v)", err)
	case f.want != nil && !slices.Contains(f.want, class) && (!carried || !slices.Contains(unclear(), class)):
		bad("class %q (%v), want %v", class, err, f.want)
	}
	if f.wait != nil && class == box.ClassExhausted || f.wait != nil && class == box.ClassUnavailable {
		if problem := f.wait(asked); problem != "" {
			bad("%s", problem)
		}
	}
	if asked < 0 {
		bad("the wait is %s", asked)
	}
	if n := len(err.Error()); n > longest {
		bad("the error is %d bytes long, more than %d: it repeats an answer", n, longest)
	}
}

func (w wired) wireClass(err error) (box.Class, time.Duration) {
	return w.bench.wire.Driver.ErrorClass(err)
}

// keepsSecrets looks for credentials in all that a call left.
func (w wired) keepsSecrets(said answer, err error, bad func(string, ...any)) {
	texts := []string{said.seen.Evidence, said.print, said.at.URL}
	for _, one := range said.list {
		texts = append(texts, one.Observation.Evidence)
	}
	for at := err; at != nil; at = errors.Unwrap(at) {
		texts = append(texts, at.Error(), fmt.Sprintf("%+v", at))
	}
	for _, secret := range w.line.credentials() {
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, secret) }) {
			bad("a secret is told: one that begins with %.4q", secret)
			return
		}
	}
}
