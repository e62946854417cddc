package reclaim_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

func TestTierRuntimeMarksTheConversationFirst(t *testing.T) {
	t.Parallel()
	root := inMemory(t)
	places := conversations(t, root, 2)
	runtime := filepath.Join(root, runtimes, conversationID(0))
	places.marked = func() { require.FileExists(t, filepath.Join(runtime, "workspace/repo/main.js")) }
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}, Unsaved: saved})
	report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversationID(0)}})
	require.Equal(t, []string{filepath.Join(runtimes, conversationID(0))}, taken(report))
	require.Equal(t, []string{conversationID(0)}, places.archived)
	require.NoDirExists(t, runtime)
	require.DirExists(t, filepath.Join(root, runtimes, conversationID(1)))
	require.Equal(t, report.PlannedBytes, report.RemovedBytes, "what is inside counts once")
	require.Equal(t, report, do(t, r, box.ReclaimRequest{PlanID: report.PlanID}), "a repeated apply answers the first report")
	require.Len(t, places.archived, 1)
}

func TestARuntimeThatMustStayIsNotMarked(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		opts func(*reclaim.Options)
		set  func(t *testing.T, l *layout, root string) // between plan and apply
		want string
	}{
		"nobody can tell whether work is unsaved": {func(o *reclaim.Options) { o.Unsaved = nil }, nil, "nobody can tell"},
		"work is unsaved": {func(o *reclaim.Options) {
			o.Unsaved = func(context.Context, string) (string, error) { return "2 commits on no remote", nil }
		}, nil, "holds unsaved work: 2 commits on no remote"},
		"git does not answer": {func(o *reclaim.Options) {
			o.Unsaved = func(context.Context, string) (string, error) { return "", errors.New("git is gone") }
		}, nil, "cannot tell whether its workspace holds unsaved work: git is gone"},
		"it was used since the plan": {nil, func(_ *testing.T, l *layout, _ string) {
			l.change(conversationID(0), func(p *reclaim.Place) { p.LastActive = p.LastActive.Add(time.Second) })
		}, "changed since the plan"},
		"it was replaced since the plan": {nil, func(t *testing.T, _ *layout, root string) {
			t.Helper()
			at := filepath.Join(root, runtimes, conversationID(0))
			require.NoError(t, os.Rename(at, filepath.Join(root, "aside")))
			require.NoError(t, os.Mkdir(at, 0o755))
		}, "changed since the plan"},
		"the mark cannot be written": {nil, func(_ *testing.T, l *layout, _ string) { l.markErr = errors.New("disk full") }, "could not be marked"},
		"a process works in it": {nil, func(t *testing.T, _ *layout, root string) {
			t.Helper()
			worker(t, filepath.Join(root, runtimes, conversationID(0), "workspace"))
		}, "in use by process"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			places := conversations(t, root, 1)
			opts := reclaim.Options{Layouts: []reclaim.Layout{places}, Unsaved: saved}
			if row.opts != nil {
				row.opts(&opts)
			}
			r := openWith(t, root, opts)
			plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{box.TierRuntime}})
			if row.set != nil {
				require.Len(t, taken(plan), 1)
				row.set(t, places, root)
			}
			report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			require.Contains(t, itemOf(t, report, filepath.Join(runtimes, conversationID(0))).Skipped, row.want)
			require.DirExists(t, filepath.Join(root, runtimes, conversationID(0)))
			require.Empty(t, places.archived)
		})
	}
}

func TestWhatTwoConversationsShareStays(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	places := conversations(t, root, 2)
	places.places[1].Workspaces = []string{filepath.Join(places.places[0].Workspaces[0], "repo")}
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}})
	report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
	require.Contains(t, itemOf(t, report, nodeModules(0)).Skipped, "with another conversation")
	require.DirExists(t, filepath.Join(root, nodeModules(0)))
	alone := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}, ConversationIDs: []string{conversationID(1)}})
	require.Contains(t, itemOf(t, alone, nodeModules(0)).Skipped, "with another conversation", "a limit hides nothing")
	require.DirExists(t, filepath.Join(root, nodeModules(0)))
}

func TestALayoutThatCannotBeReadIsToldAndTheRestGoes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	places := conversations(t, root, 1)
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{&layout{broken: errors.New("no such thing")}, places}})
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	require.Len(t, taken(plan), 2)
	require.Contains(t, strings.Join(plan.Errors, "\n"), "no such thing")
	selection, err := r.Select(t.Context())
	require.NoError(t, err)
	require.Contains(t, strings.Join(selection.Errors, "\n"), "no such thing")
	_, err = r.Do(t.Context(), box.ReclaimRequest{ConversationIDs: []string{conversationID(7)}})
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "it cannot be told whether that one is there")
}

// A conversation is archived as a whole, whichever layout has its runtime.
func TestWhatAnotherLayoutKnowsKeepsARuntime(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		other reclaim.Place
		want  string
	}{
		"work in its worktree":             {reclaim.Place{Workspaces: []string{"worktrees/a/repo"}}, "holds unsaved work: 1 commit"},
		"its worktree is in use":           {reclaim.Place{Workspaces: []string{"worktrees/a/saved"}, Busy: "in use by cc"}, "in use by cc"},
		"nothing that would be lost there": {reclaim.Place{Workspaces: []string{"worktrees/a/saved"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := inMemory(t)
			places := conversations(t, root, 1)
			row.other.Conversation = conversationID(0)
			unsaved := func(_ context.Context, dir string) (string, error) {
				if filepath.Base(filepath.Dir(dir)) == "a" && filepath.Base(dir) == "repo" {
					return "1 commit", nil
				}
				return "", nil
			}
			r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places, &layout{places: []reclaim.Place{row.other}}}, Unsaved: unsaved})
			report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversationID(0)}})
			runtime := filepath.Join(runtimes, conversationID(0))
			if row.want == "" {
				require.Contains(t, taken(report), runtime)
				return
			}
			require.NotContains(t, taken(report), runtime)
			require.Empty(t, places.archived)
			require.DirExists(t, filepath.Join(root, runtime))
			for _, item := range report.Items {
				if item.Path == runtime {
					require.Equal(t, row.want, item.Skipped)
				}
			}
		})
	}
}
