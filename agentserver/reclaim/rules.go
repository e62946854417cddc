package reclaim

import (
	"path"
	"strings"
)

// rule says where a cache lies and how it is recognised. A name alone is never
// enough: what must be inside is the second witness.
type rule struct {
	id string
	// path is below the box's root. A last element "*" means every directory in
	// it that no other rule is about.
	path string
	// all must be inside, and at least one name must match a pattern of some
	// when there are any.
	all  []string
	some []string
	// tag demands a valid CACHEDIR.TAG inside.
	tag bool
	// deep searches all of it for what must never go. The rules of tools that
	// keep whole repositories or packages in their cache look at the top only.
	deep bool
	// keep, when set, is the reason why it is listed and never taken.
	keep string
}

// catalogue is every cache we know, by tool. All are of the tier caches: their
// tools make them again on demand.
//
//nolint:gochecknoglobals // a constant table
var catalogue = []rule{
	{id: "uv", path: "home/.cache/uv", tag: true, some: []string{"*-v[0-9]", "*-v[0-9][0-9]"}},
	{id: "pip", path: "home/.cache/pip", some: []string{"http", "http-v2", "wheels"}, deep: true},
	{id: "poetry-cache", path: "home/.cache/pypoetry/cache", some: []string{"repositories", "cache"}, deep: true},
	{id: "poetry-artifacts", path: "home/.cache/pypoetry/artifacts", some: []string{"[0-9a-f][0-9a-f]"}, deep: true},
	{id: "pre-commit", path: "home/.cache/pre-commit", all: []string{"db.db"}, some: []string{"repo*"}, keep: "its environments are built again only with the network that they were built with"},
	{id: "huggingface", path: "home/.cache/huggingface/hub", some: []string{"models--*", "datasets--*"}, deep: true},
	{id: "playwright", path: "home/.cache/ms-playwright", some: []string{"chromium*", "firefox*", "webkit*", ".links"}, keep: "the agent's own browser may be in it"},
	{id: "go-build", path: "home/.cache/go-build", all: []string{"README", "00", "ff"}, deep: true},
	{id: "golangci-lint", path: "home/.cache/golangci-lint", all: []string{"00", "ff"}, deep: true},
	{id: "ccache", path: "home/.cache/ccache", all: []string{"0", "f"}, deep: true},
	{id: "sccache", path: "home/.cache/sccache", all: []string{"0", "f"}, deep: true},
	{id: "yarn", path: "home/.cache/yarn", some: []string{"v[0-9]", "v[0-9][0-9]"}},
	{id: "pnpm-cache", path: "home/.cache/pnpm", some: []string{"metadata*", "dlx"}},
	{id: "pnpm-store", path: "home/.local/share/pnpm/store", some: []string{"v[0-9]", "v[0-9][0-9]"}, keep: "its packages may be linked into projects"},
	{id: "npm", path: "home/.npm/_cacache", all: []string{"content-v2", "index-v5"}, deep: true},
	{id: "npm-logs", path: "home/.npm/_logs", some: []string{"*-debug-*.log"}, deep: true},
	{id: "npx", path: "home/.npm/_npx", some: []string{strings.Repeat("[0-9a-f]", 16)}},
	{id: "bun", path: "home/.bun/install/cache", some: []string{"*@@@*"}},
	{id: "cargo-cache", path: "home/.cargo/registry/cache", some: []string{cargoSource}},
	{id: "cargo-src", path: "home/.cargo/registry/src", some: []string{cargoSource}},
	{id: "cargo-index", path: "home/.cargo/registry/index", some: []string{cargoSource}},
	{id: "cargo-git-db", path: "home/.cargo/git/db", some: []string{cargoSource}},
	{id: "cargo-git-checkouts", path: "home/.cargo/git/checkouts", some: []string{cargoSource}},
	{id: "go-mod", path: "home/go/pkg/mod", all: []string{"cache"}},
	{id: "gradle", path: "home/.gradle/caches", some: []string{"modules-[0-9]*", "jars-[0-9]*", "build-cache-[0-9]*"}},
	// By its place below .cache and by its tag; neither would do alone.
	{id: "tagged", path: "home/.cache/*", tag: true, deep: true},
}

// cargoSource ends in the hash that cargo gives every source.
var cargoSource = "*-" + strings.Repeat("[0-9a-f]", 16) //nolint:gochecknoglobals // a constant

// never are the names that are not a cache's: with one of them inside, a
// directory is somebody's work or credentials.
var never = []string{ //nolint:gochecknoglobals // a constant table
	".git", ".env", ".env.*", ".envrc", ".netrc", ".ssh", ".aws", ".gnupg", ".npmrc", ".pypirc", ".git-credentials",
	"id_rsa*", "id_ed25519*", "id_ecdsa*", "credentials", "credentials.*", "token", "*.kdbx", "*.tfstate*",
	"base_state.json", "owner_lease.json",
}

// mustStay returns the pattern of never that name matches.
func mustStay(name string) (string, bool) {
	lower := strings.ToLower(name)
	for _, pattern := range never {
		if ok, _ := path.Match(pattern, lower); ok {
			return pattern, true
		}
	}
	return "", false
}

// judge says whether names are those of what the rule is about: evidence when
// they are, and otherwise why not.
func (r *rule) judge(names []string, tagged bool) (evidence, why string) {
	inside := make(map[string]bool, len(names))
	for _, name := range names {
		inside[name] = true
	}
	for _, name := range names {
		if pattern, bad := mustStay(name); bad {
			return "", "holds " + pattern + ", which no cache holds"
		}
	}
	var seen []string
	for _, name := range r.all {
		if !inside[name] {
			return "", "not recognised: no " + name + " inside"
		}
		seen = append(seen, name)
	}
	if len(r.some) > 0 {
		match := firstMatch(r.some, names)
		if match == "" {
			return "", "not recognised: nothing named like " + strings.Join(r.some, ", ") + " inside"
		}
		seen = append(seen, match)
	}
	switch {
	case tagged:
		seen = append(seen, cacheTag)
	case r.tag:
		return "", "not recognised: no valid " + cacheTag + " inside"
	}
	return "holds " + strings.Join(seen, ", "), ""
}

func firstMatch(patterns, names []string) string {
	first := ""
	for _, pattern := range patterns {
		for _, name := range names {
			if ok, _ := path.Match(pattern, name); ok && (first == "" || name < first) {
				first = name
			}
		}
	}
	return first
}

// claimed reports whether a rule of its own is about name in dir, or about
// something below it.
func claimed(dir, name string) bool {
	place := path.Join(dir, name)
	for i := range catalogue {
		if at := catalogue[i].path; at == place || strings.HasPrefix(at, place+"/") {
			return true
		}
	}
	return false
}

// cacheTag is the file by which a directory says that it is a cache
// (bford.info/cachedir).
const (
	cacheTag       = "CACHEDIR.TAG"
	cacheSignature = "Signature: 8a477f597d28d172789f06886806bc55"
)
