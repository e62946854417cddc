package server_test

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
)

// fakeLayout is a reclaim.Layout that a test plays.
type fakeLayout struct {
	mu     sync.Mutex
	places []reclaim.Place
	calls  atomic.Int32
	// wait, when set, is called before each answer.
	wait func(context.Context)
}

func (l *fakeLayout) Places(ctx context.Context) ([]reclaim.Place, error) {
	l.calls.Add(1)
	if l.wait != nil {
		l.wait(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]reclaim.Place(nil), l.places...), ctx.Err()
}

func (l *fakeLayout) change(i int, f func(*reclaim.Place)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.places[i])
}

func (*fakeLayout) Hold(context.Context, string) (func(), string, error) { return func() {}, "", nil }
func (*fakeLayout) Archive(context.Context, string) error                { return nil }

// ignoring answers for git: node_modules is ignored everywhere.
type ignoring struct{}

func (ignoring) IgnoredDirs(_ context.Context, workTree string, _ ...string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(workTree, "node_modules"))
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	return found, err
}

// storageBox is a box with n conversations, each with a home, a workspace and a
// history, and its handler.
type storageBox struct {
	*server.Server
	root, url string
	layout    *fakeLayout
	rules     *retention.Rules
	client    *agentserver.Client
	asked     atomic.Int32 // of the agent-server
}

func conversationID(i int) string { return fmt.Sprintf("%032x", i) }

func newStorageBox(t *testing.T, n int, opts server.Options) *storageBox {
	t.Helper()
	b := &storageBox{root: t.TempDir(), layout: &fakeLayout{}}
	require.NoError(t, os.Mkdir(filepath.Join(b.root, "conversations"), 0o700))
	for i := 1; i <= n; i++ {
		_, err := agentservertest.WriteConversation(filepath.Join(b.root, "conversations"), agentservertest.Conversation{
			ID: conversationID(i), Events: []agentservertest.Event{{Text: "hello"}},
		})
		require.NoError(t, err)
		place := "runtime-data/" + conversationID(i)
		b.put(t, place+"/persistence/.npm/_cacache/index-v5/00/entry", 100)
		b.put(t, place+"/persistence/.npm/_cacache/content-v2/blob", 100_000*i)
		b.put(t, place+"/persistence/.config/settings", 10)
		b.put(t, place+"/workspace/repo/.git/HEAD", 20)
		b.put(t, place+"/workspace/repo/package.json", 2)
		b.put(t, place+"/workspace/repo/package-lock.json", 2)
		b.put(t, place+"/workspace/repo/src/main.js", 3000)
		b.put(t, place+"/workspace/repo/node_modules/.package-lock.json", 2)
		b.put(t, place+"/workspace/repo/node_modules/left-pad/index.js", 50_000*i)
		b.layout.places = append(b.layout.places, reclaim.Place{
			Conversation: conversationID(i), Runtime: place, Home: place + "/persistence", Workspaces: []string{place + "/workspace"},
		})
	}
	reclaimer, err := reclaim.Open(b.root, reclaim.Options{
		Layouts: []reclaim.Layout{b.layout}, Repos: ignoring{}, Budget: reclaim.Budget{High: 0.8},
		Unsaved: func(context.Context, string) (string, error) { return "", nil },
	})
	require.NoError(t, err)
	t.Cleanup(reclaimer.Close)
	if !reclaimer.Supported() {
		t.Skip("this system cannot rule out links and mounts inside a tree")
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b.asked.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(upstream.Close)
	base, err := url.Parse(upstream.URL)
	require.NoError(t, err)
	opts.Root, opts.Key, opts.Reclaim, opts.Upstream = b.root, key, reclaimer, &behind{base: base}
	b.rules = retention.NewRules(b.root, reclaimer.WriteFile)
	opts.Keeping = &server.Keeping{Rules: b.rules, Keeper: retention.New(b.root, b.rules, retention.Options{})}
	b.Server = server.New(opts)
	b.SettleStorage(time.Minute)
	web := httptest.NewServer(b.Server)
	t.Cleanup(web.Close)
	b.url = web.URL
	b.client, err = agentserver.New(agentserver.Options{URL: b.url, SessionKey: key})
	require.NoError(t, err)
	return b
}

func (b *storageBox) put(t *testing.T, name string, size int) {
	t.Helper()
	name = filepath.Join(b.root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, make([]byte, size), 0o600))
}

func (b *storageBox) status(t *testing.T) box.StorageStatus {
	t.Helper()
	status, err := b.client.Storage(t.Context())
	require.NoError(t, err)
	return status
}

// allocated is what a directory takes, without some below.
func (b *storageBox) allocated(t *testing.T, dir string, without ...string) int64 {
	t.Helper()
	sum := int64(0)
	seen := map[uint64]bool{}
	require.NoError(t, filepath.WalkDir(filepath.Join(b.root, dir), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, skip := range without {
			if path == filepath.Join(b.root, skip) {
				return filepath.SkipDir
			}
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			sum += st.Blocks * 512
		}
		return nil
	}))
	return sum
}

func TestTheStatusTellsEachConversationByKindAndTier(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 3, server.Options{})
	for i := 1; i <= 3; i++ {
		require.NoError(t, b.rules.Set(conversationID(i), box.Retention{Mode: box.RetentionDays, Days: float64(i)}))
	}
	b.layout.change(1, func(p *reclaim.Place) { p.Busy = "it is running" })
	status := b.status(t)
	require.Empty(t, status.Errors)
	require.False(t, status.Partial)
	require.InDelta(t, 0.8, status.Disk.Budget, 0)
	require.Positive(t, status.Disk.TotalBytes)
	require.Len(t, status.Conversations, 3)
	for i, one := range status.Conversations {
		id := conversationID(i + 1)
		place := "runtime-data/" + id
		npm, modules := place+"/persistence/.npm/_cacache", place+"/workspace/repo/node_modules"
		require.Equal(t, id, one.ID)
		require.Equal(t, 1, one.Events)
		require.Equal(t, "idle", one.State)
		require.Equal(t, b.allocated(t, "conversations/"+id), one.HistoryBytes)
		require.Equal(t, b.allocated(t, npm), one.CachesBytes)
		require.Equal(t, b.allocated(t, modules), one.DependenciesBytes)
		require.Equal(t, b.allocated(t, place, npm, modules), one.WorkspaceBytes)
		require.Equal(t, &box.Retention{Mode: box.RetentionDays, Days: float64(i + 1)}, one.Retention)
		if i == 1 {
			require.Equal(t, "it is running", one.Skipped)
			require.Equal(t, map[box.Tier]int64{box.TierCaches: 0, box.TierDependencies: 0, box.TierRuntime: 0}, one.ByTier)
			continue
		}
		require.Empty(t, one.Skipped)
		require.Equal(t, map[box.Tier]int64{
			box.TierCaches: one.CachesBytes, box.TierDependencies: one.CachesBytes + one.DependenciesBytes, box.TierRuntime: b.allocated(t, place),
		}, one.ByTier)
	}
	for _, tier := range []box.Tier{box.TierCaches, box.TierDependencies, box.TierRuntime} {
		plan, err := b.client.Reclaim(t.Context(), box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{tier}})
		require.NoError(t, err)
		require.Equal(t, plan.PlannedBytes, status.ByTier[tier], "what a pass of tier %s plans", tier)
	}
	require.Equal(t, status.ByTier[box.TierCaches], status.Reclaimable)
	left := map[string]box.ReclaimItem{}
	for _, item := range status.Left {
		left[item.Path] = item
	}
	npm := "runtime-data/" + conversationID(2) + "/persistence/.npm/_cacache"
	require.Equal(t, "it is running", left[npm].Skipped)
	require.Equal(t, b.allocated(t, npm), left[npm].Bytes)
	require.Equal(t, conversationID(2), left[npm].ConversationID)
	require.NotContains(t, left, "runtime-data/"+conversationID(1)+"/persistence/.npm/_cacache")
	require.Zero(t, b.asked.Load(), "the agent-server, whose idle clock must not move, is not asked")
}

func TestAnEmptyTrashHoldsNothing(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	require.Zero(t, b.status(t).TrashBytes, "its directory takes some, and stays")
	b.put(t, "aside/blob", 100_000)
	// What a process works in is not deleted meanwhile.
	inside := exec.CommandContext(t.Context(), "sleep", "300")
	inside.Dir = filepath.Join(b.root, "aside")
	require.NoError(t, inside.Start())
	require.NoError(t, os.Rename(inside.Dir, filepath.Join(b.root, reclaim.TrashDir, "aside")))
	require.Equal(t, b.allocated(t, reclaim.TrashDir+"/aside"), b.status(t).TrashBytes)
	require.NoError(t, inside.Process.Kill())
	_ = inside.Wait() // it was killed
}

func TestWhatMustStayIsFoundHoweverDeep(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	npm := "runtime-data/" + conversationID(1) + "/persistence/.npm/_cacache"
	modules := "runtime-data/" + conversationID(1) + "/workspace/repo/node_modules"
	b.put(t, modules+"/left-pad/lib/token", 10) // code
	require.Positive(t, b.status(t).ByTier[box.TierCaches])
	b.put(t, npm+"/content-v2/sha512/00/.env", 10)
	for range 2 { // the second time from memory
		status := b.status(t)
		require.Zero(t, status.ByTier[box.TierCaches])
		require.Equal(t, b.allocated(t, modules), status.ByTier[box.TierDependencies])
		require.Len(t, status.Left, 1)
		require.Equal(t, npm, status.Left[0].Path)
		require.Contains(t, status.Left[0].Skipped, "holds .env")
		require.Equal(t, b.allocated(t, npm), status.Left[0].Bytes)
	}
	plan, err := b.client.Reclaim(t.Context(), box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{box.TierDependencies}})
	require.NoError(t, err)
	require.Equal(t, plan.PlannedBytes, b.status(t).ByTier[box.TierDependencies])
}

func TestWhatIsNotRecognisedCountsAsWork(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	before := b.status(t).Conversations[0]
	odd := "runtime-data/" + conversationID(1) + "/persistence/.cache/pip"
	b.put(t, odd+"/notes.txt", 1<<20)
	after := b.status(t)
	require.Equal(t, before.CachesBytes, after.Conversations[0].CachesBytes)
	require.GreaterOrEqual(t, after.Conversations[0].WorkspaceBytes, before.WorkspaceBytes+1<<20)
	require.Equal(t, odd, after.Left[0].Path)
	require.Contains(t, after.Left[0].Skipped, "not recognised")
	b.put(t, odd+"/notes.txt", 3<<20)
	require.GreaterOrEqual(t, b.status(t).Conversations[0].WorkspaceBytes, before.WorkspaceBytes+3<<20, "and its growth is seen")
}

func TestTheStateIsThatOfNow(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	for _, state := range []string{"idle", "running", "finished"} {
		require.NoError(t, agentservertest.SetStatus(filepath.Join(b.root, "conversations"), conversationID(1), state))
		for range 2 {
			require.Equal(t, state, b.status(t).Conversations[0].State)
		}
	}
}

func TestLinksBetweenACacheAndItsUsersCountOnce(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	npm := "runtime-data/" + conversationID(1) + "/persistence/.npm/_cacache"
	modules := "runtime-data/" + conversationID(1) + "/workspace/repo/node_modules"
	b.put(t, npm+"/content-v2/shared", 1<<20)
	require.NoError(t, os.Link(filepath.Join(b.root, npm, "content-v2/shared"), filepath.Join(b.root, modules, "left-pad/shared")))
	status := b.status(t)
	one := status.Conversations[0]
	require.Equal(t, b.allocated(t, "runtime-data/"+conversationID(1)), one.CachesBytes+one.DependenciesBytes+one.WorkspaceBytes)
	require.Less(t, status.ByTier[box.TierCaches], int64(1<<20), "its other name keeps it")
	require.Greater(t, status.ByTier[box.TierDependencies], int64(1<<20))
	plan, err := b.client.Reclaim(t.Context(), box.ReclaimRequest{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, plan.PlannedBytes, status.ByTier[box.TierCaches])
}

func TestLastActiveIsTakenFromTheNewestSignOfUse(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		state, event, lease, dir, layout time.Duration // ages; 0 is not there
		want                             time.Duration
		from                             string
	}{
		"its state is newer than its events":    {state: time.Hour, event: 2 * time.Hour, want: time.Hour, from: "base_state.json"},
		"a long turn writes events only":        {state: 2 * time.Hour, event: time.Hour, want: time.Hour, from: "newest event"},
		"without events its state says":         {state: time.Hour, want: time.Hour, from: "base_state.json"},
		"without a state its events say":        {event: time.Hour, want: time.Hour, from: "newest event"},
		"a lease is renewed while it is idle":   {state: 3 * time.Hour, event: 2 * time.Hour, lease: time.Second, want: 2 * time.Hour, from: "newest event"},
		"deleting inside changes directories":   {state: 3 * time.Hour, event: 2 * time.Hour, dir: time.Second, want: 2 * time.Hour, from: "newest event"},
		"its layout knows of a later use":       {state: 3 * time.Hour, event: 2 * time.Hour, layout: time.Hour, want: time.Hour, from: "the registry"},
		"its layout knows of an earlier one":    {state: time.Hour, layout: 2 * time.Hour, want: time.Hour, from: "base_state.json"},
		"a time in the future counts as now":    {state: -time.Hour, event: time.Hour, want: 0, from: "base_state.json"},
		"without any sign it is the start":      {want: 0, from: ""},
		"an old sign counts, not the start":     {event: 1000 * time.Hour, want: 1000 * time.Hour, from: "newest event"},
		"a time of the layout alone is as good": {layout: time.Hour, want: time.Hour, from: "the registry"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Now() // a row may wait for minutes for its turn
			b := newStorageBox(t, 1, server.Options{})
			dir := filepath.Join(b.root, "conversations", conversationID(1))
			age := func(name string, by time.Duration) {
				at := now.Add(-by)
				if by == 0 {
					require.NoError(t, os.RemoveAll(name))
					return
				}
				if filepath.Base(name) == "owner_lease.json" {
					require.NoError(t, os.WriteFile(name, nil, 0o600))
				}
				require.NoError(t, os.Chtimes(name, at, at))
			}
			events, err := filepath.Glob(filepath.Join(dir, "events", "event-*"))
			require.NoError(t, err)
			require.Len(t, events, 1)
			age(events[0], row.event)
			age(filepath.Join(dir, "base_state.json"), row.state)
			age(filepath.Join(dir, "owner_lease.json"), row.lease)
			for _, name := range []string{filepath.Join(dir, "events"), dir, filepath.Join(b.root, "runtime-data", conversationID(1))} {
				if row.dir != 0 {
					age(name, row.dir)
				} else {
					age(name, 50*time.Hour)
				}
			}
			if row.layout != 0 {
				b.layout.change(0, func(p *reclaim.Place) { p.LastActive, p.LastActiveFrom = now.Add(-row.layout), "the registry" })
			}
			one := b.status(t).Conversations[0]
			require.Equal(t, row.from, one.LastActiveFrom)
			require.InDelta(t, row.want.Seconds(), one.IdleSeconds, 30)
		})
	}
}

func TestAnArchivedConversationSaysSinceWhen(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 3, server.Options{})
	b.layout.change(0, func(p *reclaim.Place) { p.Archived, p.ArchivedAt = true, time.Now().Add(-time.Hour) })
	b.layout.change(1, func(p *reclaim.Place) { p.Archived = true })
	status := b.status(t)
	require.Equal(t, "archived", status.Conversations[0].State)
	require.InDelta(t, 3600, status.Conversations[0].ArchivedSeconds, 30)
	require.Equal(t, "archived", status.Conversations[1].State)
	require.EqualValues(t, -1, status.Conversations[1].ArchivedSeconds)
	require.Equal(t, "idle", status.Conversations[2].State)
	require.Zero(t, status.Conversations[2].ArchivedSeconds)
}
