package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// object is a JSON object whose names keep their order, so that the schema
// reads like the source.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Generate returns the schema of the contract, as the text of a file. sources
// is the directory of package box. It fails when a type has a form that this
// package does not know how to write.
func Generate(sources fs.FS) ([]byte, error) {
	comments, err := readSource(sources)
	if err != nil {
		return nil, err
	}
	g := generator{source: comments, defs: map[string]object{}}
	for _, t := range Roots() {
		if _, err := g.form(t); err != nil {
			return nil, err
		}
	}
	var defs object
	for _, name := range g.order {
		defs = append(defs, member{name, g.defs[name]})
	}
	text, err := json.MarshalIndent(object{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"title", "boxkeeper's contract with callers"},
		{"description", "Generated from package box; do not edit. docs/contract.md explains it."},
		{"x-boxkeeper", names()},
		{"$defs", defs},
	}, "", "  ")
	return append(text, '\n'), err
}

// names lists what is called by name, with the definitions that it speaks in.
func names() object {
	var updates, signals, queries, attributes object
	for _, u := range Updates() {
		updates = append(updates, member{u.Name, object{{"request", u.Request.Name()}, {"answer", u.Answer.Name()}}})
	}
	for _, s := range Signals() {
		signals = append(signals, member{s.Name, object{{"payload", s.Payload.Name()}}})
	}
	for _, q := range Queries() {
		queries = append(queries, member{q.Name, object{{"answer", q.Answer.Name()}}})
	}
	for _, a := range SearchAttributes() {
		attributes = append(attributes, member{a.Name, object{{"type", a.Type}}})
	}
	return object{
		{"wire_version", box.WireVersion},
		{"workflow_type", box.WorkflowType},
		{"workflow_id_prefix", box.WorkflowID("")},
		{"task_queue", box.TaskQueue},
		{"input", reflect.TypeFor[box.Input]().Name()},
		{"error_type", reflect.TypeFor[box.Class]().Name()},
		{"updates", updates},
		{"signals", signals},
		{"queries", queries},
		{"search_attributes", attributes},
	}
}

type generator struct {
	source source
	defs   map[string]object
	order  []string
}

// form returns the schema of a value of a type; named types are defined once
// and referred to.
func (g *generator) form(t reflect.Type) (object, error) {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{{"type", "string"}, {"format", "date-time"}}, nil
	case reflect.TypeFor[json.RawMessage]():
		return object{}, nil
	}
	if slices.Contains(written, t) || t.Kind() == reflect.Struct || t.Kind() == reflect.String && t.PkgPath() != "" {
		return g.define(t)
	}
	switch t.Kind() { //nolint:exhaustive // the rest is refused
	case reflect.String:
		return object{{"type", "string"}}, nil
	case reflect.Bool:
		return object{{"type", "boolean"}}, nil
	case reflect.Int, reflect.Int64:
		if t.PkgPath() == "" {
			return object{{"type", "integer"}}, nil
		}
	case reflect.Float64:
		return object{{"type", "number"}}, nil
	case reflect.Pointer:
		return g.form(t.Elem())
	case reflect.Slice:
		items, err := g.form(t.Elem())
		return object{{"type", "array"}, {"items", items}}, err
	case reflect.Map:
		values, err := g.form(t.Elem())
		return object{{"type", "object"}, {"additionalProperties", values}}, err
	}
	return nil, fmt.Errorf("%s has no form on the wire; write it as a text, a number or an object", t)
}

// lengths is the form of durations. It is a little wider than what is read:
// the order of the units and the bounds are checked by boxkeeper.
const lengths = `([0-9]+(d|h|m|s|ms|us|ns))+`

func (g *generator) define(t reflect.Type) (object, error) {
	name := t.Name()
	ref := object{{"$ref", "#/$defs/" + name}}
	if _, done := g.defs[name]; done {
		return ref, nil
	}
	g.defs[name] = nil // a type may hold itself
	g.order = append(g.order, name)
	about := member{"description", g.source.types[name]}
	switch {
	case t == reflect.TypeFor[box.Duration]():
		g.defs[name] = object{about, {"type", "string"}, {"pattern", "^(never|" + lengths + ")$"}}
	case t == reflect.TypeFor[box.Span]():
		g.defs[name] = object{about, {"type", "string"}, {"pattern", "^" + lengths + "$"}}
	case t == reflect.TypeFor[box.Tri]():
		g.defs[name] = object{about, {"type", "string"}, {"enum", []string{box.Unknown.String(), box.Yes.String(), box.No.String()}}}
	case t.Kind() == reflect.String:
		return ref, g.defineValues(t)
	default:
		return ref, g.defineStruct(t)
	}
	return ref, nil
}

// defineValues defines a text with a fixed vocabulary.
func (g *generator) defineValues(t reflect.Type) error {
	values := g.source.values[t.Name()]
	if len(values) == 0 {
		return fmt.Errorf("%s is a text of its own and package box has no constant of it", t)
	}
	about := []string{g.source.types[t.Name()]}
	var texts []string
	for _, v := range values {
		texts = append(texts, v.text)
		if v.comment != "" {
			about = append(about, "- "+v.text+": "+v.comment)
		}
	}
	g.defs[t.Name()] = object{{"description", strings.Join(about, "\n")}, {"type", "string"}, {"enum", texts}}
	return nil
}

func (g *generator) defineStruct(t reflect.Type) error {
	var properties object
	required := []string{}
	for _, f := range Fields(t) {
		form, err := g.form(f.Type)
		if err != nil {
			return fmt.Errorf("%s.%s: %w", t.Name(), f.Name, err)
		}
		if about := g.source.fields[owner(t, f)+"."+f.Name]; about != "" {
			if rest, named := strings.CutPrefix(about, f.Name+" "); named {
				about = wireName(f) + " " + rest // the name that the reader sees
			}
			form = append(object{{"description", about}}, form...)
		}
		properties = append(properties, member{wireName(f), form})
		if !optional(f) {
			required = append(required, wireName(f))
		}
	}
	// Nothing forbids other properties: an older reader meets newer fields.
	g.defs[t.Name()] = object{
		{"description", g.source.types[t.Name()]},
		{"type", "object"},
		{"properties", properties},
		{"required", required},
	}
	return nil
}

// owner is the name of the struct that declares a field: t itself, or one that
// it embeds.
func owner(t reflect.Type, f reflect.StructField) string {
	for _, i := range f.Index[:len(f.Index)-1] {
		t = t.Field(i).Type
	}
	return t.Name()
}

func wireName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func optional(f reflect.StructField) bool {
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return slices.Contains(strings.Split(options, ","), "omitzero")
}
