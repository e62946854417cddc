package reclaim

import (
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Catalogue is the table of what may go: it drives plans, applies and the
// storage status, and tells exports and worktrees what can be made again. It is
// made by [LoadCatalogue] and never changes.
type Catalogue struct{ rules []rule }

// builtIn is every directory we know, by tool.
//
//nolint:gochecknoglobals // a constant table
var builtIn = []rule{
	home("uv", ".cache/uv", rule{tag: true, some: []string{"*-v[0-9]", "*-v[0-9][0-9]"}, native: "uv cache prune"}),
	home("pip", ".cache/pip", rule{some: []string{"http", "http-v2", "wheels"}, look: lookAll, native: "pip cache purge"}),
	home("poetry-cache", ".cache/pypoetry/cache", rule{some: []string{"repositories", "cache"}, look: lookAll, native: "poetry cache clear --all ."}),
	home("poetry-artifacts", ".cache/pypoetry/artifacts", rule{some: []string{digits(2)}, look: lookAll}),
	home("poetry-envs", ".cache/pypoetry/virtualenvs", rule{some: []string{"*-py[0-9]*"}, native: "poetry env remove --all", keep: ofProjects}),
	home("pipenv-envs", ".local/share/virtualenvs", rule{below: "pyvenv.cfg", native: "pipenv --rm", keep: ofProjects}),
	home("hatch-envs", ".local/share/hatch/env", rule{some: []string{"virtual"}, native: "hatch env prune", keep: ofProjects}),
	home("pre-commit", ".cache/pre-commit", rule{all: []string{"db.db"}, some: []string{"repo*"}, native: "pre-commit gc", keep: "its environments are built again only with the network that they were built with"}),
	conda("conda", "miniconda3"),
	conda("conda-anaconda", "anaconda3"),
	conda("conda-miniforge", "miniforge3"),
	conda("conda-mambaforge", "mambaforge"),
	conda("conda-micromamba", "micromamba"),
	conda("conda-user", ".conda"),
	home("huggingface", ".cache/huggingface/hub", rule{some: []string{"models--*", "datasets--*"}, look: lookAll, native: "huggingface-cli delete-cache"}),
	home("playwright", ".cache/ms-playwright", rule{some: []string{"chromium*", "firefox*", "webkit*", ".links"}, native: "npx playwright uninstall", keep: "the agent's own browser may be in it"}),
	home("puppeteer", ".cache/puppeteer", rule{some: []string{"chrome*", "firefox*"}, native: "npx puppeteer browsers clear", keep: "the agent's own browser may be in it"}),
	home("cypress", ".cache/Cypress", rule{some: []string{version}, native: "npx cypress cache clear", keep: "it is installed again only by hand"}),
	home("go-build", ".cache/go-build", rule{all: []string{"README", "00", "ff"}, look: lookAll, native: "go clean -cache"}),
	home("golangci-lint", ".cache/golangci-lint", rule{all: []string{"00", "ff"}, look: lookAll, native: "golangci-lint cache clean"}),
	home("ccache", ".cache/ccache", rule{all: []string{"0", "f"}, look: lookAll, native: "ccache -c"}),
	home("ccache-old", ".ccache", rule{all: []string{"0", "f"}, look: lookAll, native: "ccache -c"}),
	home("sccache", ".cache/sccache", rule{all: []string{"0", "f"}, look: lookAll}),
	home("yarn", ".cache/yarn", rule{some: []string{"v[0-9]", "v[0-9][0-9]"}, native: "yarn cache clean"}),
	home("yarn-berry", ".yarn/berry/cache", rule{some: []string{"*-*.zip"}, look: lookAll, native: "yarn cache clean --mirror"}),
	home("pnpm-cache", ".cache/pnpm", rule{some: []string{"metadata*", "dlx"}}),
	home("pnpm-store", ".local/share/pnpm/store", rule{some: []string{"v[0-9]", "v[0-9][0-9]"}, native: "pnpm store prune", keep: "its packages may be linked into projects"}),
	home("npm", ".npm/_cacache", rule{all: []string{"content-v2", "index-v5"}, look: lookAll, native: "npm cache verify"}),
	home("npm-logs", ".npm/_logs", rule{some: []string{"*-debug-*.log"}, look: lookAll}),
	home("npx", ".npm/_npx", rule{some: []string{digits(16)}}),
	home("node-gyp", ".cache/node-gyp", rule{some: []string{version}, look: lookPackages}),
	home("deno", ".cache/deno", rule{some: []string{"deps", "gen", "npm", "remote"}, native: "deno clean"}),
	home("composer", ".cache/composer", rule{some: []string{"files", "repo", "vcs"}, native: "composer clear-cache"}),
	home("composer-old", ".composer/cache", rule{some: []string{"files", "repo", "vcs"}, native: "composer clear-cache"}),
	home("coursier", ".cache/coursier", rule{all: []string{"v1"}}),
	home("bun", ".bun/install/cache", rule{some: []string{"*@@@*"}, native: "bun pm cache rm"}),
	home("cargo-cache", ".cargo/registry/cache", rule{some: []string{"*-" + digits(16)}}),
	home("cargo-src", ".cargo/registry/src", rule{some: []string{"*-" + digits(16)}}),
	home("cargo-index", ".cargo/registry/index", rule{some: []string{"*-" + digits(16)}}),
	home("cargo-git-db", ".cargo/git/db", rule{some: []string{"*-" + digits(16)}}),
	home("cargo-git-checkouts", ".cargo/git/checkouts", rule{some: []string{"*-" + digits(16)}}),
	home("go-mod", "go/pkg/mod", rule{all: []string{"cache"}, native: "go clean -modcache"}),
	home("gradle", ".gradle/caches", rule{some: []string{"modules-[0-9]*", "jars-[0-9]*", "build-cache-[0-9]*"}}),
	home("gradle-dists", ".gradle/wrapper/dists", rule{some: []string{"gradle-*"}}),
	// What "mvn install" put there exists nowhere else: see builtHere.
	home(mavenRule, ".m2/repository", rule{look: lookPackages}),
	// By its place below .cache and by its tag; neither would do alone.
	home("tagged", ".cache/*", rule{tag: true, look: lookAll}),

	// All of these only where git ignores them and tracks nothing in them.
	work(box.TierCaches, "next-cache", ".next/cache", rule{beside: packageJSON}),
	work(box.TierCaches, "turbo", ".turbo", rule{beside: packageJSON}),
	work(box.TierCaches, "parcel", ".parcel-cache", rule{beside: packageJSON}),
	work(box.TierCaches, "vite", ".vite", rule{beside: packageJSON}),
	work(box.TierCaches, "svelte-kit", ".svelte-kit", rule{beside: packageJSON}),
	work(box.TierCaches, "angular", ".angular/cache", rule{beside: packageJSON, native: "ng cache clean"}),
	work(box.TierCaches, "nx", ".nx/cache", rule{beside: packageJSON, native: "nx reset"}),
	work(box.TierCaches, "node-cache", "node_modules/.cache", rule{beside: packageJSON}),
	work(box.TierCaches, "vite-deps", "node_modules/.vite", rule{beside: packageJSON}),
	work(box.TierCaches, "pycache", "__pycache__", rule{only: []string{"*.pyc", "*.pyo"}}),
	work(box.TierCaches, "mypy", ".mypy_cache", rule{tag: true}),
	work(box.TierCaches, "pytest", ".pytest_cache", rule{tag: true, native: "pytest --cache-clear"}),
	work(box.TierCaches, "ruff", ".ruff_cache", rule{tag: true, native: "ruff clean"}),
	work(box.TierCaches, "gradle-project", ".gradle", rule{some: []string{"buildOutputCleanup", "checksums", "file-system.probe", "vcs-[0-9]"}, besideSome: []string{"build.gradle*", "settings.gradle*"}}),
	work(box.TierCaches, "zig", ".zig-cache", rule{all: []string{"h", "o"}, beside: []string{"build.zig"}}),
	work(box.TierCaches, "elm", "elm-stuff", rule{some: []string{version}, beside: []string{"elm.json"}}),
	work(box.TierCaches, "pnpm-store-here", ".pnpm-store", rule{some: []string{"v[0-9]", "v[0-9][0-9]"}, native: "pnpm store prune", keep: "its packages may be linked into projects"}),
	work(box.TierDependencies, "node-modules", "node_modules", rule{
		some:   []string{".package-lock.json", ".modules.yaml", ".yarn-state.yml", ".yarn-integrity"},
		beside: packageJSON, besideSome: []string{"package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"},
	}),
	// A CACHEDIR.TAG in an environment means nothing: uv and virtualenv write one.
	work(box.TierDependencies, "dot-venv", ".venv", rule{all: []string{"pyvenv.cfg"}, besideSome: pythonLocks}),
	work(box.TierDependencies, "venv", "venv", rule{all: []string{"pyvenv.cfg"}, besideSome: pythonLocks}),
	work(box.TierDependencies, "pypackages", "__pypackages__", rule{some: []string{"[0-9].*"}, beside: []string{"pdm.lock"}}),
	work(box.TierDependencies, "tox", ".tox", rule{below: "pyvenv.cfg", besideSome: []string{"tox.ini", "pyproject.toml", "setup.cfg"}}),
	work(box.TierDependencies, "nox", ".nox", rule{below: "pyvenv.cfg", beside: []string{"noxfile.py"}}),
	work(box.TierDependencies, "cargo-target", "target", rule{some: []string{cacheTag, ".rustc_info.json"}, beside: []string{"Cargo.toml"}, native: "cargo clean"}),
	work(box.TierDependencies, "stack", ".stack-work", rule{some: []string{"dist", "install"}, beside: []string{"stack.yaml"}, native: "stack clean --full"}),
	work(box.TierDependencies, "cabal", "dist-newstyle", rule{all: []string{"cache"}, besideSome: []string{"cabal.project", "*.cabal"}, native: "cabal clean"}),
	work(box.TierDependencies, "composer-vendor", "vendor", rule{all: []string{"autoload.php"}, below: "installed.json", beside: []string{"composer.json", "composer.lock"}}),
	work(box.TierDependencies, "bundler", "vendor/bundle", rule{all: []string{"ruby"}, beside: []string{"Gemfile", "Gemfile.lock"}, native: "bundle clean"}),
	work(box.TierDependencies, "mix-deps", "deps", rule{below: ".hex", beside: []string{"mix.exs", "mix.lock"}, native: "mix deps.clean --all"}),
	work(box.TierDependencies, "cocoapods", "Pods", rule{all: []string{"Manifest.lock"}, beside: []string{"Podfile", "Podfile.lock"}, native: "pod deintegrate"}),
	work(box.TierDependencies, "dart", ".dart_tool", rule{all: []string{"package_config.json"}, beside: []string{"pubspec.yaml", "pubspec.lock"}}),
	// The rest of .terraform is the selected workspace and a pointer to the state.
	work(box.TierDependencies, "terraform", ".terraform/providers", rule{some: []string{"*.*"}, beside: []string{".terraform.lock.hcl"}}),
}

//nolint:gochecknoglobals // constants
var (
	packageJSON = []string{"package.json"}
	pythonLocks = []string{"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "requirements*.txt"}
)

const (
	mavenRule = "maven"
	version   = "[0-9]*.[0-9]*.[0-9]*" // a pattern for the name of a release
	// ofProjects is why environments in one place for many projects are kept.
	ofProjects = "nothing in it says from which project each environment can be made again"
)

func home(id, path string, r rule) rule {
	r.id, r.path, r.in, r.tier = id, path, inHome, box.TierCaches
	return r
}

// conda is about the packages below a prefix of conda.
func conda(id, prefix string) rule {
	return home(id, prefix+"/pkgs", rule{all: []string{"urls.txt"}, native: "conda clean -tp", keep: "environments may be linked to its packages"})
}

func work(tier box.Tier, id, path string, r rule) rule {
	r.id, r.path, r.in, r.tier, r.look = id, path, inWorkspace, tier, lookPackages
	return r
}

// digits is a pattern for so many hexadecimal digits, as in the hash that a tool
// gives what it keeps.
func digits(n int) string { return strings.Repeat("[0-9a-f]", n) }
