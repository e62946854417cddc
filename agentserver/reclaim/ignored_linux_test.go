package reclaim_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// heldWorkspace is a box with one conversation that can be held, and its parts.
func heldWorkspace(t *testing.T, files []string, ignored ...string) (root, at string, places *layout, git *repos, r *reclaim.Reclaimer) {
	t.Helper()
	root, at, opts := workspace(t, files, ignored...)
	places, ok := opts.Layouts[0].(*layout)
	require.True(t, ok)
	git, ok = opts.Repos.(*repos)
	require.True(t, ok)
	return root, at, places, git, openWith(t, root, opts)
}

func packagesOfNPM() []string {
	return []string{"package.json", "package-lock.json", "node_modules/.package-lock.json", "node_modules/a/index.js"}
}

// Git is asked once more while the conversation is held: what was answered before
// may not be true any more.
func TestGitIsAskedAgainWhileTheConversationIsHeld(t *testing.T) {
	t.Parallel()
	tiers := []box.Tier{box.TierDependencies}
	for name, row := range map[string]struct {
		change func(t *testing.T, repo string, g *repos)
		want   string
	}{
		"git does not ignore it any more": {func(t *testing.T, repo string, _ *repos) {
			t.Helper()
			put(t, repo, ".gitignore", "")
		}, "git does not ignore it any more"},
		"git fails": {func(_ *testing.T, _ string, g *repos) { g.more = []string{"../.."} }, "no directory inside"},
		"the repository is gone": {func(t *testing.T, repo string, _ *repos) {
			t.Helper()
			require.NoError(t, os.RemoveAll(filepath.Join(repo, ".git")))
		}, "git does not ignore it any more"},
		"git does not answer in time": {func(_ *testing.T, _ string, g *repos) { g.hang = true }, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, at, places, git, r := heldWorkspace(t, packagesOfNPM(), "node_modules")
			places.held = func() { row.change(t, filepath.Join(root, at), git) }
			report := do(t, r, box.ReclaimRequest{Tiers: tiers})
			require.Contains(t, itemOf(t, report, at+"/node_modules").Skipped, row.want)
			require.FileExists(t, filepath.Join(root, at, "node_modules/a/index.js"))
		})
	}
}

func TestWhileAConversationIsHeldGitIsAskedAboutItsItemsAlone(t *testing.T) {
	t.Parallel()
	files := append(packagesOfNPM(), ".next/cache/a", ".next/server/page.js", "other/x")
	root, at, _, git, r := heldWorkspace(t, files, "node_modules", ".next", "other")
	report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
	require.Equal(t, []string{at + "/.next/cache", at + "/node_modules"}, taken(report))
	require.Len(t, git.asked, 1)
	slices.Sort(git.asked[0])
	require.Equal(t, []string{".next", "node_modules"}, git.asked[0], "by the names that git gave them")
	require.DirExists(t, filepath.Join(root, at, "other"))
}

// A repository that ignores another one as a whole says nothing of what that one
// tracks.
func TestTheInnermostRepositorySaysWhatIsIgnored(t *testing.T) {
	t.Parallel()
	root, at, _, _, r := heldWorkspace(t, packagesOfNPM(), "node_modules")
	put(t, root, "workspace/.git/HEAD", "ref: refs/heads/main")
	put(t, root, "workspace/.gitignore", filepath.Base(at))
	tiers := []box.Tier{box.TierDependencies}
	plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: tiers})
	require.Equal(t, []string{at + "/node_modules"}, taken(plan))
	put(t, root, at+"/.gitignore", "")
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.NotEmpty(t, itemOf(t, report, at+"/node_modules").Skipped)
	require.FileExists(t, filepath.Join(root, at, "node_modules/a/index.js"))
}

// With the real git: a file in what was ignored becomes tracked in the moment
// before the conversation is held.
func TestAFileThatIsAddedToTheIndexInTheLastMomentStays(t *testing.T) {
	t.Parallel()
	for name, change := range map[string][]string{
		"a file is tracked":                {"add", "-f", "node_modules/a/index.js"},
		"a file is meant to be tracked":    {"add", "-f", "-N", "node_modules/a/index.js"},
		"nothing happens, so that it goes": {"status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, at, opts := workspace(t, packagesOfNPM(), "node_modules")
			dir := filepath.Join(root, at)
			require.NoError(t, os.RemoveAll(filepath.Join(dir, ".git")))
			run := func(args ...string) { agentservertest.Git(t, dir, args...) }

			run("init", "-q")
			run("add", ".gitignore", "package.json")
			places, ok := opts.Layouts[0].(*layout)
			require.True(t, ok)
			places.held = func() { run(change...) }
			git, err := repo.New(repo.Options{Scratch: []string{t.TempDir()}})
			require.NoError(t, err)
			opts.Repos = git
			report := do(t, openWith(t, root, opts), box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
			if change[0] == "status" {
				require.Equal(t, []string{at + "/node_modules"}, taken(report))
				require.NoDirExists(t, filepath.Join(dir, "node_modules"))
				return
			}
			require.Contains(t, itemOf(t, report, at+"/node_modules").Skipped, "tracks something in it")
			require.FileExists(t, filepath.Join(dir, "node_modules/a/index.js"))
		})
	}
}
