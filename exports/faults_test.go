package exports_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob/driver"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

var (
	faultSeed = flag.Uint64("faults.seed", 5, "where the random runs with faults come from")
	faultRuns = flag.Uint64("faults.runs", 1000/race.Slowness, "how many of them")
	faultRun  = flag.Uint64("faults.run", 0, "only this one; 0 for all")
)

var errFull = fmt.Errorf("the store is full: %w", syscall.ENOSPC)

// conversationsOnly leaves the workspace out, which has tests of its own.
type conversationsOnly struct{ exports.Source }

// holds says why stored zips are not the whole history of the box, or nothing.
// It reads them with the standard library, and what is stored as it lies there.
func (w *world) holds(zips map[string][]byte) error {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	for id, events := range w.events {
		data := zips[id]
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return fmt.Errorf("conversation %s: %w", id[28:], err)
		}
		want := map[string]string{id + "/meta.json": `{"id":"` + id + `"}`, id + "/base_state.json": `{"execution_status":"idle"}`}
		for i, e := range events {
			want[fmt.Sprintf("%s/events/event-%05d-%s.json", id, i, hex32(i))] = e
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				return fmt.Errorf("conversation %s: %w", id[28:], err)
			}
			content, err := io.ReadAll(r)
			if err != nil || string(content) != want[f.Name] {
				return fmt.Errorf("conversation %s: %s is not what the box had: %w", id[28:], f.Name, err)
			}
			delete(want, f.Name)
		}
		if len(want) > 0 {
			return fmt.Errorf("conversation %s lacks %d files", id[28:], len(want))
		}
	}
	return nil
}

// proves says why a receipt is false, or nothing.
func (w *world) proves(receipt box.Receipt) error {
	data := w.bucket.objects[receipt.Key]
	var m exports.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("the manifest: %w", err)
	}
	zips := map[string][]byte{}
	for _, c := range m.Conversations {
		zips[c.ID] = w.bucket.objects[c.Key]
	}
	if !receipt.Covers(1, box.HistoryDigest(w.marks())) {
		return errors.New("its digest is not that of the history")
	}
	return w.holds(zips)
}

// attempt exports once; struck are the kinds of faults that happened.
func (w *world) attempt(ctx context.Context, spool string, req exports.Request) (receipt box.Receipt, struck []int, err error) {
	s := w.bucket.store(exports.Options{SpoolDir: spool, Now: clock})
	c := w.client()
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.struck = nil
	receipt, err = s.Export(ctx, req, conversationsOnly{agentserver.History{Client: c}}, func(exports.Progress) {
		if w.strike(atProgress) != "" {
			cancel()
		}
	})
	synctest.Wait()
	return receipt, w.struck, err
}

// expected says whether an attempt must have succeeded with these faults.
func expected(struck []int) bool {
	mended := 0
	for _, kind := range struck {
		switch {
		case kinds[kind].harmless:
		case kinds[kind].mended:
			mended++
		default:
			return false
		}
	}
	return mended <= 2 // a download is tried three times
}

// tally is what happened in many runs.
type tally struct {
	mu       sync.Mutex
	struck   map[string]int
	receipts int
	refused  int
	naive    int // receipts of the naive exporter
	false    int // those of them that are
	by       map[string]int
}

// run exports until it succeeds, as the workflow does, and looks at every
// receipt and every refusal.
func (a *tally) run(t *testing.T, spool string, seed, run uint64) {
	t.Helper()
	w := newWorld(seed, run)
	defer w.close()
	what := w.String()
	say := func(form string, values ...any) {
		t.Helper()
		t.Errorf("run %d (%s): %s\nrepeat it with -faults.seed=%d -faults.run=%d", run, what, fmt.Sprintf(form, values...), seed, run)
	}
	req := exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a"}
	for try := 1; ; try++ {
		if try == 4 {
			w.mu.Lock()
			w.armed = nil // everything is well again
			w.mu.Unlock()
		}
		receipt, struck, err := w.attempt(t.Context(), spool, req)
		a.count(struck, err)
		switch {
		case err != nil && !receipt.IsZero():
			say("there is a receipt beside an error: %v", err)
		case err == nil && w.proves(receipt) != nil:
			say("the receipt is false: %v", w.proves(receipt))
		case err != nil && expected(struck):
			say("no receipt for a history that could be had whole: %v", err)
		}
		if err == nil && try > 1 || try == 4 {
			break
		}
		if err == nil {
			// Once more, on top of what is there.
			req.Attempt, req.Previous = "b", receipt
		}
	}
	if w.overlaps > 0 {
		say("%d downloads of a conversation overlapped another one", w.overlaps)
	}
}

func (a *tally) count(struck []int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range struck {
		a.struck[kinds[kind].name]++
	}
	if err == nil {
		a.receipts++
	} else {
		a.refused++
	}
}

// runNaive fetches, stores, and trusts every 200.
func (a *tally) runNaive(t *testing.T, seed, run uint64) {
	t.Helper()
	w := newWorld(seed, run)
	defer w.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	stored, err := w.fetchAndStore(ctx)
	synctest.Wait()
	if err != nil {
		return
	}
	zips := map[string][]byte{}
	for _, id := range stored {
		zips[id] = w.bucket.objects["naive/"+id]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.naive++
	if w.holds(zips) != nil {
		a.false++
		for _, kind := range w.struck {
			a.by[kinds[kind].name]++
		}
	}
}

func (w *world) fetchAndStore(ctx context.Context) (ids []string, err error) {
	get := func(path string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://box"+path, nil)
		if err != nil {
			return nil, err
		}
		res, err := w.http.Do(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return nil, errors.New(res.Status)
		}
		return io.ReadAll(res.Body)
	}
	for page, n := "", 0; ; n++ {
		text, err := get("/api/conversations/search?page_id=" + page)
		if err != nil {
			return nil, err
		}
		var list struct {
			Items []struct{ ID string }
			Next  string `json:"next_page_id"`
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, err
		}
		for _, item := range list.Items {
			ids = append(ids, item.ID)
		}
		if page = list.Next; page == "" || n > 20 {
			break
		}
	}
	for _, id := range ids {
		data, err := get("/api/file/download-trajectory/" + id)
		if err != nil {
			return nil, err
		}
		to, err := w.bucket.NewTypedWriter(ctx, "naive/"+id, "", &driver.WriterOptions{})
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(data); err != nil {
			return nil, err
		}
		if err := to.Close(); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// TestScenario95ReceiptsAreTrueWhateverGoesWrong exports from boxes at random.
// Up to three things go wrong with each, on the wire, in the box and in the
// store. No receipt is false, and none is refused for a history that could be
// had. An exporter that trusts what it is told fails at the same.
func TestScenario95ReceiptsAreTrueWhateverGoesWrong(t *testing.T) {
	t.Parallel()
	a := &tally{struck: map[string]int{}, by: map[string]int{}}
	const groups = 4
	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		for g := range uint64(groups) {
			t.Run(fmt.Sprint(g), func(t *testing.T) {
				t.Parallel()
				spool := t.TempDir()
				for run := g + 1; run <= *faultRuns && !t.Failed(); run += groups {
					if *faultRun != 0 && *faultRun != run {
						continue
					}
					synctest.Test(t, func(t *testing.T) { a.run(t, spool, *faultSeed, run) })
					synctest.Test(t, func(t *testing.T) { a.runNaive(t, *faultSeed, run) })
				}
			})
		}
	})
	t.Cleanup(func() { a.report(t) })
}

// report runs when all runs have ended.
func (a *tally) report(t *testing.T) {
	t.Helper()
	t.Logf("seed %d: %d exports succeeded, %d were refused; of %d receipts of the naive exporter %d are false", *faultSeed, a.receipts, a.refused, a.naive, a.false)
	var rows []string
	for _, kind := range kinds {
		rows = append(rows, fmt.Sprintf("%5d  %-13s  %-30s  in %d of the naive one's false receipts", a.struck[kind.name], kind.at, kind.name, a.by[kind.name]))
		if a.struck[kind.name] == 0 && *faultRun == 0 && *faultRuns >= 1000 {
			t.Errorf("%q never happened", kind.name)
		}
	}
	t.Logf("each fault, and how often it happened to ours:\n%s", strings.Join(rows, "\n"))
	if *faultRun == 0 && *faultRuns >= 1000 && (a.false < 100 || a.receipts < 1000) {
		t.Errorf("the runs show nothing: %d receipts, %d false ones of the naive exporter", a.receipts, a.false)
	}
}
