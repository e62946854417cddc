package reclaim

import (
	"path"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// area says below what a rule's path lies.
type area string

const (
	inHome      area = "home"      // a $HOME: the box's own, or that of a conversation
	inWorkspace area = "workspace" // anywhere in a git repository of a workspace
)

// look says how deep a directory is searched for what must never go.
type look int

const (
	// lookTop is for caches that keep whole repositories or packages as they came:
	// a name inside means nothing there.
	lookTop look = iota
	// lookPackages is for installed packages and build output: a clone or an
	// environment file inside is somebody's, a file called "token" is code.
	lookPackages
	// lookAll is for the rest: any of the names, however deep.
	lookAll
	// lookNone is for what goes as a whole, whatever is inside.
	lookNone
)

// rule says where a directory lies and how it is recognised. A name alone is
// never enough: what must be inside, and for what is installed also what must be
// beside, are the other witnesses.
type rule struct {
	id   string
	tier box.Tier
	in   area
	// path is below the home, or the last one or two elements of a path in a
	// workspace. A last element "*" in a home means every directory in it that no
	// other rule is about.
	path string
	// all must be inside, and at least one name must match a pattern of some when
	// there are any. When only is set, nothing may be inside that matches none of
	// it. At least one directory inside must hold a file called below.
	all, some, only []string
	below           string
	// beside and besideSome are the same for the directory that path is in.
	beside, besideSome []string
	// tag demands a valid CACHEDIR.TAG inside.
	tag  bool
	look look
	// native is the command by which the tool itself shrinks or clears it. It is
	// shown and never run, see docs/adr/0011-what-may-go.md.
	native string
	// keep, when set, is the reason why it is measured, listed and never taken.
	keep string
}

// never are the names that are not a cache's: with one of them inside, a
// directory is somebody's work or credentials.
var never = []string{ //nolint:gochecknoglobals // a constant table
	".env", ".env.*", ".netrc", ".npmrc", ".pypirc", ".git-credentials",
	"id_rsa*", "id_ed25519*", "id_ecdsa*", "credentials", "credentials.*", "token",
}

// neverInPackages are the ones that are nobody's code either.
var neverInPackages = []string{ //nolint:gochecknoglobals // a constant table
	".git", ".env", ".env.*", ".envrc", ".ssh", ".aws", ".gnupg", "*.kdbx", "*.tfstate*",
	"base_state.json", "owner_lease.json",
}

// samples are what packages ship under the name of an environment file.
var samples = []string{".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults"} //nolint:gochecknoglobals // a constant table

// mustStay returns the pattern that forbids to take a directory with name inside.
func (l look) mustStay(name string) (string, bool) {
	lower := strings.ToLower(name)
	match := func(patterns []string) (string, bool) {
		for _, pattern := range patterns {
			if ok, _ := path.Match(pattern, lower); ok {
				return pattern, true
			}
		}
		return "", false
	}
	switch l {
	case lookNone:
		return "", false
	case lookPackages:
		if slices.Contains(samples, lower) {
			return "", false
		}
		return match(neverInPackages)
	case lookTop, lookAll:
	}
	if pattern, bad := match(neverInPackages); bad {
		return pattern, true
	}
	return match(never)
}

// below returns how what lies deeper is looked at.
func (l look) below() look {
	if l == lookTop {
		return lookNone
	}
	return l
}

// signs are what was found in a directory and beside it.
type signs struct {
	names  []string
	tagged bool
	// beside are the names in the directory that the rule's path is in.
	beside []string
	// within reports whether a directory inside holds the file.
	within func(file string) bool
}

// judge says whether the signs are those of what the rule is about: evidence
// when they are, and otherwise why not.
func (r *rule) judge(found signs) (evidence, why string) {
	for _, name := range found.names {
		if pattern, bad := r.look.mustStay(name); bad {
			return "", "holds " + pattern + ", which no cache holds"
		}
	}
	inside, why := matched(r.all, r.some, found.names, "inside")
	if why != "" {
		return "", why
	}
	for _, name := range found.names {
		if len(r.only) > 0 && firstMatch(r.only, []string{name}) == "" {
			return "", "not recognised: holds something that is not named like " + strings.Join(r.only, ", ")
		}
	}
	switch {
	case len(r.only) == 0:
	case len(found.names) == 0:
		return "", "not recognised: is empty"
	default:
		inside = append(inside, strings.Join(r.only, ", ")+" alone")
	}
	if r.below != "" {
		if !found.within(r.below) {
			return "", "not recognised: no directory inside holds " + r.below
		}
		inside = append(inside, r.below+" in a directory")
	}
	switch {
	case found.tagged:
		inside = append(inside, cacheTag)
	case r.tag:
		return "", "not recognised: no valid " + cacheTag + " inside"
	}
	beside, why := matched(r.beside, r.besideSome, found.beside, "beside")
	if why != "" {
		return "", why
	}
	evidence = "holds " + strings.Join(inside, ", ")
	if len(inside) == 0 {
		evidence = "is named " + r.path
	}
	if len(beside) > 0 {
		evidence += "; beside " + strings.Join(beside, ", ")
	}
	return evidence, ""
}

// matched returns the names that were asked for, or why one is missing.
func matched(all, some, names []string, where string) (seen []string, why string) {
	for _, name := range all {
		if !slices.Contains(names, name) {
			return nil, "not recognised: no " + name + " " + where
		}
		seen = append(seen, name)
	}
	if len(some) == 0 {
		return seen, ""
	}
	match := firstMatch(some, names)
	if match == "" {
		return nil, "not recognised: nothing named like " + strings.Join(some, ", ") + " " + where
	}
	return append(seen, match), ""
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

// claimed reports whether another rule is about name in dir, a directory of a
// home, or about something below it.
func (c *Catalogue) claimed(dir, name string) bool {
	at := path.Join(dir, name)
	return slices.ContainsFunc(c.rules, func(r rule) bool {
		return r.in == inHome && (r.path == at || strings.HasPrefix(r.path, at+"/"))
	})
}

// covers reports whether the rule is about the directory at place, a path below
// the home or the workspace, so that a journal cannot name any other.
func (c *Catalogue) covers(r *rule, place string) bool {
	if r.in == inWorkspace {
		return r.endsIn(place)
	}
	if dir, last := path.Split(r.path); last == "*" {
		at, name := path.Split(place)
		return at == dir && name != "" && name != "." && name != ".." && !c.claimed(strings.TrimSuffix(dir, "/"), name)
	}
	return r.path == place
}

// endsIn reports whether the path of a rule for workspaces is the end of place.
func (r *rule) endsIn(place string) bool {
	return place == r.path || strings.HasSuffix(place, "/"+r.path)
}

// parent is the directory that a rule's path is in, given where that path ends.
func (r *rule) parent(place string) string {
	for range strings.Count(r.path, "/") + 1 {
		place = path.Dir(place)
	}
	return place
}

// rule returns the rule with this id, nil when there is none (any more).
func (c *Catalogue) rule(id string) *rule {
	if id == runtimeRule.id {
		return &runtimeRule
	}
	for i := range c.rules {
		if c.rules[i].id == id {
			return &c.rules[i]
		}
	}
	return nil
}

// runtimeRule stands for what tier runtime takes of a conversation, which is
// recognised by its layout alone.
var runtimeRule = rule{id: "runtime", tier: box.TierRuntime, look: lookNone} //nolint:gochecknoglobals // a constant

const (
	// gitRule is what a workspace is listed under of which git does not say what is
	// ignored.
	gitRule = "git"
	// ObjectsRule is what the objects of a repository are listed under that are worth
	// a "git gc". They are never taken.
	ObjectsRule = "git-objects"
)

// level orders the tiers; a deeper one includes the ones before it.
func level(tier box.Tier) int {
	switch tier {
	case box.TierCaches:
		return 1
	case box.TierDependencies:
		return 2
	case box.TierRuntime:
		return 3
	}
	return 0
}

// cacheTag is the file by which a directory says that it is a cache
// (bford.info/cachedir).
const (
	cacheTag       = "CACHEDIR.TAG"
	cacheSignature = "Signature: 8a477f597d28d172789f06886806bc55"
)
