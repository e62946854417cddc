package reclaim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// Each row is a directory of a home and what its tool puts there; without that it
// is not recognised.
func TestDirectoriesOfAHomeAreRecognisedBySigns(t *testing.T) {
	t.Parallel()
	for rule, row := range map[string]struct {
		place string
		signs []string
	}{
		"ccache-old":   {".ccache", []string{"0/a", "f/a"}},
		"node-gyp":     {".cache/node-gyp", []string{"22.3.0/include/node/common.gypi"}},
		"deno":         {".cache/deno", []string{"deps/https/a"}},
		"composer":     {".cache/composer", []string{"files/a/b.zip"}},
		"composer-old": {".composer/cache", []string{"repo/a"}},
		"coursier":     {".cache/coursier", []string{"v1/https/a.jar"}},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			place := "home/" + row.place
			put(t, root, place+"/unknown", "x")
			require.Empty(t, taken(do(t, open(t, root), box.ReclaimRequest{})), "a name alone is not enough")
			root = t.TempDir()
			for _, sign := range row.signs {
				put(t, root, place+"/"+sign, "x")
			}
			report := do(t, open(t, root), box.ReclaimRequest{})
			require.Equal(t, []string{place}, taken(report))
			require.Equal(t, rule, itemOf(t, report, place).Rule)
			require.NoDirExists(t, filepath.Join(root, place))
		})
	}
}

// What only its own tool may shrink is measured, so that a person sees what it
// would be worth, and stays.
func TestWhatOnlyItsToolMayShrinkIsMeasuredAndStays(t *testing.T) {
	t.Parallel()
	for rule, row := range map[string]struct{ place, sign, native string }{
		"poetry-envs":      {"home/.cache/pypoetry/virtualenvs", "app-1a2B3c4D-py3.12/pyvenv.cfg", "poetry env remove --all"},
		"pipenv-envs":      {"home/.local/share/virtualenvs", "app-1a2B3c4D/pyvenv.cfg", "pipenv --rm"},
		"hatch-envs":       {"home/.local/share/hatch/env", "virtual/app/x/pyvenv.cfg", "hatch env prune"},
		"puppeteer":        {"home/.cache/puppeteer", "chrome/linux-1/chrome", "npx puppeteer browsers clear"},
		"cypress":          {"home/.cache/Cypress", "13.1.0/Cypress/a", "npx cypress cache clear"},
		"conda-miniforge":  {"home/miniforge3/pkgs", "urls.txt", "conda clean -tp"},
		"conda-user":       {"home/.conda/pkgs", "urls.txt", "conda clean -tp"},
		"conda-micromamba": {"home/micromamba/pkgs", "urls.txt", "conda clean -tp"},
		"conda-mambaforge": {"home/mambaforge/pkgs", "urls.txt", "conda clean -tp"},
		"conda-anaconda":   {"home/anaconda3/pkgs", "urls.txt", "conda clean -tp"},
		"pnpm-store":       {"home/.local/share/pnpm/store", "v10/files/00/a", "pnpm store prune"},
		"pnpm-store-here":  {"workspace/repo/.pnpm-store", "v10/files/00/a", "pnpm store prune"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			root, _, opts := workspace(t, nil, ".pnpm-store")
			put(t, root, row.place+"/"+row.sign, "x")
			put(t, root, filepath.Dir(row.place+"/"+row.sign)+"/big", strings.Repeat("x", 1<<20))
			r := openWith(t, root, opts)
			for _, request := range []box.ReclaimRequest{{DryRun: true}, {Tiers: []box.Tier{box.TierDependencies}}} {
				report := do(t, r, request)
				require.Empty(t, taken(report))
				entry := itemOf(t, report, row.place)
				require.Equal(t, rule, entry.Rule)
				require.Equal(t, row.native, entry.Native)
				require.NotEmpty(t, entry.Evidence)
				require.NotEmpty(t, entry.Skipped)
				require.GreaterOrEqual(t, entry.Bytes, int64(1<<20))
				require.Zero(t, report.PlannedBytes)
				require.FileExists(t, filepath.Join(root, row.place, row.sign))
			}
		})
	}
}

func TestObjectsThatGitWouldPackAreToldAndStay(t *testing.T) {
	t.Parallel()
	fill := func(dir, form string, n int) func(t *testing.T, objects string) {
		return func(t *testing.T, objects string) {
			t.Helper()
			for i := range n {
				put(t, objects, dir+"/"+fmt.Sprintf(form, i), strings.Repeat("x", 5000))
			}
		}
	}
	for name, row := range map[string]struct {
		fill func(t *testing.T, objects string)
		want string
	}{
		"few loose objects":       {fill("17", "%038x", 27), ""},
		"many loose objects":      {fill("17", "%038x", 28), "holds about 7168 loose objects"},
		"some packs":              {fill("pack", "pack-%d.pack", 50), ""},
		"many packs":              {fill("pack", "pack-%d.pack", 51), "holds 51 packs"},
		"a pack that broke off":   {fill("pack", "tmp_pack_%d", 1), "holds packs that were not finished"},
		"objects with no packing": {fill("ab", "%038x", 100), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, repo, opts := workspace(t, nil)
			objects := repo + "/.git/objects"
			row.fill(t, filepath.Join(root, objects))
			r := openWith(t, root, opts)
			report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
			require.Empty(t, taken(report))
			if row.want == "" {
				require.Empty(t, report.Items)
				return
			}
			entry := itemOf(t, report, objects)
			require.Equal(t, row.want, entry.Evidence)
			require.Equal(t, "git gc", entry.Native)
			require.Contains(t, entry.Skipped, "history of a repository")
			require.Greater(t, entry.Bytes, int64(5000))
			left, err := os.ReadDir(filepath.Join(root, objects))
			require.NoError(t, err)
			require.Len(t, left, 1)
			selection, err := r.Select(t.Context())
			require.NoError(t, err)
			require.Len(t, selection.Items, 1)
			require.Equal(t, objects, selection.Items[0].Path)
		})
	}
}

// A clone without a working tree has no .git to be known by.
func TestABareRepositoryInAnInstalledDirectoryKeepsIt(t *testing.T) {
	t.Parallel()
	files := []string{"package.json", "package-lock.json", "node_modules/.package-lock.json", "node_modules/a/index.js"}
	bare := []string{"HEAD", "objects/info/packs", "refs/heads/main"}
	tiers := []box.Tier{box.TierDependencies}
	for _, at := range []string{"node_modules/a/b/mirror", "node_modules"} {
		for without := range append([]string{""}, bare...) {
			root, repo, opts := workspace(t, files, "node_modules")
			for i, name := range bare {
				if i+1 != without {
					put(t, root, repo+"/"+at+"/"+name, "x")
				}
			}
			report := do(t, openWith(t, root, opts), box.ReclaimRequest{Tiers: tiers})
			if without > 0 { // no repository
				require.Equal(t, []string{repo + "/node_modules"}, taken(report))
				continue
			}
			require.Contains(t, itemOf(t, report, repo+"/node_modules").Skipped, "holds a bare repository")
			require.FileExists(t, filepath.Join(root, repo, at, "HEAD"))
		}
	}
	// Put there after the plan, it is found in the trash and comes back.
	root, repo, opts := workspace(t, files, "node_modules")
	require.NoError(t, os.MkdirAll(filepath.Join(root, repo, "node_modules/a/b"), 0o755))
	r := openWith(t, root, opts)
	plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: tiers})
	for _, name := range bare {
		put(t, root, repo+"/node_modules/a/b/"+name, "x")
	}
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Contains(t, itemOf(t, report, repo+"/node_modules").Skipped, "holds a bare repository")
	require.FileExists(t, filepath.Join(root, repo, "node_modules/a/b/refs/heads/main"))
}
