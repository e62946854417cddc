//go:build linux

package reclaim_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

func TestABadCatalogueNamesTheRowAndTheField(t *testing.T) {
	t.Parallel()
	const good = `{"id":"tool","tier":"caches","in":"home","path":".cache/tool","holds_all":["index"]}`
	_, err := reclaim.LoadCatalogue([]byte(`{"version":1,"rules":[` + good + `]}`))
	require.NoError(t, err, "the row that the others break")
	swap := func(old, replacement string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, replacement, 1)
	}
	for name, row := range map[string]struct{ text, field string }{
		"no JSON":             {`version = 1`, "catalogue"},
		"an unknown field":    {`{"version":1,"rules":[` + swap(`"holds_all"`, `"holds_al"`) + `]}`, "catalogue"},
		"something behind it": {`{"version":1} {"version":1}`, "catalogue"},
		"another version":     {`{"version":2}`, "version"},
		"no version":          {`{}`, "version"},
		"an unknown rule off": {`{"version":1,"off":["npm","nmp"]}`, "off[1]"},
		"a rule off that is no rule of a directory": {`{"version":1,"off":["runtime"]}`, "off[0]"},
		"an id that is taken":                       {`{"version":1,"rules":[` + good + "," + good + `]}`, "rules[1].id"},
		"an id of the built-in table":               {`{"version":1,"rules":[` + swap(`"tool"`, `"npm"`) + `]}`, "rules[0].id"},
		"an id with a blank":                        {`{"version":1,"rules":[` + swap(`"tool"`, `"a tool"`) + `]}`, "rules[0].id"},
		"the deepest tier":                          {`{"version":1,"rules":[` + swap(`"caches"`, `"runtime"`) + `]}`, "rules[0].tier"},
		"dependencies in a home":                    {`{"version":1,"rules":[` + swap(`"caches"`, `"dependencies"`) + `]}`, "rules[0].tier"},
		"an unknown place":                          {`{"version":1,"rules":[` + swap(`"home"`, `"root"`) + `]}`, "rules[0].in"},
		"a path that climbs":                        {`{"version":1,"rules":[` + swap(`.cache/tool`, `.cache/../../x`) + `]}`, "rules[0].path"},
		"an absolute path":                          {`{"version":1,"rules":[` + swap(`.cache/tool`, `/var/cache`) + `]}`, "rules[0].path"},
		"a path with a pattern":                     {`{"version":1,"rules":[` + swap(`.cache/tool`, `.cache/*`) + `]}`, "rules[0].path"},
		"a path at the top of the home":             {`{"version":1,"rules":[` + swap(`.cache/tool`, `tool`) + `]}`, "rules[0].path"},
		"settings":                                  {`{"version":1,"rules":[` + swap(`.cache/tool`, `.config/tool`) + `]}`, "rules[0].path"},
		"keys":                                      {`{"version":1,"rules":[` + swap(`.cache/tool`, `.ssh/tool`) + `]}`, "rules[0].path"},
		"an environment file":                       {`{"version":1,"rules":[` + swap(`.cache/tool`, `.cache/.env`) + `]}`, "rules[0].path"},
		"a clone's own directory":                   {`{"version":1,"rules":[` + swap(`.cache/tool`, `x/.git`) + `]}`, "rules[0].path"},
		"a name alone":                              {`{"version":1,"rules":[` + swap(`,"holds_all":["index"]`, ``) + `]}`, "rules[0].holds_all"},
		"a sign that is a path":                     {`{"version":1,"rules":[` + swap(`"index"`, `"a/b"`) + `]}`, "rules[0].holds_all"},
		"a sign that matches anything":              {`{"version":1,"rules":[` + swap(`"holds_all":["index"]`, `"holds_some":["*"]`) + `]}`, "rules[0].holds_some"},
		"a broken pattern":                          {`{"version":1,"rules":[` + swap(`"holds_all":["index"]`, `"holds_some":["[a"]`) + `]}`, "rules[0].holds_some"},
		"a dependency with nothing beside it": {
			`{"version":1,"rules":[{"id":"tool","tier":"dependencies","in":"workspace","path":"deps","holds_all":["index"]}]}`, "rules[0].beside_all",
		},
		"a deep path in a workspace": {
			`{"version":1,"rules":[{"id":"tool","tier":"caches","in":"workspace","path":"a/b/c","holds_all":["index"]}]}`, "rules[0].path",
		},
		"a native way of two lines": {`{"version":1,"rules":[` + swap(`"holds_all"`, `"native":"a\nb","holds_all"`) + `]}`, "rules[0].native"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			catalogue, err := reclaim.LoadCatalogue([]byte(row.text))
			require.Nil(t, catalogue)
			said, ok := errors.AsType[*box.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, box.ClassInvalid, said.Class)
			require.Equal(t, row.field, said.Field, said.Message)
			require.NotEmpty(t, said.Message)
		})
	}
}

const ownCatalogue = `{
	"version": 1,
	"off": ["npm", "mypy"],
	"rules": [
		{"id": "tool", "tier": "caches", "in": "home", "path": ".cache/tool", "holds_all": ["index"], "native": "tool gc"},
		{"id": "deps", "tier": "dependencies", "in": "workspace", "path": "deps", "holds_some": ["*.marker"], "beside_all": ["deps.lock"]}
	]
}`

func TestACatalogueAddsRulesAndSwitchesOthersOff(t *testing.T) {
	t.Parallel()
	root, repo, opts := workspace(t, []string{"deps/x.marker", "deps/a", "deps.lock", ".mypy_cache/CACHEDIR.TAG"}, "deps", ".mypy_cache")
	npm(t, root, 1)
	put(t, root, "home/.cache/tool/index", "x")
	var err error
	opts.Catalogue, err = reclaim.LoadCatalogue([]byte(ownCatalogue))
	require.NoError(t, err)
	r := openWith(t, root, opts)
	report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})
	require.ElementsMatch(t, []string{"home/.cache/tool", repo + "/deps"}, taken(report))
	require.Equal(t, "tool gc", itemOf(t, report, "home/.cache/tool").Native)
	require.DirExists(t, filepath.Join(root, "home/.npm/_cacache"))
	require.DirExists(t, filepath.Join(root, repo, ".mypy_cache"))
}

func TestNoCatalogueCanTakeWhatMustStay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		file    string
		ignored string
	}{
		"an environment file":            {"deps/.env", "deps"},
		"an environment file deep below": {"deps/a/b/.env.production", "deps"},
		"a clone":                        {"deps/a/.git/HEAD", "deps"},
		"a linked work tree":             {"deps/a/.git", "deps"},
		"credentials":                    {"deps/credentials.json", "deps"},
		"what git does not ignore":       {"deps/a/b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, repo, opts := workspace(t, []string{"deps/x.marker", "deps.lock", row.file}, row.ignored)
			var err error
			opts.Catalogue, err = reclaim.LoadCatalogue([]byte(ownCatalogue))
			require.NoError(t, err)
			r := openWith(t, root, opts)
			require.Empty(t, taken(do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}})))
			require.FileExists(t, filepath.Join(root, repo, row.file))
			require.NoError(t, os.MkdirAll(filepath.Join(root, "home/.cache/tool/below"), 0o755))
			put(t, root, "home/.cache/tool/index", "x")
			put(t, root, "home/.cache/tool/below/.env", "x")
			require.Empty(t, taken(do(t, r, box.ReclaimRequest{})))
			require.FileExists(t, filepath.Join(root, "home/.cache/tool/below/.env"))
		})
	}
}
