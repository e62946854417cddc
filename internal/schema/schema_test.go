package schema_test

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/schema"
)

var update = flag.Bool("update", false, "write docs/contract.schema.json")

var schemaFile = filepath.Join("..", "..", "docs", "contract.schema.json")

func sources() string { return filepath.Join("..", "..", "box") }

func TestTheSchemaIsWhatTheTypesSay(t *testing.T) {
	t.Parallel()
	want, err := schema.Generate(os.DirFS(sources()))
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, want, 0o644))
	}
	have, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "docs/contract.schema.json is stale: go test ./internal/schema -update, then npm run generate in examples/canvas")
}

func TestTheSchemaFollowsTheSource(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{}
	for _, name := range goFiles(t, sources()) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		tree[filepath.Base(name)] = &fstest.MapFile{Data: text}
	}
	before, err := schema.Generate(tree)
	require.NoError(t, err)
	state := tree["state.go"]
	tree["state.go"] = &fstest.MapFile{Data: []byte(strings.Replace(string(state.Data), `"lost" `, `"mislaid" `, 1))}
	after, err := schema.Generate(tree)
	require.NoError(t, err)
	require.Contains(t, string(before), `"lost"`)
	require.NotContains(t, string(after), `"lost"`)
	require.Contains(t, string(after), `"mislaid"`)

	delete(tree, "state.go")
	_, err = schema.Generate(tree)
	require.ErrorContains(t, err, "package box has no constant of it")
}

// TestEveryNameOfTheContractIsInTheSchema finds the constants in the source, so
// that a new one cannot be forgotten.
func TestEveryNameOfTheContractIsInTheSchema(t *testing.T) {
	t.Parallel()
	have := map[string][]string{}
	for _, u := range schema.Updates() {
		have["Update"] = append(have["Update"], u.Name)
	}
	for _, s := range schema.Signals() {
		have["Signal"] = append(have["Signal"], s.Name)
	}
	for _, q := range schema.Queries() {
		have["Query"] = append(have["Query"], q.Name)
	}
	for _, a := range schema.SearchAttributes() {
		have["Search"] = append(have["Search"], a.Name)
	}
	constant := regexp.MustCompile(`(?m)^\t(Update|Signal|Query|Search)[A-Z]\w* += "([^"]+)"`)
	text, err := os.ReadFile(filepath.Join(sources(), "contract.go"))
	require.NoError(t, err)
	want := map[string][]string{}
	for _, found := range constant.FindAllStringSubmatch(string(text), -1) {
		want[found[1]] = append(want[found[1]], found[2])
	}
	require.Len(t, want, 4)
	for kind := range want {
		require.ElementsMatch(t, want[kind], have[kind], kind)
	}
}

// TestTheSchemaSaysWhatTheHandlersTake reads how the workflow registers its
// handlers: the types in the schema are those that are really read and written.
func TestTheSchemaSaysWhatTheHandlersTake(t *testing.T) {
	t.Parallel()
	have := map[string]string{}
	for _, u := range schema.Updates() {
		have[u.Name] = u.Request.String() + " -> " + u.Answer.String()
	}
	for _, s := range schema.Signals() {
		have[s.Name+" signal"] = s.Payload.String()
	}
	for _, q := range schema.Queries() {
		have[q.Name] = "-> " + q.Answer.String()
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "workflows", "handlers.go"), nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	names := constants(t)
	want := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 3 {
			return true
		}
		name, ok := call.Args[1].(*ast.SelectorExpr)
		if !ok {
			return true
		}
		for _, arg := range slices.Backward(call.Args) { // serve comes after check
			serve, ok := arg.(*ast.FuncLit)
			if !ok {
				continue
			}
			takes := serve.Type.Params.List
			switch {
			case called(call) == "update":
				want[names[name.Sel.Name]] = typeName(takes[1].Type) + " -> " + typeName(serve.Type.Results.List[0].Type)
			case called(call) == "on":
				want[names[name.Sel.Name]+" signal"] = typeName(takes[0].Type)
			case called(call) == "SetQueryHandlerWithOptions":
				want[names[name.Sel.Name]] = "-> " + typeName(serve.Type.Results.List[0].Type)
			}
			break
		}
		return true
	})
	require.Len(t, want, len(schema.Updates())+len(schema.Signals())+len(schema.Queries()), "this test does not see every handler: %v", slices.Sorted(maps.Keys(want)))
	require.Equal(t, want, have)
}

// TestTheSearchAttributesAreIndexedAsTheSchemaSays reads what the engine is told.
func TestTheSearchAttributesAreIndexedAsTheSchemaSays(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "daemon", "daemon.go"))
	require.NoError(t, err)
	names := constants(t)
	want := map[string]string{}
	for _, found := range regexp.MustCompile(`box\.(Search\w+):\s+enumspb\.INDEXED_VALUE_TYPE_(\w+)`).FindAllStringSubmatch(string(text), -1) {
		want[names[found[1]]] = found[2]
	}
	have := map[string]string{}
	for _, a := range schema.SearchAttributes() {
		have[a.Name] = strings.ToUpper(a.Type)
	}
	require.Equal(t, want, have)
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func typeName(e ast.Expr) string {
	if of, ok := e.(*ast.SelectorExpr); ok {
		return "box." + of.Sel.Name
	}
	return "?"
}

// constants returns the texts of the constants in contract.go, by name.
func constants(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sources(), "contract.go"))
	require.NoError(t, err)
	out := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)^\t(\w+) += "([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
		out[found[1]] = found[2]
	}
	return out
}

func goFiles(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	return names
}

// TestTheFormOfDurationsTakesAllThatIsWritten: a client that checks against the
// schema must not refuse what boxkeeper answers or takes.
func TestTheFormOfDurationsTakesAllThatIsWritten(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	var parsed struct {
		Defs map[string]struct{ Pattern string } `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(text, &parsed))
	form := regexp.MustCompile(parsed.Defs["Duration"].Pattern)
	for _, d := range []box.Duration{0, 1, box.Never, box.Duration(36 * time.Hour), box.Duration(time.Hour + 1), box.Duration(250 * time.Millisecond)} {
		require.Regexp(t, form, d.String())
	}
	for _, wrong := range []string{"15", "15 m", "-1h", "1.5h", "30 days", "forever", "1h\n"} {
		require.NotRegexp(t, form, wrong)
		_, err := box.ParseDuration("x", wrong)
		require.Error(t, err)
	}
	span := regexp.MustCompile(parsed.Defs["Span"].Pattern)
	require.Regexp(t, span, box.Span(0).String())
	require.NotRegexp(t, span, "never")
}

// alwaysThere are the fields that are written when they are empty, though an
// empty time, list or object says nothing to a person, with the reason why they
// never are empty.
var alwaysThere = map[string]string{
	"Loss.not_exported":          "the files of a workspace are always among it",
	"Loss.token_expires":         "a request to delete always has an end",
	"Loss.last_use_age":          "an age that is not known is written \"never\"",
	"Loss.scan_age":              "an age that is not known is written \"never\"",
	"Why.transitions":            "the creation is one",
	"Status.state_age":           "zero is an age",
	"Status.as_of":               "the time of the answer",
	"Status.policy":              "the policy in force has no empty field",
	"Status.reason":              "the creation is one",
	"Why.as_of":                  "the time of the answer",
	"Why.because":                "the creation is one",
	"Why.next_reason":            "what comes next always has a reason",
	"HolderView.age":             "zero is an age",
	"HolderView.lease_ends_in":   "zero is an age",
	"Holder.since":               "a hold is taken at a time",
	"Holder.renewed":             "a hold is taken at a time",
	"Holder.until":               "every hold has an end",
	"Decision.at":                "it was made at a time",
	"Decision.reason":            "it has one",
	"Transition.at":              "it happened at a time",
	"Transition.reason":          "it has one",
	"Deletion.requested_at":      "it was asked for at a time",
	"Deletion.expires":           "every token has an end",
	"Confirmation.at":            "it was taken at a time",
	"Confirmation.reason":        "it has one",
	"Failure.at":                 "it happened at a time",
	"Watch.after":                "a watch has a length",
	"SetPolicyAsk.policy":        "it is what the request is about",
	"SetPolicyAnswer.policy":     "the policy in force has no empty field",
	"ObservedSignal.observation": "it is what the signal is about",
	"Observation.ref":            "a reading is of a box",
	"Input.spec":                 "it is what the start is about",
}

var snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// TestTheWireIsReadable walks all types of the contract: every field has a name
// in snake_case, a length of time is a text, and what is empty and says nothing
// is left out.
func TestTheWireIsReadable(t *testing.T) {
	t.Parallel()
	for _, of := range reachable() {
		for _, f := range schema.Fields(of) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			where := of.Name() + "." + name
			require.Regexp(t, snake, name, "%s.%s needs a JSON name in snake_case", of.Name(), f.Name)
			require.NotContains(t, options, "omitempty", "%s: omitzero, which knows times and structs", where)
			require.NotEqual(t, reflect.TypeFor[time.Duration](), f.Type, "%s is written as a number of nanoseconds; use box.Duration or box.Span", where)
			noise := f.Type.Kind() == reflect.Pointer || f.Type.Kind() == reflect.Slice || f.Type.Kind() == reflect.Map || f.Type.Kind() == reflect.Struct ||
				f.Type == reflect.TypeFor[box.Duration]() || f.Type == reflect.TypeFor[box.Span]()
			_, listed := alwaysThere[where]
			if noise && !strings.Contains(options, "omitzero") && !listed {
				t.Errorf("%s is written when it is empty: give it omitzero, or say in alwaysThere why it never is", where)
			}
		}
	}
}

func TestNothingIsListedInVain(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	for _, of := range reachable() {
		for _, f := range schema.Fields(of) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			written[of.Name()+"."+name] = !strings.Contains(options, "omitzero")
		}
	}
	for where := range alwaysThere {
		require.True(t, written[where], "%s is left out when it is empty, or is gone: take it off the list", where)
	}
}

// reachable returns the structs of the contract.
func reachable() []reflect.Type {
	var out []reflect.Type
	var visit func(reflect.Type)
	visit = func(of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(of.Elem())
		case reflect.Struct:
			if of == reflect.TypeFor[time.Time]() || slices.Contains(out, of) {
				return
			}
			out = append(out, of)
			for _, f := range schema.Fields(of) {
				visit(f.Type)
			}
		}
	}
	for _, root := range schema.Roots() {
		visit(root)
	}
	return out
}
