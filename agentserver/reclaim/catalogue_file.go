package reclaim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// catalogueFile is what LoadCatalogue reads.
type catalogueFile struct {
	Version int       `json:"version"`
	Off     []string  `json:"off"`
	Rules   []fileRow `json:"rules"`
}

// fileRow is a rule of the file.
type fileRow struct {
	ID         string   `json:"id"`
	Tier       box.Tier `json:"tier"`
	In         area     `json:"in"`
	Path       string   `json:"path"`
	HoldsAll   []string `json:"holds_all"`
	HoldsSome  []string `json:"holds_some"`
	Tagged     bool     `json:"tagged"`
	BesideAll  []string `json:"beside_all"`
	BesideSome []string `json:"beside_some"`
	Native     string   `json:"native"`
}

// maxNames bounds the lists of a row.
const maxNames = 32

var ruleID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// LoadCatalogue returns the built-in table with the changes of a file in JSON:
// {"version": 1, "off": [ids], "rules": [rows]}. docs/contract.md describes the
// rows. What must never go cannot be named or allowed by it: a directory with an
// environment file or a clone inside stays, and so does what git tracks.
// ClassInvalid names the row and the field at fault; an empty text is the
// built-in table.
func LoadCatalogue(text []byte) (*Catalogue, error) {
	out := &Catalogue{rules: slices.Clone(builtIn)}
	if len(bytes.TrimSpace(text)) == 0 {
		return out, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var file catalogueFile
	if err := decoder.Decode(&file); err != nil {
		return nil, box.Invalidf("catalogue", "is no catalogue: %s", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, box.Invalidf("catalogue", "goes on after its end; leave one JSON object")
	}
	if file.Version != 1 {
		return nil, box.Invalidf("version", "is %d; this program reads version 1", file.Version)
	}
	for i, id := range file.Off {
		if out.rule(id) == nil || id == runtimeRule.id {
			return nil, box.Invalidf(fmt.Sprintf("off[%d]", i), "no rule is called %q", id)
		}
		out.rules = slices.DeleteFunc(out.rules, func(r rule) bool { return r.id == id })
	}
	for i, row := range file.Rules {
		added, field, why := row.rule()
		if why == "" && (out.rule(added.id) != nil || added.id == gitRule || added.id == ObjectsRule) {
			field, why = "id", fmt.Sprintf("%q is taken; switch the other off, or choose another", added.id)
		}
		if why != "" {
			return nil, box.Invalidf(fmt.Sprintf("rules[%d].%s", i, field), "%s", why)
		}
		out.rules = append(out.rules, added)
	}
	return out, nil
}

// rule checks a row; why is empty when it is right, and field is the one at
// fault otherwise.
func (f fileRow) rule() (out rule, field, why string) {
	out = rule{
		id: f.ID, tier: f.Tier, in: f.In, path: f.Path, all: f.HoldsAll, some: f.HoldsSome, tag: f.Tagged,
		beside: f.BesideAll, besideSome: f.BesideSome, native: f.Native, look: lookAll,
	}
	switch {
	case !ruleID.MatchString(f.ID):
		return out, "id", "must be 1 to 40 lower-case letters, digits and dashes"
	case f.Tier != box.TierCaches && f.Tier != box.TierDependencies:
		return out, "tier", `must be "caches" or "dependencies"`
	case f.In != inHome && f.In != inWorkspace:
		return out, "in", `must be "home" or "workspace"`
	case f.In == inHome && f.Tier != box.TierCaches:
		return out, "tier", `must be "caches" in a home: nothing there says what a dependency is installed from`
	}
	if why := f.pathFault(); why != "" {
		return out, "path", why
	}
	for _, list := range []struct {
		field    string
		names    []string
		patterns bool
	}{
		{"holds_all", f.HoldsAll, false},
		{"holds_some", f.HoldsSome, true},
		{"beside_all", f.BesideAll, false},
		{"beside_some", f.BesideSome, true},
	} {
		if why := namesFault(list.names, list.patterns); why != "" {
			return out, list.field, why
		}
	}
	switch {
	case len(f.HoldsAll)+len(f.HoldsSome) == 0 && !f.Tagged:
		return out, "holds_all", "a name alone is not enough: say what must be inside, here, in holds_some or with tagged"
	case f.Tier == box.TierDependencies && len(f.BesideAll)+len(f.BesideSome) == 0:
		return out, "beside_all", "a dependency can be made again only from a file beside it: name that here or in beside_some"
	case strings.ContainsFunc(f.Native, func(r rune) bool { return r < ' ' }) || len(f.Native) > 200:
		return out, "native", "must be one line of at most 200 bytes"
	}
	return out, "", ""
}

// sensitive are directories of a home that hold settings, keys and state.
var sensitive = []string{".config", ".ssh", ".aws", ".gnupg", ".docker", ".kube", ".openhands", ".mozilla", ".git"} //nolint:gochecknoglobals // a constant table

func (f fileRow) pathFault() string {
	elements := strings.Split(f.Path, "/")
	switch {
	case f.Path == "" || path.Clean(f.Path) != f.Path || path.IsAbs(f.Path) || slices.Contains(elements, ".."):
		return `must be a plain relative path without "..", such as ".cache/tool"`
	case strings.ContainsAny(f.Path, "*?[\\\x00"):
		return "must be a name, not a pattern"
	case f.In == inHome && len(elements) < 2:
		return "must be at least two levels below the home"
	case f.In == inWorkspace && len(elements) > 2:
		return "must be one or two names"
	}
	for _, element := range elements {
		if pattern, bad := lookAll.mustStay(element); bad {
			return "names " + pattern + ", which must never go"
		}
	}
	if f.In == inHome && slices.Contains(sensitive, elements[0]) {
		return "lies in " + elements[0] + ", which must never go"
	}
	return ""
}

func namesFault(names []string, patterns bool) string {
	if len(names) > maxNames {
		return fmt.Sprintf("has more than %d names", maxNames)
	}
	for _, name := range names {
		_, err := path.Match(name, "x")
		switch {
		case name == "" || strings.ContainsAny(name, "/\x00") || err != nil:
			return fmt.Sprintf("%q is not the name of a file or directory", name)
		case !patterns && strings.ContainsAny(name, "*?[\\"):
			return fmt.Sprintf("%q is a pattern; a name is needed here", name)
		case patterns && strings.Trim(name, "*?") == "":
			return fmt.Sprintf("%q matches anything, which recognises nothing", name)
		}
	}
	return ""
}
