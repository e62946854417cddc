package box_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
)

const contractPage = "../docs/contract.md"

func readDoc(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// contractConstants returns the string constants of the package whose names begin with
// a prefix, by name. They come from the source, so that a new one cannot be
// forgotten here.
func contractConstants(t *testing.T, prefix string) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				constants, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, ident := range constants.Names {
					values := constants.Values
					if !strings.HasPrefix(ident.Name, prefix) || i >= len(values) {
						continue
					}
					literal, ok := values[i].(*ast.BasicLit)
					if !ok || literal.Kind != token.STRING {
						continue
					}
					value, err := strconv.Unquote(literal.Value)
					if err != nil {
						t.Fatal(err)
					}
					found[ident.Name] = value
				}
			}
		}
	}
	return found
}

// hasRow reports whether a table of the page has a row for a name.
func hasRow(page, name string) bool {
	return strings.Contains(page, "\n| `"+name+"` |")
}

func TestContractPageNamesAllOfTheContract(t *testing.T) {
	t.Parallel()
	page := readDoc(t, contractPage)
	code := func(name string) bool { return strings.Contains(page, "`"+name+"`") }
	row := func(name string) bool { return hasRow(page, name) }
	for _, kind := range []struct {
		prefix string
		least  int // the parser finds at least so many, or this test sees nothing
		has    func(name string) bool
		where  string
	}{
		{"Update", 15, code, "named"},
		{"Signal", 7, code, "named"},
		{"Query", 2, code, "named"},
		{"Search", 6, row, "in the table of search attributes"},
		{"State", 18, row, "in the table of states"},
		{"Reason", 37, row, "in the table of reasons"},
		{"Class", 13, row, "in the table of errors"},
		{"Step", 18, code, "named"},
		{"Phase", 6, code, "named"},
		{"Tier", 3, code, "named"},
		{"Holder", 2, code, "named"},
		{"OnExpiry", 2, code, "named"},
	} {
		found := contractConstants(t, kind.prefix)
		if len(found) < kind.least {
			t.Errorf("found %d constants %s*, there are at least %d: this test looks in the wrong place", len(found), kind.prefix, kind.least)
		}
		for name, value := range found {
			if !kind.has(value) {
				t.Errorf("%s (%q) is not %s in docs/contract.md", name, value, kind.where)
			}
		}
	}
	for _, name := range []string{box.WorkflowType, box.TaskQueue, "box/<workspace>", "kept", "frozen", "held", "unhealthy", "needs-attention"} {
		if !code(name) {
			t.Errorf("docs/contract.md does not name %q", name)
		}
	}
}

// jsonNames returns the JSON names of a struct's fields.
func jsonNames(of reflect.Type) []string {
	var names []string
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func TestContractPageHasEveryFieldOfASpecAndItsDefault(t *testing.T) {
	t.Parallel()
	page := readDoc(t, contractPage)
	for _, of := range []reflect.Type{reflect.TypeFor[box.Spec](), reflect.TypeFor[box.Policy]()} {
		for _, name := range jsonNames(of) {
			if !hasRow(page, name) {
				t.Errorf("%s.%s has no row in docs/contract.md", of.Name(), name)
			}
		}
	}
	raw, err := json.Marshal(box.DefaultPolicy())
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]string
	if err := json.Unmarshal(raw, &defaults); err != nil {
		t.Fatal(err)
	}
	for name, value := range defaults {
		if !strings.Contains(page, "\n| `"+name+"` | `"+value+"` |") {
			t.Errorf("docs/contract.md does not say that policy.%s is %s by default", name, value)
		}
	}
}

// typedExample finds the examples that say which type they are of.
var typedExample = regexp.MustCompile("(?s)<!-- json: ([A-Za-z]+) -->\n```json\n(.*?)\n```\n")

// TestContractExamplesFitTheirTypes reads every answer on the page strictly and
// writes it again: a field that was renamed, added without omitzero or removed
// makes a difference.
func TestContractExamplesFitTheirTypes(t *testing.T) {
	t.Parallel()
	types := map[string]func() any{
		"Input": func() any { return new(box.Input) }, "ConnectAnswer": func() any { return new(box.ConnectAnswer) },
		"ActionAnswer": func() any { return new(box.ActionAnswer) }, "ReclaimReport": func() any { return new(box.ReclaimReport) },
		"Receipt": func() any { return new(box.Receipt) }, "SetPolicyAnswer": func() any { return new(box.SetPolicyAnswer) },
		"Loss": func() any { return new(box.Loss) }, "Confirmation": func() any { return new(box.Confirmation) },
		"Status": func() any { return new(box.Status) }, "Why": func() any { return new(box.Why) },
		"Unsaved": func() any { return new(box.Unsaved) }, "Manifest": func() any { return new(box.Manifest) },
	}
	seen := map[string]bool{}
	for _, example := range typedExample.FindAllStringSubmatch(readDoc(t, contractPage), -1) {
		name, text := example[1], example[2]
		fresh, ok := types[name]
		if !ok {
			t.Errorf("an example is of type %s, which this test does not know", name)
			continue
		}
		seen[name] = true
		value := fresh()
		readStrictly(t, name, text, value)
		again, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if have, want := plainJSON(t, text), plainJSON(t, string(again)); !reflect.DeepEqual(have, want) {
			t.Errorf("the example of %s is not what the type writes now:\n%s", name, again)
		}
	}
	for name := range types {
		if !seen[name] {
			t.Errorf("docs/contract.md has no example of %s", name)
		}
	}
}

// TestContractRequestsFitTheirTypes reads the request below each heading.
func TestContractRequestsFitTheirTypes(t *testing.T) {
	t.Parallel()
	page := readDoc(t, contractPage)
	requests := map[string]any{
		box.UpdateConnect: new(box.ConnectRequest), box.UpdateRenew: new(box.RenewRequest), box.UpdateRelease: new(box.ReleaseRequest),
		box.UpdateSuspend: new(box.Request), box.UpdateReclaim: new(box.ReclaimAsk), box.UpdateExport: new(box.Request),
		box.UpdateSetPolicy: new(box.SetPolicyAsk), box.UpdateKeep: new(box.SwitchAsk), box.UpdateFreeze: new(box.SwitchAsk),
		box.UpdateAdopt: new(box.AdoptAsk), box.UpdateRestore: new(box.RestoreAsk), box.UpdateAbandon: new(box.AbandonAsk), box.SignalHold: new(box.HoldSignal),
		box.UpdateRequestDelete: new(box.RequestDeleteAsk), box.SignalConfirmDelete: new(box.ConfirmDelete),
		box.SignalCancelDelete: new(box.CancelDelete), box.SignalActivity: new(box.ActivitySignal), box.SignalObserved: new(box.ObservedSignal),
	}
	for name, value := range requests {
		_, section, ok := strings.Cut(page, "\n### `"+name+"`")
		if !ok {
			t.Errorf("docs/contract.md has no section %s", name)
			continue
		}
		section, _, _ = strings.Cut(section, "\n### ")
		_, text, ok := strings.Cut(section, "\n```json\n")
		if !ok {
			t.Errorf("section %s has no request", name)
			continue
		}
		text, _, _ = strings.Cut(text, "\n```")
		readStrictly(t, name, text, value)
	}
	names := slices.Concat(valuesOf(contractConstants(t, "Update")), valuesOf(contractConstants(t, "Signal")))
	for _, name := range names {
		if _, ok := requests[name]; !ok && name != box.UpdateResume && name != box.UpdateReplace { // which share the sections of suspend and restore
			t.Errorf("the request of %s is not checked", name)
		}
	}
}

func valuesOf(of map[string]string) []string {
	var out []string
	for _, value := range of {
		out = append(out, value)
	}
	return out
}

func readStrictly(t *testing.T, name, text string, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Errorf("the example of %s does not fit %T: %v", name, into, err)
	}
}

func plainJSON(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
