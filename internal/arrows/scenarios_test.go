package arrows_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// required are the scenarios that concern one box. Each has a test whose name
// carries its number, or a reason why it has none yet.
var required = []int{
	1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13, 15, 17, 18, 20, 21, 22, 23,
	25, 26, 27, 28, 29, 30, 32, 34, 35, 36, 37, 38, 39, 40, 41, 42, 44, 45, 47, 48, 49, 50, 52, 54, 55, 56, 57,
	58, 62, 63, 72, 73, 74, 75, 76,
	79, 80, 81, 82, 84, 85, 86, 87, 89, 90, 91, 92, 93, 94, 95, 97, 98, 99,
	100, 101, 103, 104, 105, 106,
	107, 108, 109, 110, 111, 112, 114, 115, 116,
}

// scenarioTest is one test function that carries a number.
type scenarioTest struct{ dir, name string }

// TestScenarioPageIsTrue keeps docs/scenarios.md and the tests together: each
// required scenario has a row; a row names tests that are there and carry its
// number, or a reason; and a test that carries a number is in its row.
func TestScenarioPageIsTrue(t *testing.T) {
	t.Parallel()
	root := os.DirFS(filepath.Join("..", ".."))
	page, err := fs.ReadFile(root, "docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := scenarioTests(root)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(filepath.Join("..", "..", "docs", "scenarios.md"), []byte(namedScenarios(string(page), tests)), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, problem := range checkScenarios(string(page), tests) {
		t.Errorf("%s; go test ./internal/arrows -run ScenarioPage -update writes the names of the tests", problem)
	}
}

var update = flag.Bool("update", false, "write the names of the tests into docs/scenarios.md")

// namedScenarios returns the page with the tests that there are in its rows. A
// row that has none keeps its reason.
func namedScenarios(page string, tests map[int][]scenarioTest) string {
	return scenarioRow.ReplaceAllStringFunc(page, func(row string) string {
		m := scenarioRow.FindStringSubmatch(row)
		number, _ := strconv.Atoi(m[1])
		var cell []string
		for _, have := range tests[number] {
			cell = append(cell, "`"+have.dir+" "+have.name+"`")
		}
		if len(cell) == 0 {
			return row
		}
		slices.Sort(cell)
		return fmt.Sprintf("| %s | %s | %s |", m[1], m[2], strings.Join(cell, ", "))
	})
}

var (
	scenarioRow  = regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]+) \| ([^|]+) \|$`)
	scenarioCell = regexp.MustCompile("`([a-z0-9/]+) (Test\\w+)`")
	inText       = regexp.MustCompile(`Scenario (\d+(?:(?:, | and )\d+)*)`)
	inName       = regexp.MustCompile(`Scenario(\d+(?:And\d+)*)`)
	digits       = regexp.MustCompile(`\d+`)
)

// checkScenarios compares the rows of the page with the tests, by number.
func checkScenarios(page string, tests map[int][]scenarioTest) []string {
	var problems []string
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	rows := map[int]string{}
	for _, m := range scenarioRow.FindAllStringSubmatch(page, -1) {
		number, _ := strconv.Atoi(m[1])
		if _, twice := rows[number]; twice {
			report("scenario %d has two rows", number)
		}
		rows[number] = m[3]
		named := scenarioCell.FindAllStringSubmatch(m[3], -1)
		reason, _ := strings.CutPrefix(m[3], "not yet: ")
		if len(named) == 0 && (reason == m[3] || len(reason) < 20) {
			report("scenario %d has neither a test nor a reason: %q", number, m[3])
		}
		for _, n := range named {
			if !slices.Contains(tests[number], scenarioTest{n[1], n[2]}) {
				report("scenario %d: there is no test %s in %s that carries the number", number, n[2], n[1])
			}
		}
	}
	for _, number := range required {
		if _, ok := rows[number]; !ok {
			report("scenario %d has no row", number)
		}
	}
	for number, carry := range tests {
		for _, have := range carry {
			if !strings.Contains(rows[number], "`"+have.dir+" "+have.name+"`") {
				report("scenario %d: the row does not name `%s %s`", number, have.dir, have.name)
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// scenarioTests finds the test functions that carry a number, in their own name
// or in that of a part. A number in a comment is none.
func scenarioTests(root fs.FS) (map[int][]scenarioTest, error) {
	out := map[int][]scenarioTest{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."), d.IsDir() && name == "internal/arrows":
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			for _, number := range numbersOf(f) {
				if one := (scenarioTest{path.Dir(name), f.Name.Name}); !slices.Contains(out[number], one) {
					out[number] = append(out[number], one)
				}
			}
		}
		return nil
	})
	return out, err
}

func numbersOf(f *ast.FuncDecl) []int {
	var out []int
	add := func(text string) {
		for _, d := range digits.FindAllString(text, -1) {
			n, _ := strconv.Atoi(d)
			out = append(out, n)
		}
	}
	for _, m := range inName.FindAllStringSubmatch(f.Name.Name, -1) {
		add(m[1])
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			for _, m := range inText.FindAllStringSubmatch(lit.Value, -1) {
				add(m[1])
			}
		}
		return true
	})
	return out
}

func TestScenarioCheckCanFail(t *testing.T) {
	t.Parallel()
	tests := map[int][]scenarioTest{1: {{"box", "TestOne"}}, 2: {{"box", "TestTwo"}}}
	var page strings.Builder
	for _, n := range required[2:] {
		fmt.Fprintf(&page, "| %d | x | not yet: a reason that says something |\n", n)
	}
	whole := page.String() + "| 1 | x | `box TestOne` |\n| 2 | x | `box TestTwo` |\n"
	if problems := checkScenarios(whole, tests); len(problems) != 0 {
		t.Fatalf("a page that is right: %v", problems)
	}
	stale := strings.Replace(whole, "`box TestTwo`", "not yet: a reason that says something", 1)
	if named := namedScenarios(stale, tests); named != whole {
		t.Errorf("the names were not written:\n%s", named)
	}
	for why, bad := range map[string]string{
		"has no row":                  strings.Replace(whole, "| 1 |", "| 0 |", 1),
		"there is no test TestOther":  strings.Replace(whole, "TestOne", "TestOther", 1),
		"does not name":               strings.Replace(whole, "`box TestTwo`", "not yet: a reason that says something", 1),
		"neither a test nor a reason": strings.Replace(whole, "not yet: a reason that says something", "later", 1),
		"has two rows":                whole + "| 1 | x | `box TestOne` |\n",
	} {
		if problems := checkScenarios(bad, tests); !strings.Contains(strings.Join(problems, "\n"), why) {
			t.Errorf("want %q, got %v", why, problems)
		}
	}
}
