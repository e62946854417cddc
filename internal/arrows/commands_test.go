package arrows_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestCommandsOfThePagesRunSomething finds each "go test" that the pages, the
// Taskfile and the scripts name, and wants a test for each of its patterns: go
// test is content with none, so a command that lost its tests passes for ever.
func TestCommandsOfThePagesRunSomething(t *testing.T) {
	t.Parallel()
	problems, checked, err := checkTestCommands(os.DirFS(filepath.Join("..", "..")))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
	if checked < 20 {
		t.Errorf("%d patterns were looked at, the pages have more: this test looks in the wrong place", checked)
	}
}

var (
	testCommand = regexp.MustCompile(`\bgo test [^` + "`\n]*")
	testFunc    = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`)
	words       = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
)

// kinds are the flags that choose tests, with the kind that each chooses.
var kinds = map[string]string{"-run": "Test", "-bench": "Benchmark", "-fuzz": "Fuzz"}

// none are the patterns that mean no test, beside another flag that means some.
var none = []string{"^$", "xxx", "XXX"}

// checkTestCommands returns what is wrong, and how many patterns it looked at.
func checkTestCommands(root fs.FS) (problems []string, checked int, err error) {
	funcs, pages, err := readTestCommands(root)
	if err != nil {
		return nil, 0, err
	}
	for page, text := range pages {
		for _, command := range testCommand.FindAllString(text, -1) {
			found, n := checkTestCommand(command, funcs)
			for _, problem := range found {
				problems = append(problems, page+": "+command+": "+problem)
			}
			checked += n
		}
	}
	return append(problems, leftOutOfDocker(pages["Taskfile.yml"], funcs)...), checked, nil
}

// leftOutOfDocker returns packages with tests that need a Docker engine which the
// task for them does not name.
func leftOutOfDocker(taskfile string, funcs map[string][]string) (problems []string) {
	const named = "RealDocker"
	var command string
	for _, one := range testCommand.FindAllString(taskfile, -1) {
		if strings.Contains(one, "-run "+named+" ") {
			command = one + " "
		}
	}
	for dir, names := range funcs {
		needs := slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, named) })
		if needs && !strings.Contains(command, " ./"+dir+" ") {
			problems = append(problems, fmt.Sprintf("Taskfile.yml: no task runs the tests %s of %s", named, dir))
		}
	}
	return problems
}

// readTestCommands returns the test functions by directory, and the texts in which
// commands are named.
func readTestCommands(root fs.FS) (funcs map[string][]string, pages map[string]string, err error) {
	funcs, pages = map[string][]string{}, map[string]string{}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || name == ".git" || name == "docs/changelog"):
			return fs.SkipDir // what was once done is told as it was
		case d.IsDir():
		case strings.HasSuffix(name, "_test.go"):
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
				funcs[path.Dir(name)] = append(funcs[path.Dir(name)], m[1])
			}
		case path.Ext(name) == ".md", path.Ext(name) == ".sh", name == "Taskfile.yml", name == ".ci/run":
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			pages[name] = string(text)
		}
		return nil
	})
	return funcs, pages, err
}

// checkTestCommand looks at one command, as it is written.
func checkTestCommand(command string, funcs map[string][]string) (problems []string, checked int) {
	chosen := map[string]string{}
	var dirs []string
	args := words.FindAllString(command, -1)
	for i, word := range args {
		word = unquoted(word)
		flag, value, joined := strings.Cut(word, "=")
		switch {
		case kinds[flag] != "" && joined:
			chosen[flag] = value
		case kinds[flag] != "" && i+1 < len(args):
			chosen[flag] = unquoted(args[i+1])
		case strings.HasPrefix(word, "./"):
			dirs = append(dirs, path.Clean(word))
		}
	}
	for flag, pattern := range chosen {
		if slices.Contains(none, pattern) || strings.Contains(pattern, "$with_docker") || strings.Contains(pattern, "$2") {
			continue // the script fills it in, from the tests that there are
		}
		expr, err := regexp.Compile(pattern)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", flag, err))
			continue
		}
		for _, dir := range dirs {
			checked++
			if !slices.ContainsFunc(inside(funcs, dir), func(name string) bool { return strings.HasPrefix(name, kinds[flag]) && expr.MatchString(name) }) {
				problems = append(problems, fmt.Sprintf("%s %s chooses nothing in %s", flag, pattern, dir))
			}
		}
	}
	return problems, checked
}

// unquoted takes off the shell's quotes, and what stands for a bar in a table.
func unquoted(word string) string { return strings.ReplaceAll(strings.Trim(word, `'"`), `\|`, "|") }

// inside are the test functions of a package, or of all below one.
func inside(funcs map[string][]string, dir string) []string {
	above, all := strings.CutSuffix(dir, "...")
	if !all {
		return funcs[dir]
	}
	var found []string
	for at, names := range funcs {
		if above = strings.TrimSuffix(above, "/"); above == "" || at == above || strings.HasPrefix(at, above+"/") {
			found = append(found, names...)
		}
	}
	return found
}

func TestCommandsWithoutTestsAreFound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, line, want string }{
		{"a test that there is", "go test -count=1 -run 'Wakes|Sleeps' ./box", ""},
		{"a benchmark that there is", "`go test -run '^$' -bench Plan ./box`", ""},
		{"a bar in a table", `| x | go test -run 'Wakes\|Sleeps' ./box |`, ""},
		{"all packages", "go test ./... -run Wakes", ""},
		{"a test that was renamed", "go test -run=Wakens ./box", "-run Wakens chooses nothing in box"},
		{"a helper of that name", "go test -run Golden ./box", "-run Golden chooses nothing in box"},
		{"a test where a benchmark is meant", "go test -run '^$' -bench Wakes ./box", "-bench Wakes chooses nothing in box"},
		{"one package of two", "go test -run Wakes ./box ./exports", "-run Wakes chooses nothing in exports"},
		{"a package that there is not", "go test -run Wakes ./moved", "-run Wakes chooses nothing in moved"},
		{"a pattern that is none", "go test -run '(' ./box", "missing closing"},
		{"a package that needs a Docker engine", "", "no task runs the tests RealDocker of docker"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tree := fstest.MapFS{
				"box/a_test.go":     {Data: []byte("package box_test\nfunc TestABoxWakes(t *testing.T) {}\nfunc BenchmarkPlan(b *testing.B) {}\nfunc golden() {}\n")},
				"exports/b_test.go": {Data: []byte("package exports_test\nfunc TestOther(t *testing.T) {}\n")},
				"docker/c_test.go":  {Data: []byte("package docker_test\nfunc TestALifeInRealDocker(t *testing.T) {}\n")},
				"docs/page.md":      {Data: []byte(tc.line + "\n")},
				"Taskfile.yml":      {Data: []byte("go test -run RealDocker ./docker\n")},
			}
			if tc.line == "" {
				delete(tree, "Taskfile.yml")
			}
			problems, _, err := checkTestCommands(tree)
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(problems, "\n"); (tc.want == "") != (text == "") || !strings.Contains(text, tc.want) {
				t.Errorf("found %q, want %q", text, tc.want)
			}
		})
	}
}
