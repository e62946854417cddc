package worktree_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// through opens the reclaimer of a box whose worktrees it knows.
func (f *fixture) through(archived *[]string) *reclaim.Reclaimer {
	f.t.Helper()
	mark := f.mark
	f.mark = func(name string, content []byte) error {
		require.DirExists(f.t, f.tree, "the mark comes first")
		*archived = append(*archived, strings.TrimSuffix(filepath.Base(name), ".archived.json"))
		return mark(name, content)
	}
	r, err := reclaim.Open(f.box, reclaim.Options{Layouts: []reclaim.Layout{f.layout()}})
	require.NoError(f.t, err)
	f.t.Cleanup(r.Close)
	return r
}

func (f *fixture) ask(r *reclaim.Reclaimer, request box.ReclaimRequest) box.ReclaimReport {
	f.t.Helper()
	report, err := r.Do(f.t.Context(), request)
	require.NoError(f.t, err)
	return report
}

func TestAPassOfTierRuntimeRemovesAWorktreeByItsOwnRule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var archived []string
	r := f.through(&archived)
	request := box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversation}}
	plan := f.ask(r, request)
	require.Len(t, plan.Items, 1)
	require.Empty(t, plan.Items[0].Skipped)
	require.Equal(t, "worktrees/"+dashed+"/project", plan.Items[0].Path)
	require.Positive(t, plan.PlannedBytes)
	require.DirExists(t, f.tree)
	require.Empty(t, archived)

	report := f.ask(r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Empty(t, report.Items[0].Skipped)
	require.Equal(t, []string{conversation}, archived)
	require.NoDirExists(t, f.tree)
	require.NotContains(t, f.git(f.main, "worktree", "list"), dashed, "git does not list it any more")
	require.Positive(t, report.RemovedBytes, "it was deleted, not only moved")
	left, err := filepath.Glob(filepath.Join(f.box, reclaim.TrashDir, "*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, report, f.ask(r, box.ReclaimRequest{PlanID: plan.PlanID}), "a repeated apply answers the first report")
	require.Len(t, archived, 1)
}

func TestAWorktreeThatStaysIsNotMarked(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		before func(f *fixture) // the plan
		after  func(f *fixture)
		accept bool
		want   string
	}{
		"work is nowhere else":     {before: func(f *fixture) { f.write(filepath.Join(f.tree, "new.txt"), "x") }, want: "new.txt"},
		"work came after the plan": {after: func(f *fixture) { f.write(filepath.Join(f.tree, "new.txt"), "x") }, want: "new.txt"},
		"it is in use":             {after: func(f *fixture) { f.busy = "process 7 vim" }, want: "in use by process 7 vim"},
		"another one of the conversation stays": {before: func(f *fixture) {
			other := filepath.Join(filepath.Dir(f.tree), "other")
			f.git(f.main, "worktree", "add", "-q", "-b", "other", other)
			f.write(filepath.Join(other, "new.txt"), "x")
		}, want: "stays with worktrees/" + dashed + "/other"},
		"what is in doubt, though it was given up": {before: func(f *fixture) {
			f.git(f.main, "worktree", "lock", "--reason", "mine", f.tree)
		}, accept: true, want: "is locked in git: mine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var archived []string
			r := f.through(&archived)
			if row.before != nil {
				row.before(f)
			}
			plan := f.ask(r, box.ReclaimRequest{
				DryRun: true, Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversation}, AcceptUnsaved: row.accept,
			})
			if row.after != nil {
				row.after(f)
			}
			report := f.ask(r, box.ReclaimRequest{PlanID: plan.PlanID})
			for _, one := range report.Items {
				if one.Path == "worktrees/"+dashed+"/project" {
					require.Contains(t, one.Skipped, row.want)
				}
			}
			require.DirExists(t, f.tree)
			require.Contains(t, f.git(f.main, "worktree", "list"), dashed)
			require.Empty(t, archived)
		})
	}
}

func TestWhatIsGivenUpIsKeptElsewhereFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.commit(f.tree, "on no remote")
	f.git(f.tree, "checkout", "-q", "--detach")
	head := f.commit(f.tree, "on no branch")
	var archived []string
	r := f.through(&archived)
	ask := box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversation}}
	require.NotEmpty(t, f.ask(r, ask).Items[0].Skipped)
	ask.AcceptUnsaved = true
	require.Empty(t, f.ask(r, ask).Items[0].Skipped)
	require.NoDirExists(t, f.tree)
	require.Contains(t, f.git(f.main, "for-each-ref", "refs/openhands/rescue"), head)
	kept, err := filepath.Glob(filepath.Join(f.rescue, "*"))
	require.NoError(t, err)
	require.NotEmpty(t, kept)
	require.Equal(t, []string{conversation}, archived)
}

func TestWorkOfNobodyInParticularIsNotGivenUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.through(new([]string))
	for name, request := range map[string]box.ReclaimRequest{
		"no conversation": {DryRun: true, Tiers: []box.Tier{box.TierRuntime}, AcceptUnsaved: true},
		"another tier":    {ConversationIDs: []string{conversation}, AcceptUnsaved: true},
	} {
		_, err := r.Do(t.Context(), request)
		var refused *box.Error
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, "accept_unsaved", refused.Field, name)
	}
}
