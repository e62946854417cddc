package reclaim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// layout is a reclaim.Layout in memory over directories of a test.
type layout struct {
	mu       sync.Mutex
	places   []reclaim.Place
	broken   error
	busy     map[string]string // what Hold says
	holdErr  error
	markErr  error
	archived []string
	// held, marked and released are called by Hold, Archive and the release.
	held, marked, released func()
}

func (l *layout) Places(context.Context) ([]reclaim.Place, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]reclaim.Place(nil), l.places...), l.broken
}

func (l *layout) Hold(_ context.Context, id string) (func(), string, error) {
	if l.holdErr != nil || l.busy[id] != "" {
		return nil, l.busy[id], l.holdErr
	}
	call(l.held)
	return func() { call(l.released) }, "", nil
}

func (l *layout) Archive(_ context.Context, id string) error {
	if l.markErr != nil {
		return l.markErr
	}
	call(l.marked)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.archived = append(l.archived, id)
	for i := range l.places {
		if l.places[i].Conversation == id {
			l.places[i].Archived = true
		}
	}
	return nil
}

func (l *layout) change(id string, f func(*reclaim.Place)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.places {
		if l.places[i].Conversation == id {
			f(&l.places[i])
		}
	}
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// repos answers for git: every directory of a work tree that a line of its
// .gitignore names. It tracks nothing.
type repos struct {
	mu  sync.Mutex
	err error
	// more are answered for every work tree.
	more []string
	// asked are the directories that it was asked about by name.
	asked [][]string
	// hang makes a question by name last until nobody waits for the answer.
	hang bool
}

func (g *repos) IgnoredDirs(ctx context.Context, workTree string, only ...string) ([]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(only) > 0 {
		g.asked = append(g.asked, only)
		if g.hang {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	text, err := os.ReadFile(filepath.Join(workTree, ".gitignore"))
	if err != nil || g.err != nil {
		return g.more, g.err
	}
	out := g.more
	for line := range strings.Lines(string(text)) {
		name := strings.TrimSpace(line)
		if info, err := os.Lstat(filepath.Join(workTree, name)); err == nil && info.IsDir() {
			out = append(out, name)
		}
	}
	return out, nil
}

// conversationID is the id of the i-th conversation of a test.
func conversationID(i int) string { return fmt.Sprintf("%032x", i+1) }

// used is when the conversations of a test were last used, the first longest ago.
func used(i int) time.Time { return time.Date(2026, 11, 1+i, 12, 0, 0, 0, time.UTC) }

const runtimes = "persistence/runtime-data"

// conversations fills a box with n conversations as the outer server lays them
// out, each with a home with a cache and a workspace with one checkout, and
// returns their layout.
func conversations(t *testing.T, root string, n int) *layout {
	t.Helper()
	out := &layout{busy: map[string]string{}}
	for i := range n {
		runtime := filepath.Join(runtimes, conversationID(i))
		npmBelow(t, root, runtime+"/persistence")
		checkout(t, root, runtime+"/workspace/repo")
		out.places = append(out.places, reclaim.Place{
			Conversation: conversationID(i), Home: filepath.Join(root, runtime, "persistence"),
			Workspaces: []string{filepath.Join(root, runtime, "workspace")}, Runtime: filepath.Join(root, runtime),
			LastActive: used(i), LastActiveFrom: "base_state.json",
		})
	}
	return out
}

// npmBelow fills a cache below a home.
func npmBelow(t *testing.T, root, home string) {
	t.Helper()
	put(t, root, home+"/.npm/_cacache/index-v5/00/entry", "x")
	put(t, root, home+"/.npm/_cacache/content-v2/sha512/00/blob", strings.Repeat("a", 100_000))
}

// checkout makes a work tree with installed packages and work.
func checkout(t *testing.T, root, at string) {
	t.Helper()
	put(t, root, at+"/.git/HEAD", "ref: refs/heads/main")
	put(t, root, at+"/.gitignore", "node_modules\n.venv\n.mypy_cache\nlocal\n")
	put(t, root, at+"/main.js", "work")
	put(t, root, at+"/local/notes", "work that git ignores")
	put(t, root, at+"/package.json", "{}")
	put(t, root, at+"/package-lock.json", "{}")
	put(t, root, at+"/node_modules/.package-lock.json", "{}")
	put(t, root, at+"/node_modules/a/index.js", strings.Repeat("b", 50_000))
	put(t, root, at+"/.mypy_cache/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
}

func saved(context.Context, string) (string, error) { return "", nil }

func openWith(t *testing.T, root string, opts reclaim.Options) *reclaim.Reclaimer {
	t.Helper()
	if opts.Repos == nil {
		opts.Repos = &repos{}
	}
	// Private, as a box is: into another one any user's process may have gone.
	require.NoError(t, os.Chmod(root, 0o700))
	r, err := reclaim.Open(root, opts)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func nodeModules(i int) string {
	return runtimes + "/" + conversationID(i) + "/workspace/repo/node_modules"
}

func cacheOf(i int) string { return runtimes + "/" + conversationID(i) + "/persistence/.npm/_cacache" }

func mypyOf(i int) string {
	return runtimes + "/" + conversationID(i) + "/workspace/repo/.mypy_cache"
}

func taken(report box.ReclaimReport) (paths []string) {
	for _, entry := range report.Items {
		if entry.Skipped == "" {
			paths = append(paths, entry.Path)
		}
	}
	return paths
}

func TestTiersAndConversationsLimitAPlan(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	conversationsAt := conversations(t, root, 2)
	own := npm(t, root, 1)
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{conversationsAt}, Unsaved: saved})
	dashed := "00000000-0000-0000-0000-000000000001"
	for name, row := range map[string]struct {
		request box.ReclaimRequest
		want    []string
	}{
		"no tier means caches, of all and of the box": {
			box.ReclaimRequest{}, []string{own, cacheOf(0), mypyOf(0), cacheOf(1), mypyOf(1)},
		},
		"a deeper tier includes the ones before": {
			box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}},
			[]string{own, cacheOf(0), mypyOf(0), nodeModules(0), cacheOf(1), mypyOf(1), nodeModules(1)},
		},
		"a conversation limits it to what is its own": {
			box.ReclaimRequest{ConversationIDs: []string{conversationID(1)}}, []string{cacheOf(1), mypyOf(1)},
		},
		"a dashed id is the same conversation": {
			box.ReclaimRequest{ConversationIDs: []string{dashed}, Tiers: []box.Tier{box.TierDependencies, box.TierCaches}},
			[]string{cacheOf(0), mypyOf(0), nodeModules(0)},
		},
		"a runtime goes as a whole": {
			box.ReclaimRequest{ConversationIDs: []string{conversationID(0)}, Tiers: []box.Tier{box.TierRuntime}},
			[]string{filepath.Join(runtimes, conversationID(0))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.request.DryRun = true
			plan := do(t, r, row.request)
			require.ElementsMatch(t, row.want, taken(plan))
			for _, entry := range plan.Items {
				for i := range 2 {
					if strings.Contains(entry.Path, conversationID(i)) {
						require.Equal(t, conversationID(i), entry.ConversationID)
					}
				}
			}
		})
	}
}

func TestAPassTakesDependenciesAndLeavesWork(t *testing.T) {
	t.Parallel()
	root := inMemory(t)
	places := conversations(t, root, 1)
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}})
	report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
	require.Equal(t, report.PlannedBytes, report.RemovedBytes)
	require.Greater(t, report.RemovedBytes, int64(150_000))
	entry := itemOf(t, report, nodeModules(0))
	require.Equal(t, box.TierDependencies, entry.Tier)
	require.Equal(t, "holds .package-lock.json; beside package.json, package-lock.json", entry.Evidence)
	require.NoDirExists(t, filepath.Join(root, nodeModules(0)))
	require.NoDirExists(t, filepath.Join(root, cacheOf(0)))
	repo := filepath.Join(root, runtimes, conversationID(0), "workspace/repo")
	for _, name := range []string{".git/HEAD", "main.js", "local/notes", "package-lock.json"} {
		require.FileExists(t, filepath.Join(repo, name))
	}
	require.Empty(t, taken(do(t, r, box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{box.TierDependencies}})))
}

func TestAConversationIsMovedWhileItIsHeldAndDeletedAfterwards(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	places := conversations(t, root, 1)
	var seen []string
	look := func(when string) func() {
		return func() {
			_, err := os.Lstat(filepath.Join(root, cacheOf(0)))
			trash, _ := os.ReadDir(filepath.Join(root, ".trash"))
			seen = append(seen, fmt.Sprintf("%s: in its place %v, in the trash %d", when, err == nil, len(trash)))
		}
	}
	places.held, places.released = look("held"), look("released")
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}})
	report := do(t, r, box.ReclaimRequest{})
	require.Len(t, taken(report), 2)
	require.Equal(t, []string{"held: in its place true, in the trash 0", "released: in its place false, in the trash 2"}, seen)
	trash, err := os.ReadDir(filepath.Join(root, ".trash"))
	require.NoError(t, err)
	require.Empty(t, trash)
}

func TestABusyConversationIsListedAndNeverTaken(t *testing.T) {
	t.Parallel()
	runs := func(l *layout) { l.change(conversationID(0), func(p *reclaim.Place) { p.Busy = "it runs" }) }
	for name, row := range map[string]struct {
		set  func(*layout)
		want string
		late bool // it is known only after the plan
	}{
		"its layout lists it as busy":         {runs, "it runs", false},
		"its layout lists it as busy by then": {runs, "it runs", true},
		"it cannot be held":                   {func(l *layout) { l.busy[conversationID(0)] = "its lease is not read" }, "its lease is not read", true},
		"holding it fails":                    {func(l *layout) { l.holdErr = errors.New("no locks") }, "cannot tell whether it is used: no locks", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			places := conversations(t, root, 2)
			if !row.late {
				row.set(places)
			}
			r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}})
			all := []box.Tier{box.TierDependencies}
			plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: all})
			for _, path := range []string{cacheOf(0), nodeModules(0)} {
				entry := itemOf(t, plan, path)
				require.Positive(t, entry.Bytes, "it is measured all the same")
				require.Equal(t, row.late, entry.Skipped == "")
			}
			if row.late {
				row.set(places)
			}
			report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			for _, path := range []string{cacheOf(0), nodeModules(0)} {
				require.Equal(t, row.want, itemOf(t, report, path).Skipped)
				require.DirExists(t, filepath.Join(root, path))
			}
			if places.holdErr == nil {
				require.NoDirExists(t, filepath.Join(root, nodeModules(1)), "the other one goes")
			}
		})
	}
}

// worker starts a process in a directory, ended with the test.
func worker(t *testing.T, dir string, env ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sleep", "600")
	command.Dir, command.Env = dir, append(os.Environ(), env...)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	return command
}

func TestScenario87DependenciesStayWhileSomebodyWorksInTheWorkspace(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T, workspace, elsewhere string){
		"a process works there": func(t *testing.T, workspace, _ string) {
			t.Helper()
			worker(t, filepath.Join(workspace, "repo/local"))
		},
		"the environment of a process names an environment of the workspace": func(t *testing.T, workspace, elsewhere string) {
			t.Helper()
			worker(t, elsewhere, "VIRTUAL_ENV="+workspace+"/repo/.venv")
		},
		"the command line of a process names a file of the workspace": func(t *testing.T, workspace, elsewhere string) {
			t.Helper()
			command := exec.CommandContext(t.Context(), "sleep", "600")
			command.Args = []string{workspace + "/repo/.venv/bin/python", "600"}
			command.Dir = elsewhere
			require.NoError(t, command.Start())
			t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			places := conversations(t, root, 2)
			start(t, filepath.Join(root, runtimes, conversationID(0), "workspace"), t.TempDir())
			r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}})
			report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
			for _, path := range []string{nodeModules(0), mypyOf(0)} {
				require.Contains(t, itemOf(t, report, path).Skipped, "in use by process")
				require.DirExists(t, filepath.Join(root, path))
			}
			require.NoDirExists(t, filepath.Join(root, cacheOf(0)), "its home is another matter")
			require.NoDirExists(t, filepath.Join(root, nodeModules(1)), "and so is another conversation")
		})
	}
}

func TestPathsOutsideTheBoxAreNotTouched(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	npmBelow(t, outside, "home")
	checkout(t, outside, "ws/repo")
	npmBelow(t, root, "conversations/x")
	put(t, root, "persistence/settings.json", "{}")
	for name, place := range map[string]reclaim.Place{
		"a home elsewhere":                {Home: outside + "/home"},
		"a home that climbs":              {Home: root + "/../" + filepath.Base(outside) + "/home"},
		"a workspace elsewhere":           {Workspaces: []string{outside + "/ws"}},
		"a home among the histories":      {Home: root + "/conversations/x"},
		"a runtime that is all of them":   {Runtime: root + "/persistence"},
		"a runtime that is the box":       {Runtime: root},
		"a runtime that is the histories": {Runtime: root + "/conversations/x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			place.Conversation, place.Archived = conversationID(0), true
			r, err := reclaim.Open(root, reclaim.Options{Layouts: []reclaim.Layout{&layout{places: []reclaim.Place{place}}}, Repos: &repos{}, Unsaved: saved})
			require.NoError(t, err)
			defer r.Close()
			report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversationID(0)}})
			require.Empty(t, taken(report))
			for _, entry := range report.Items {
				require.Contains(t, entry.Skipped, "its layout names")
			}
			require.FileExists(t, filepath.Join(root, "persistence/settings.json"))
			require.FileExists(t, filepath.Join(outside, "home/.npm/_cacache/index-v5/00/entry"))
			require.DirExists(t, filepath.Join(outside, "ws/repo/node_modules"))
			require.DirExists(t, filepath.Join(root, "conversations/x/.npm"))
		})
	}
}
