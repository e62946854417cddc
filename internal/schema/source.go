package schema

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// source is what reflection cannot see of package box: comments, and the
// constants of its types.
type source struct {
	types  map[string]string // name of a type to its comment
	fields map[string]string // "Type.Field" to its comment
	values map[string][]value
}

// value is one constant of a type that is a text.
type value struct{ text, comment string }

// readSource reads the Go files of package box in dir, tests excluded.
func readSource(dir fs.FS) (source, error) {
	s := source{types: map[string]string{}, fields: map[string]string{}, values: map[string][]value{}}
	names, err := fs.Glob(dir, "*.go")
	if err != nil {
		return s, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return s, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return s, fmt.Errorf("read %s: %w", name, err)
		}
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range group.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					s.addType(spec, group)
				case *ast.ValueSpec:
					s.addValues(spec)
				}
			}
		}
	}
	return s, nil
}

func (s *source) addType(spec *ast.TypeSpec, group *ast.GenDecl) {
	s.types[spec.Name.Name] = prose(orElse(spec.Doc, group.Doc))
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range structure.Fields.List {
		for _, name := range field.Names {
			s.fields[spec.Name.Name+"."+name.Name] = prose(orElse(field.Doc, field.Comment))
		}
	}
}

func (s *source) addValues(spec *ast.ValueSpec) {
	of, ok := spec.Type.(*ast.Ident)
	if !ok {
		return
	}
	for _, expr := range spec.Values {
		literal, ok := expr.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			continue
		}
		if text, err := strconv.Unquote(literal.Value); err == nil {
			s.values[of.Name] = append(s.values[of.Name], value{text, prose(orElse(spec.Comment, spec.Doc))})
		}
	}
}

func orElse(first, second *ast.CommentGroup) *ast.CommentGroup {
	if first != nil {
		return first
	}
	return second
}

// docLink is a link in a Go comment, which means nothing elsewhere.
var docLink = regexp.MustCompile(`\[([A-Z][A-Za-z.]*)\]`)

// prose is a comment as running text.
func prose(of *ast.CommentGroup) string {
	return docLink.ReplaceAllString(strings.Join(strings.Fields(of.Text()), " "), "$1")
}
