package server_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
)

// call is ask for goroutines of a test.
func (r *real) call(method, path, body string) (string, error) {
	request, err := http.NewRequest(method, r.url+path, strings.NewReader(body)) //nolint:noctx // a test
	if err != nil {
		return "", err
	}
	request.Header.Set("X-Session-API-Key", key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = errors.New(response.Status)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %.300s", method, path, err, text)
	}
	return string(text), nil
}

// load uses everything at once while twenty conversations get events, and then
// holds what boxd says against what is there. It is the last: it ends boxd.
func (r *real) load(t *testing.T, _ string) {
	t.Helper()
	const conversations, rounds = 20, 10
	ids := make([]string, conversations)
	for i := range ids {
		ids[i] = r.converse(t, 2)
	}
	cache := r.fillCache(t)
	descriptors := r.descriptors(t)

	var failed sync.Map
	var asked atomic.Int64
	var writers, lookers sync.WaitGroup
	written := make(chan struct{})
	fail := func(err error) {
		if err != nil {
			failed.LoadOrStore(err.Error(), true)
		}
	}
	for _, id := range ids {
		writers.Go(func() {
			for i := range rounds {
				_, err := r.call(http.MethodPost, "/api/conversations/"+id+"/events", fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":"under load %d"}],"run":false}`, i))
				fail(err)
			}
		})
	}
	for worker := range 4 {
		lookers.Go(func() {
			for i := worker; ; i++ {
				select {
				case <-written:
					if i >= worker+5 { // also where writing is quick
						return
					}
				default:
				}
				id := ids[i%len(ids)]
				for _, one := range []struct{ method, path, body string }{
					{"GET", "/api/storage", ""},
					{"POST", "/api/storage/reclaim", `{"dry_run":true}`},
					{"GET", "/api/boxd/use", ""},
					{"GET", "/api/conversations/search?limit=100", ""},
					{"GET", "/api/conversations/" + id + "/events/count", ""},
				} {
					_, err := r.call(one.method, one.path, one.body)
					fail(err)
				}
				packed, err := r.call(http.MethodGet, "/api/file/download-trajectory/"+id, "")
				fail(err)
				if err == nil {
					fail(gapless(packed))
				}
				asked.Add(6)
			}
		})
	}
	writers.Wait()
	close(written)
	lookers.Wait()
	failed.Range(func(what, _ any) bool {
		t.Error(what)
		return true
	})
	t.Logf("%d requests of ours while %d events were written", asked.Load(), conversations*rounds)

	// They are all loaded, and their caches go.
	c := connect(t, r.url)
	plan, err := c.Reclaim(t.Context(), box.ReclaimRequest{DryRun: true})
	require.NoError(t, err)
	require.Positive(t, plan.PlannedBytes)
	_, err = c.Reclaim(t.Context(), box.ReclaimRequest{PlanID: plan.PlanID})
	require.NoError(t, err)
	require.NoDirExists(t, cache)

	use, err := c.Use(t.Context())
	require.NoError(t, err)
	status, err := c.Storage(t.Context())
	require.NoError(t, err)
	onDisk := 0
	for _, id := range ids {
		hex := strings.ReplaceAll(id, "-", "")
		files, err := filepath.Glob(filepath.Join(r.root, "conversations", hex, "events", "event-*.json"))
		require.NoError(t, err)
		at := slices.IndexFunc(status.Conversations, func(one box.ConversationStorage) bool { return one.ID == hex })
		require.GreaterOrEqual(t, at, 0)
		require.Len(t, files, status.Conversations[at].Events)
		require.Positive(t, status.Conversations[at].HistoryBytes)
		require.GreaterOrEqual(t, len(files), 2+rounds)
		said := r.events(t, r.direct, id)
		packed := packedEvents(t, string(trajectory(t, c, id)))
		require.Equal(t, said, packed, "the export of %s, event by event", id)
	}
	for _, one := range status.Conversations {
		onDisk += one.Events
	}
	require.Equal(t, onDisk, use.Events)

	r.closeIdle(t)
	awaitFor(t, time.Minute, "descriptors to be given back", func() bool { return r.descriptors(t) <= descriptors+3 })
	proc, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Process.Pid))
	require.NoError(t, err)
	found := regexp.MustCompile(`Vm(HWM|RSS):\s+(\d+) kB`).FindAllStringSubmatch(string(proc), -1)
	require.Len(t, found, 2)
	for _, one := range found {
		kB, err := strconv.Atoi(one[2])
		require.NoError(t, err)
		t.Logf("boxd Vm%s: %.1f MiB", one[1], float64(kB)/1024)
		most := 128 << 10
		if race.Enabled {
			most *= 8 // the detector keeps several words for each of ours
		}
		require.Less(t, kB, most)
	}
	// A Go program says what it still does when it is asked to quit.
	require.NoError(t, r.Process.Signal(syscall.SIGQUIT))
	<-r.ended
	r.ended <- nil
	left := strings.Count(r.out.String(), "\ngoroutine ")
	t.Logf("%d goroutines and %d descriptors are left", left, descriptors)
	require.Positive(t, left)
	require.Less(t, left, 50) // far fewer than there were requests
}

// closeIdle gives back what this process keeps open to boxd.
func (r *real) closeIdle(t *testing.T) {
	t.Helper()
	transport, ok := http.DefaultTransport.(*http.Transport)
	require.True(t, ok)
	transport.CloseIdleConnections()
}

func (r *real) descriptors(t *testing.T) int {
	t.Helper()
	found, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.Process.Pid))
	require.NoError(t, err)
	return len(found)
}

// gapless reports a trajectory that lacks an event before one that it has.
func gapless(packed string) error {
	names, err := entriesOf(packed)
	if err != nil {
		return err
	}
	seen := map[int]bool{}
	most := -1
	for _, name := range names {
		if parts := regexp.MustCompile(`/events/event-(\d+)-`).FindStringSubmatch(name); parts != nil {
			n, err := strconv.Atoi(parts[1])
			if err != nil {
				return err
			}
			seen[n] = true
			most = max(most, n)
		}
	}
	if len(seen) != most+1 {
		return fmt.Errorf("a trajectory has %d events up to number %d", len(seen), most)
	}
	return nil
}
