package drivertest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/openhands/boxkeeper/box"
)

// wireCase is a case that is no fault of single requests.
type wireCase struct {
	name string
	run  func(t *testing.T, w wired)
}

func wireCases() []wireCase {
	return []wireCase{
		{"a look-up that lags behind a lost create makes no second box", testLagCreate},
		{"a list that lags behind a create proves nothing", testLagList},
		{"a list that lags behind a delete proves nothing", testLagDelete},
		{"a list of several pages is whole", testPages},
		{"a list whose pages repeat themselves ends", testPagesLoop},
		{"an id that is no part of a path reaches no other box", testPathID},
		{"an answer about another box is not believed", testOtherBox},
		{"a context that is over without a signal changes nothing more", testStalled},
	}
}

// testLagCreate: the box is there, and the reads before the next create do not
// show it yet.
func testLagCreate(t *testing.T, w wired) {
	const workspace = "lagging"
	name := box.Identity{Installation: ours, Workspace: workspace, Epoch: 1}.Name()
	// What a create reads before it writes, taken while there is nothing.
	w.line.tape(true)
	w.line.snap(1, false, func(x *exchange) {
		if reads(x.r) {
			w.line.keep(x)
			return
		}
		refused(503, nil, kindHTML, page("Busy"))(x)
	})
	if _, err := w.create(t.Context(), workspace); err == nil {
		t.Fatal("create succeeded though nothing was written")
	}
	w.line.mend()
	old := w.line.tape(false)
	lost := brokenLines()[0]
	serve, _ := lost.make(t, w.line)
	for k := 1; w.wire.Boxes(t, name) == 0 && k < 10; k++ {
		w.line.snap(k, true, serve)
		_, _ = w.create(t.Context(), workspace) // the answer is lost, whatever it was
		w.line.mend()
	}
	w.line.lag(old)
	for range five {
		if _, err := w.create(t.Context(), workspace); err != nil && !passing(w.class(err)) && w.class(err) != box.ClassUnknown {
			t.Errorf("create while the look-up lags: class %s (%v)", w.class(err), err)
		}
	}
	w.line.lag(nil)
	stepOf("create").again(t, w.bench, workspace, box.Ref{})
	if got := w.wire.Boxes(t, name); got != 1 {
		t.Errorf("%d boxes of one name in the end, want 1: the look-up lagged for %d creates, longer than any wait; the service has to refuse the second box, by a unique name or a key of idempotency (driver.Driver, Create)", got, five)
	}
}

// keep answers a reading request and tapes the answer.
func (l *Line) keep(x *exchange) {
	rec := x.answer()
	l.mu.Lock()
	if l.record != nil {
		l.record[x.r.Method+" "+x.r.URL.RequestURI()] = rec
	}
	l.mu.Unlock()
	x.pass(rec)
}

// taped lists and observes once, and returns what the service answered.
func (w wired) taped(t *testing.T, refs ...box.Ref) map[string]*httptest.ResponseRecorder {
	t.Helper()
	w.line.tape(true)
	defer w.line.tape(false)
	if w.row.List == box.Yes {
		w.names(t)
	}
	for _, ref := range refs {
		w.phase(t, ref)
	}
	return w.line.tape(false)
}

func testLagList(t *testing.T, w wired) {
	old := w.taped(t)
	ref := running(t, w.bench, "new")
	w.line.lag(old)
	for range five {
		seen, err := w.observe(t.Context(), ref)
		if err == nil && seen.Phase == box.PhaseGone {
			t.Fatal("a box that is there is gone by a list that lags")
		}
		if _, err := w.remove(t.Context(), box.Ref{
			ID: ref.ID, Name: ref.Name, Epoch: ref.Epoch, Fingerprint: ref.Fingerprint + "-elsewhere",
		}); err == nil {
			t.Fatal("a delete in another place succeeded")
		}
	}
	if seen, err := w.create(t.Context(), "new"); err == nil && seen.Ref != ref {
		t.Errorf("create while the list lags answered %+v, want %+v", seen.Ref, ref)
	}
	w.line.lag(nil)
	if got := w.wire.Boxes(t, ref.Name); got != 1 {
		t.Errorf("%d boxes of one name, want 1: a create that does not find the box in a list made another one", got)
	}
	one(t, w.bench, ref)
}

func testLagDelete(t *testing.T, w wired) {
	ref := running(t, w.bench, "old")
	kept := running(t, w.bench, "kept")
	old := w.taped(t)
	w.deleted(t, ref)
	w.line.lag(old)
	for range five {
		seen, err := w.remove(t.Context(), ref)
		if err != nil && !passing(w.class(err)) && w.class(err) != box.ClassUnknown {
			t.Errorf("delete of what a list still shows: class %s (%v)", w.class(err), err)
		}
		if err == nil && seen.Phase != box.PhaseGone {
			t.Errorf("delete answered %q with no error", seen.Phase)
		}
		if _, err := w.resume(t.Context(), ref); w.row.Suspend == box.Yes && err == nil {
			t.Error("a gone box that a list still shows was resumed")
		}
	}
	w.line.lag(nil)
	w.deleted(t, ref)
	if got := w.wire.Boxes(t, ref.Name); got != 0 {
		t.Errorf("%d boxes after the delete", got)
	}
	one(t, w.bench, kept)
}

// pages makes more boxes than fit on a page.
func pages(t *testing.T, w wired) (want []string) {
	t.Helper()
	paged, ok := w.wire.(Paged)
	if w.row.List != box.Yes || !ok || paged.PageSize() == 0 {
		t.Log("nothing to check: no list, or none in pages")
		return nil
	}
	for i := range 2*paged.PageSize() + 1 {
		want = append(want, w.made(t, fmt.Sprintf("page-%02d", i)).Name)
	}
	slices.Sort(want)
	return want
}

func testPages(t *testing.T, w wired) {
	want := pages(t, w)
	if want == nil {
		return
	}
	w.line.open()
	got := w.names(t)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("boxes %v, want %v", got, want)
	}
	n := w.line.requests()
	for _, f := range faults() {
		for k := 1; k <= n; k++ {
			if k < n && (f.head || f.few && k > 1) {
				continue
			}
			serve, _ := f.make(t, w.line)
			broken := w.line.snap(k, false, serve)
			said, err := w.endure(t, stepOf("list"), f, broken, "", box.Ref{})
			hits, _ := w.line.mend()
			if err == nil && hits > 0 && len(said.list) != len(want) {
				t.Errorf("%s at request %d: a list of %d boxes of %d is no error", f.name, k, len(said.list), len(want))
			}
		}
	}
}

func testPagesLoop(t *testing.T, w wired) {
	want := pages(t, w)
	if want == nil {
		return
	}
	const many = 200
	var first atomic.Pointer[httptest.ResponseRecorder]
	var asked atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.line.open()
	w.names(t)
	// The first page is the answer to every page: each has the same next one.
	var page string
	for k := w.line.requests(); k > 0 && page == ""; k-- {
		page = w.firstPage(t, k)
	}
	if page == "" {
		t.Fatal("no request of a list is made twice with another query")
	}
	w.line.snap(1, false, func(x *exchange) {
		if x.r.URL.Path != page {
			x.pass(x.answer())
			return
		}
		if asked.Add(1) > many {
			cancel()
		}
		if first.Load() == nil {
			first.Store(x.answer())
		}
		x.pass(first.Load())
	})
	found, err := w.list(ctx)
	w.line.mend()
	switch {
	case asked.Load() > many:
		t.Errorf("more than %d pages were read of a list that repeats itself; end with an error", many)
	case err == nil:
		t.Errorf("a list that repeats itself is %d boxes and no error", len(found))
	case !slices.Contains(unclear(), w.class(err)):
		t.Errorf("class %q (%v), want %v", w.class(err), err, unclear())
	}
}

// firstPage returns the path of request k of a list if an earlier one has the
// same path, and so is a page of the same list.
func (w wired) firstPage(t *testing.T, k int) string {
	t.Helper()
	var paths []string
	w.line.snap(1, false, func(x *exchange) {
		paths = append(paths, x.r.URL.Path)
		x.pass(x.answer())
	})
	w.names(t)
	w.line.mend()
	if k <= len(paths) && slices.Contains(paths[:k-1], paths[k-1]) {
		return paths[k-1]
	}
	return ""
}

func testPathID(t *testing.T, w wired) {
	mine, other := running(t, w.bench, "mine"), running(t, w.bench, "other")
	if w.row.List == box.Yes {
		w.names(t)
	}
	for _, id := range []string{"../x/" + other.ID, mine.ID + "/../" + other.ID, other.ID + "?x=" + mine.ID, other.ID + "#", other.ID + "/", "./" + other.ID, ".", "..", "%2e%2e", " ", mine.ID + "\n", "\x00"} {
		odd := mine
		odd.ID = id
		if seen, err := w.observe(t.Context(), odd); err == nil && seen.Phase != box.PhaseGone && seen.Phase != box.PhaseUnknown {
			t.Errorf("id %q is said to be %q", id, seen.Phase)
		}
		if at, err := w.endpoint(t.Context(), odd); err == nil {
			t.Errorf("id %q has the address %q", id, at.URL)
		}
		for what, call := range mutations(t, w.bench) {
			if call(odd) == nil && what != "delete" {
				t.Errorf("%s of id %q succeeded", what, id)
			}
		}
		if got := w.phase(t, other); got != box.PhaseRunning {
			t.Fatalf("the other box is %q after calls for id %q", got, id)
		}
		if got := w.phase(t, mine); got != box.PhaseRunning {
			t.Fatalf("the box is %q after calls for id %q", got, id)
		}
	}
}

// swap makes a request that asks for one box ask for another one.
func swap(r *http.Request, from, to box.Ref) {
	replacer := strings.NewReplacer(from.ID, to.ID, from.Name, to.Name)
	r.URL.Path, r.URL.RawPath = replacer.Replace(r.URL.Path), ""
	r.URL.RawQuery = replacer.Replace(r.URL.RawQuery)
}

// testOtherBox: something in between mixes up answers.
func testOtherBox(t *testing.T, w wired) {
	mine, other := running(t, w.bench, "mine"), running(t, w.bench, "other")
	if w.row.Suspend == box.Yes {
		other = w.suspended(t, other)
	}
	w.line.snap(1, false, func(x *exchange) {
		swap(x.r, mine, other)
		x.pass(x.answer())
	})
	defer w.line.mend()
	seen, err := w.observe(t.Context(), mine)
	if err == nil && seen.Phase != box.PhaseUnknown && (seen.Ref != mine || w.row.Suspend == box.Yes && seen.Phase != box.PhaseRunning) {
		t.Errorf("observe answered %+v of an answer about %s", seen, other.Name)
	}
	if at, err := w.endpoint(t.Context(), mine); err == nil {
		w.line.mend()
		if real := w.runs(t, mine); real.URL != at.URL {
			t.Errorf("endpoint answered %q, which is another box's", at.URL)
		}
	}
}

// stalled is the context of a worker that stood still: once it is over it says
// so to whoever asks, and tells nobody.
type stalled struct {
	context.Context //nolint:containedctx // it is a context
	over            *atomic.Bool
}

func (stalled) Done() <-chan struct{} { return nil }

func (s stalled) Err() error {
	if s.over.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

// testStalled: the context is over when the first reading request is answered.
func testStalled(t *testing.T, w wired) {
	for _, s := range changingSteps() {
		if s.claimed != nil && s.claimed(w.row) != box.Yes {
			continue
		}
		workspace := "stalled-" + s.name
		ref := s.ready(t, w.bench, workspace)
		var over, late atomic.Bool
		w.line.snap(1, false, func(x *exchange) {
			if !reads(x.r) && over.Load() {
				late.Store(true)
			}
			rec := x.answer()
			over.Store(over.Load() || reads(x.r))
			x.pass(rec)
		})
		_, err := s.call(stalled{t.Context(), &over}, w.bench, workspace, ref)
		w.line.mend()
		if late.Load() {
			t.Errorf("%s sent a request that changes something although its context was over (%v); ask ctx.Err right before each (driver.Ended)", s.name, err)
		}
		s.again(t, w.bench, workspace, ref)
	}
}
