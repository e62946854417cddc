package arrows_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestArrows reads the files of the module with package os, so that the test
// cache notices a change in any of them; running "go list" would hide it.
func TestArrows(t *testing.T) {
	t.Parallel()
	files, err := parse(os.DirFS(filepath.Join("..", "..")))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range slices.Concat(checkLayers(files), checkTable(files), checkEngine(files), checkReach(files)) {
		t.Error(p)
	}
}

// TestMap keeps the table of layers in AGENTS.md whole: a package that is not
// on the map is one that the next reader doesn't find.
func TestMap(t *testing.T) {
	t.Parallel()
	root := os.DirFS(filepath.Join("..", ".."))
	files, err := parse(root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(root, "AGENTS.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range files {
		if !seen[f.dir] && !strings.Contains(string(text), "`"+f.dir+"`") {
			t.Errorf("AGENTS.md has no row for package %s", f.dir)
		}
		seen[f.dir] = true
	}
}

// file is one Go file and what it imports.
type file struct {
	name    string
	dir     string // below the module
	test    bool
	imports []string
}

// parse reads every Go file below root, whatever its build constraints: an
// arrow that only darwin sees is an arrow. Directories with a go.mod of their
// own, testdata, and names that the go command ignores are left out.
func parse(root fs.FS) ([]file, error) {
	var files []file
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name == "." {
				return nil
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil {
				return fs.SkipDir
			}
			if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		f := file{name: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go")}
		for _, spec := range parsed.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
			}
			f.imports = append(f.imports, imp)
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

// checkLayers holds the non-test files against the table.
func checkLayers(files []file) (problems []string) {
	for _, f := range files {
		from, ok := layerOf(f.dir)
		if !ok {
			problems = append(problems, fmt.Sprintf("%s: package %s belongs to no layer: add it to the table in internal/arrows", f.name, f.dir))
			continue
		}
		if f.test {
			continue
		}
		for _, imp := range f.imports {
			first, _, _ := strings.Cut(imp, "/")
			if dir, ours := below(imp); ours {
				// An import of no layer is reported where that package is.
				if to, ok := layerOf(dir); ok && dir != f.dir && !has(from.layers, to.name) {
					problems = append(problems, fmt.Sprintf("%s: %s must not import %s (%s)", f.name, from.name, to.name, dir))
				}
			} else if strings.Contains(first, ".") && !hasPrefix(strings.Fields(from.outside), imp) {
				problems = append(problems, fmt.Sprintf("%s: %s must not import %s", f.name, from.name, imp))
			}
		}
	}
	return problems
}

// checkTable finds rows of the table that no package matches, and names in it
// that no row has: both are slips that would let an arrow through later.
func checkTable(files []file) (problems []string) {
	used := map[string]bool{}
	for _, f := range files {
		if l, ok := layerOf(f.dir); ok {
			used[l.packages] = true
		}
	}
	names := map[string]bool{}
	for _, l := range layers {
		names[l.name] = true
		if !used[l.packages] {
			problems = append(problems, fmt.Sprintf("the table has layer %s for %s, and no package is there: remove the row", l.name, l.packages))
		}
	}
	for _, l := range layers {
		for name := range strings.FieldsSeq(l.layers) {
			if !names[name] {
				problems = append(problems, fmt.Sprintf("layer %s may import %s, which is no layer of the table", l.name, name))
			}
		}
	}
	return problems
}

// checkEngine keeps the engine, and the modules it is made of, in its place.
// Unlike checkLayers it looks at test files too.
func checkEngine(files []file) (problems []string) {
	for _, f := range files {
		for _, imp := range f.imports {
			if (imp == module+"/internal/engine" || hasPrefix(engineModules, imp)) && !slices.Contains(engineUsers, f.dir) {
				problems = append(problems, fmt.Sprintf("%s: only %s may import %s", f.name, strings.Join(engineUsers, ", "), imp))
			}
		}
	}
	return problems
}

// checkReach follows the imports of our own packages from each program. What
// an outside module imports in turn is not followed: the layers say which
// outside modules may come in at all.
func checkReach(files []file) (problems []string) {
	imports := map[string]map[string]bool{}
	for _, f := range files {
		if f.test {
			continue
		}
		if imports[f.dir] == nil {
			imports[f.dir] = map[string]bool{}
		}
		for _, imp := range f.imports {
			imports[f.dir][imp] = true
		}
	}
	for _, r := range reach {
		via := map[string]string{r.program: ""} // package to the one that brought it in
		for todo := []string{r.program}; len(todo) > 0; todo = todo[1:] {
			dir := todo[0]
			for _, imp := range slices.Sorted(maps.Keys(imports[dir])) {
				if hasPrefix(r.never, imp) {
					problems = append(problems, fmt.Sprintf("%s comes to %s, and must not: %s", chain(via, dir), imp, r.why))
				}
				if next, ours := below(imp); ours {
					if _, seen := via[next]; !seen {
						via[next] = dir
						todo = append(todo, next)
					}
				}
			}
		}
	}
	return problems
}

// chain says how a program comes to dir.
func chain(via map[string]string, dir string) string {
	way := dir
	for from := via[dir]; from != ""; from = via[from] {
		way = from + " -> " + way
	}
	return way
}

func layerOf(dir string) (layer, bool) {
	for _, l := range layers {
		if ok, err := path.Match(l.packages, dir); err == nil && ok {
			return l, true
		}
	}
	return layer{}, false
}

// below gives the path of one of our packages below the module.
func below(imp string) (dir string, ours bool) {
	rest, ours := strings.CutPrefix(imp, module)
	if !ours || rest != "" && rest[0] != '/' {
		return "", false
	}
	return path.Clean("./" + rest), true
}

func has(list, word string) bool {
	return slices.Contains(strings.Fields(list), word)
}

func hasPrefix(list []string, imp string) bool {
	return slices.ContainsFunc(list, func(p string) bool {
		return imp == p || strings.HasPrefix(imp, p+"/")
	})
}
