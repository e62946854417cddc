package reclaim_test

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

const cacheTag = "Signature: 8a477f597d28d172789f06886806bc55"

// workspace is a box with one conversation whose checkout holds these files, and
// ignores these directories.
func workspace(t *testing.T, files []string, ignored ...string) (root, repo string, opts reclaim.Options) {
	t.Helper()
	root = t.TempDir()
	repo = "workspace/repo"
	put(t, root, repo+"/.git/HEAD", "ref: refs/heads/main")
	put(t, root, repo+"/.gitignore", strings.Join(ignored, "\n"))
	for _, name := range files {
		content := "x"
		if path.Base(name) == "CACHEDIR.TAG" {
			content = cacheTag
		}
		put(t, root, repo+"/"+name, content)
	}
	places := &layout{places: []reclaim.Place{{Conversation: conversationID(0), Workspaces: []string{filepath.Join(root, "workspace")}}}}
	return root, repo, reclaim.Options{Layouts: []reclaim.Layout{places}, Repos: &repos{}}
}

func TestDirectoriesOfAWorkspaceAreRecognisedBySigns(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		files   []string // the first ones are the signs: without any of them nothing goes
		signs   int
		ignored string
		rule    string
		want    string // what goes; empty means the ignored directory
		tier    box.Tier
	}{
		"packages of npm": {
			[]string{"node_modules/.package-lock.json", "package.json", "package-lock.json", "node_modules/a/index.js"},
			3, "node_modules", "node-modules", "", box.TierDependencies,
		},
		"packages of pnpm in a package of a monorepo": {
			[]string{"apps/web/node_modules/.modules.yaml", "apps/web/package.json", "apps/web/pnpm-lock.yaml"},
			3, "apps/web/node_modules", "node-modules", "", box.TierDependencies,
		},
		"an environment of uv": {
			[]string{".venv/pyvenv.cfg", "uv.lock", ".venv/CACHEDIR.TAG"}, 2, ".venv", "dot-venv", "", box.TierDependencies,
		},
		"an environment with requirements": {
			[]string{"venv/pyvenv.cfg", "requirements-dev.txt"}, 2, "venv", "venv", "", box.TierDependencies,
		},
		"environments of tox": {
			[]string{".tox/py312/pyvenv.cfg", "tox.ini"}, 2, ".tox", "tox", "", box.TierDependencies,
		},
		"environments of nox": {
			[]string{".nox/tests/pyvenv.cfg", "noxfile.py"}, 2, ".nox", "nox", "", box.TierDependencies,
		},
		"build output of cargo": {
			[]string{"target/CACHEDIR.TAG", "Cargo.toml", "target/debug/a"}, 2, "target", "cargo-target", "", box.TierDependencies,
		},
		"providers of terraform, not its pointer to the state": {
			[]string{".terraform/providers/registry.terraform.io/a", ".terraform.lock.hcl", ".terraform/terraform.tfstate"},
			2, ".terraform", "terraform", ".terraform/providers", box.TierDependencies,
		},
		"the cache of next, not what it built": {
			[]string{"package.json", ".next/cache/webpack/a", ".next/server/page.js"}, 1, ".next", "next-cache", ".next/cache", box.TierCaches,
		},
		"a cache that git ignores by its own name": {
			[]string{"package.json", ".angular/cache/17/a"}, 1, ".angular/cache", "angular", "", box.TierCaches,
		},
		"a cache in packages that stay": {
			[]string{"package.json", "node_modules/.cache/babel/a", "node_modules/b/index.js"}, 1, "node_modules", "node-cache", "node_modules/.cache", box.TierCaches,
		},
		"a cache of gradle in a project": {
			[]string{".gradle/checksums/a", "build.gradle.kts"}, 2, ".gradle", "gradle-project", "", box.TierCaches,
		},
		"the cache of zig": {[]string{".zig-cache/h/a", ".zig-cache/o/a", "build.zig"}, 3, ".zig-cache", "zig", "", box.TierCaches},
		"packages of elm":  {[]string{"elm-stuff/0.19.1/a", "elm.json"}, 2, "elm-stuff", "elm", "", box.TierCaches},
		"packages of pdm": {
			[]string{"__pypackages__/3.12/lib/a", "pdm.lock"}, 2, "__pypackages__", "pypackages", "", box.TierDependencies,
		},
		"build output of stack": {[]string{".stack-work/dist/a", "stack.yaml"}, 2, ".stack-work", "stack", "", box.TierDependencies},
		"build output of cabal": {[]string{"dist-newstyle/cache/plan.json", "a.cabal"}, 2, "dist-newstyle", "cabal", "", box.TierDependencies},
		"packages of composer": {
			[]string{"vendor/autoload.php", "vendor/composer/installed.json", "composer.json", "composer.lock"},
			4, "vendor", "composer-vendor", "", box.TierDependencies,
		},
		"packages of bundler, not what else is beside them": {
			[]string{"vendor/bundle/ruby/a", "Gemfile", "Gemfile.lock", "vendor/javascript/a.js"}, 3, "vendor/bundle", "bundler", "", box.TierDependencies,
		},
		"packages of mix": {[]string{"deps/jason/.hex", "mix.exs", "mix.lock"}, 3, "deps", "mix-deps", "", box.TierDependencies},
		"packages of cocoapods": {
			[]string{"Pods/Manifest.lock", "Podfile", "Podfile.lock"}, 3, "Pods", "cocoapods", "", box.TierDependencies,
		},
		"packages of dart": {
			[]string{".dart_tool/package_config.json", "pubspec.yaml", "pubspec.lock"}, 3, ".dart_tool", "dart", "", box.TierDependencies,
		},
		"compiled python": {
			[]string{"pkg/__pycache__/a.cpython-312.pyc"}, 1, "pkg/__pycache__", "pycache", "", box.TierCaches,
		},
		"the cache of mypy": {
			[]string{".mypy_cache/CACHEDIR.TAG", ".mypy_cache/3.12/a.json"}, 1, ".mypy_cache", "mypy", "", box.TierCaches,
		},
		"the cache of ruff": {
			[]string{".ruff_cache/CACHEDIR.TAG"}, 1, ".ruff_cache", "ruff", "", box.TierCaches,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := row.want
			if want == "" {
				want = row.ignored
			}
			root, repo, opts := workspace(t, row.files, row.ignored)
			report := do(t, openWith(t, root, opts), box.ReclaimRequest{Tiers: []box.Tier{row.tier}})
			require.Equal(t, []string{repo + "/" + want}, taken(report))
			entry := itemOf(t, report, repo+"/"+want)
			require.Equal(t, row.rule, entry.Rule)
			require.Equal(t, row.tier, entry.Tier)
			require.NotEmpty(t, entry.Evidence)
			require.NoDirExists(t, filepath.Join(root, repo, want))
			for _, file := range row.files {
				if !strings.HasPrefix(file, want+"/") {
					require.FileExists(t, filepath.Join(root, repo, file))
				}
			}
			for i := range row.signs {
				without := slices.Delete(slices.Clone(row.files), i, i+1)
				root, repo, opts := workspace(t, without, row.ignored)
				require.NoError(t, os.MkdirAll(filepath.Join(root, repo, want), 0o755))
				report := do(t, openWith(t, root, opts), box.ReclaimRequest{Tiers: []box.Tier{row.tier}})
				require.Empty(t, taken(report), "without %s", row.files[i])
				require.DirExists(t, filepath.Join(root, repo, want))
			}
			// What git does not ignore stays, whatever it looks like.
			root, repo, opts = workspace(t, row.files)
			require.Empty(t, taken(do(t, openWith(t, root, opts), box.ReclaimRequest{Tiers: []box.Tier{row.tier}})))
			require.DirExists(t, filepath.Join(root, repo, want))
		})
	}
}

func TestACacheOfCompiledPythonThatHoldsSourcesStays(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{{"__pycache__/a.pyc", "__pycache__/b.py"}, {"__pycache__/a.pyc", "__pycache__/sub/b.pyc"}} {
		root, repo, opts := workspace(t, files, "__pycache__")
		report := do(t, openWith(t, root, opts), box.ReclaimRequest{})
		require.Contains(t, itemOf(t, report, repo+"/__pycache__").Skipped, "not named like")
		require.FileExists(t, filepath.Join(root, repo, files[1]))
	}
}

func TestWhatIsSomebodysInAnInstalledDirectoryKeepsIt(t *testing.T) {
	t.Parallel()
	files := []string{"package.json", "package-lock.json", "node_modules/.package-lock.json", "node_modules/a/index.js"}
	for name, row := range map[string]struct {
		file  string
		taken bool
	}{
		"an environment file":                  {"node_modules/.env", false},
		"an environment file deep inside":      {"node_modules/a/b/.env.local", false},
		"a clone":                              {"node_modules/a/.git/HEAD", false},
		"a linked work tree":                   {"node_modules/a/.git", false},
		"the state of terraform":               {"node_modules/a/prod.tfstate", false},
		"a history":                            {"node_modules/a/base_state.json", false},
		"an example of an environment file":    {"node_modules/a/.env.example", true},
		"code that is called like credentials": {"node_modules/a/credentials.js", true},
		"a setting that a package shipped":     {"node_modules/a/.npmrc", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tiers := []box.Tier{box.TierDependencies}
			root, repo, opts := workspace(t, append(slices.Clone(files), row.file), "node_modules")
			report := do(t, openWith(t, root, opts), box.ReclaimRequest{Tiers: tiers})
			require.Equal(t, row.taken, len(taken(report)) == 1)
			if row.taken {
				return
			}
			require.Contains(t, itemOf(t, report, repo+"/node_modules").Skipped, "which no cache holds")
			require.FileExists(t, filepath.Join(root, repo, row.file))

			// Put deep inside after the plan, where no time of the directory changes.
			root, repo, opts = workspace(t, files, "node_modules")
			require.NoError(t, os.MkdirAll(filepath.Join(root, repo, "node_modules/a/b"), 0o755))
			r := openWith(t, root, opts)
			plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: tiers})
			require.Len(t, taken(plan), 1)
			late := strings.Replace(row.file, "node_modules/.env", "node_modules/a/.env", 1)
			put(t, root, repo+"/"+late, "x")
			report = do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			require.Contains(t, itemOf(t, report, repo+"/node_modules").Skipped, "which no cache holds")
			require.Zero(t, report.RemovedBytes)
			require.FileExists(t, filepath.Join(root, repo, late))
			require.FileExists(t, filepath.Join(root, repo, "node_modules/a/index.js"))
		})
	}
}

func TestWithoutAClearWordFromGitAWorkspaceStays(t *testing.T) {
	t.Parallel()
	files := []string{"package.json", "package-lock.json", "node_modules/.package-lock.json"}
	for name, row := range map[string]struct {
		set  func(t *testing.T, root string, opts *reclaim.Options)
		want string
	}{
		"no git": {func(_ *testing.T, _ string, o *reclaim.Options) { o.Repos = nil }, "git is not there"},
		"git fails": {func(_ *testing.T, _ string, o *reclaim.Options) {
			o.Repos = &repos{err: errors.New("dubious ownership")}
		}, "dubious ownership"},
		"git names what lies outside": {func(_ *testing.T, _ string, o *reclaim.Options) {
			o.Repos = &repos{more: []string{"../../home"}}
		}, "no directory inside"},
		"no repository": {func(t *testing.T, root string, _ *reclaim.Options) {
			t.Helper()
			require.NoError(t, os.RemoveAll(filepath.Join(root, "workspace/repo/.git")))
		}, "is no git repository"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, repo, opts := workspace(t, files, "node_modules")
			row.set(t, root, &opts)
			r, err := reclaim.Open(root, opts)
			require.NoError(t, err)
			defer r.Close()
			report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
			require.Empty(t, taken(report))
			require.Len(t, report.Items, 1)
			require.Contains(t, report.Items[0].Skipped, row.want)
			require.DirExists(t, filepath.Join(root, repo, "node_modules"))
		})
	}
}

func TestGitIsAskedAgainBeforeAnythingMoves(t *testing.T) {
	t.Parallel()
	files := []string{"package.json", "package-lock.json", "node_modules/.package-lock.json"}
	for name, change := range map[string]func(t *testing.T, root string, g *repos){
		"it is tracked since": func(t *testing.T, root string, _ *repos) {
			t.Helper()
			put(t, root, "workspace/repo/.gitignore", "")
		},
		"git fails since": func(_ *testing.T, _ string, g *repos) { g.err = errors.New("timeout") },
		"the repository is gone": func(t *testing.T, root string, _ *repos) {
			t.Helper()
			require.NoError(t, os.RemoveAll(filepath.Join(root, "workspace/repo/.git")))
		},
		"the lockfile is gone": func(t *testing.T, root string, _ *repos) {
			t.Helper()
			require.NoError(t, os.Remove(filepath.Join(root, "workspace/repo/package-lock.json")))
		},
		"the lockfile is another": func(t *testing.T, root string, _ *repos) {
			t.Helper()
			lock := filepath.Join(root, "workspace/repo/package-lock.json")
			require.NoError(t, os.Rename(lock, filepath.Join(filepath.Dir(lock), "yarn.lock")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, repo, opts := workspace(t, files, "node_modules")
			git := &repos{}
			opts.Repos = git
			r := openWith(t, root, opts)
			plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{box.TierDependencies}})
			require.Len(t, taken(plan), 1)
			change(t, root, git)
			report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			require.NotEmpty(t, itemOf(t, report, repo+"/node_modules").Skipped)
			require.DirExists(t, filepath.Join(root, repo, "node_modules"))
		})
	}
}

func TestScenario101ALinkToSharedPackagesIsLeftAndItsTargetUntouched(t *testing.T) {
	t.Parallel()
	root, repo, opts := workspace(t, []string{"package.json", "package-lock.json"}, "node_modules")
	shared := t.TempDir()
	put(t, shared, ".package-lock.json", "{}")
	put(t, shared, "a/index.js", "x")
	require.NoError(t, os.Symlink(shared, filepath.Join(root, repo, "node_modules")))
	opts.Repos = &repos{more: []string{"node_modules"}} // a git that takes it for a directory
	report := do(t, openWith(t, root, opts), box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
	require.Empty(t, taken(report))
	require.Contains(t, itemOf(t, report, repo+"/node_modules").Skipped, "is a link")
	require.FileExists(t, filepath.Join(shared, "a/index.js"))
}

func TestMavenKeepsWhatWasBuiltHere(t *testing.T) {
	t.Parallel()
	const repository = "home/.m2/repository"
	for name, row := range map[string]struct {
		origins string
		want    string
	}{
		"all came from a repository":    {"# note\na-1.jar>central=\na-1.pom>central=\n", ""},
		"one was installed here":        {"a-1.jar>=\na-1.pom>central=\n", "a-1.jar"},
		"of one nothing is noted":       {"a-1.pom>central=\n", "a-1.jar"},
		"nothing is noted of any of it": {"", "exists nowhere else"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			put(t, root, repository+"/org/a/1/a-1.jar", "x")
			put(t, root, repository+"/org/a/1/a-1.pom", "x")
			put(t, root, "home/.m2/settings.xml", "x")
			if row.origins != "" {
				put(t, root, repository+"/org/a/1/_remote.repositories", row.origins)
			}
			report := do(t, open(t, root), box.ReclaimRequest{})
			skipped := itemOf(t, report, repository).Skipped
			require.FileExists(t, filepath.Join(root, "home/.m2/settings.xml"))
			if row.want == "" {
				require.Empty(t, skipped)
				require.NoDirExists(t, filepath.Join(root, repository))
				return
			}
			require.Contains(t, skipped, row.want)
			require.FileExists(t, filepath.Join(root, repository, "org/a/1/a-1.jar"))
		})
	}
}

func TestAPlanShowsTheNativeWay(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root, "home/.cache/uv/CACHEDIR.TAG", cacheTag)
	put(t, root, "home/.cache/uv/archive-v0/x/a.py", "x")
	put(t, root, "home/.local/share/pnpm/store/v10/files/00/a", "x")
	plan := do(t, open(t, root), box.ReclaimRequest{DryRun: true})
	require.Equal(t, "uv cache prune", itemOf(t, plan, "home/.cache/uv").Native)
	kept := itemOf(t, plan, "home/.local/share/pnpm/store")
	require.Equal(t, "pnpm store prune", kept.Native)
	require.Contains(t, kept.Skipped, "linked into projects")
}

func TestRecognisingAnIgnoredDirectoryOfAWorkTree(t *testing.T) {
	t.Parallel()
	root, repo, _ := workspace(t, []string{
		"package.json", "package-lock.json", "node_modules/.package-lock.json",
		"sub/package.json", "sub/yarn.lock", "sub/node_modules/.yarn-integrity", "sub/node_modules/a/.git/HEAD",
		".venv/pyvenv.cfg", "build/out",
	})
	catalogue, err := reclaim.LoadCatalogue(nil)
	require.NoError(t, err)
	require.NoError(t, os.Symlink("node_modules", filepath.Join(root, repo, "linked")))
	for dir, want := range map[string][2]string{
		"node_modules":     {"node-modules", ""},
		"node_modules/":    {"node-modules", ""},
		"sub/node_modules": {"", "holds .git"},
		".venv":            {"", "not recognised"},
		"build":            {"", "no rule is about it"},
		"../repo":          {"", "no directory inside"},
		"linked":           {"", "no rule is about it"},
		"gone/venv":        {"", "cannot be opened"},
	} {
		rule, why := catalogue.Recognise(t.Context(), filepath.Join(root, repo), dir)
		require.Equal(t, want[0], rule, dir)
		require.Contains(t, why, want[1], dir)
		require.Equal(t, rule == "", why != "", dir)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	rule, why := catalogue.Recognise(canceled, filepath.Join(root, repo), "node_modules")
	require.Empty(t, rule)
	require.NotEmpty(t, why)
}
