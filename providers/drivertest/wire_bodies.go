package drivertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// mangled lets the service do its work and changes what it says. An answer
// that is not JSON, or in which there is nothing to change, passes as it is.
func mangled(change func(body []byte) ([]byte, bool)) func(x *exchange) {
	return func(x *exchange) {
		rec := x.answer()
		if rec.Code >= 300 || !json.Valid(rec.Body.Bytes()) {
			x.miss()
			x.pass(rec)
			return
		}
		body, changed := change(bytes.Clone(rec.Body.Bytes()))
		if !changed {
			x.miss()
			x.pass(rec)
			return
		}
		rec.Header().Del("Content-Length")
		rec.Body = bytes.NewBuffer(body)
		x.pass(rec)
	}
}

// unreadable are answers of the right kind that say nothing, or something new.
func unreadable() []fault {
	var out []fault
	for _, body := range []string{`null`, `{}`, `[]`, `"ok"`} {
		out = append(out, fault{
			name: "200 with " + body, work: true, want: unclear(),
			make: plain(mangled(func([]byte) ([]byte, bool) { return []byte(body), true })),
		})
	}
	return out
}

// states are answers whose state is one that nobody knows, or none.
func states(fields []string) []fault {
	var out []fault
	for _, one := range []struct {
		name string
		set  any
		drop bool
	}{
		{"a state that nobody knows", "SUITE_STATE_OF_TOMORROW", false},
		{"an empty state", "", false},
		{"a state that is null", nil, false},
		{"a state that is a number", 7, false},
		{"no state", nil, true},
	} {
		out = append(out, fault{
			name: one.name, work: true, blind: true, want: unclear(),
			make: plain(mangled(edited(func(of map[string]any, name string) bool {
				if _, text := of[name].(string); !text || !slices.Contains(fields, name) {
					return false
				}
				if one.drop {
					delete(of, name)
				} else {
					of[name] = one.set
				}
				return true
			}))),
		})
	}
	return out
}

// times are answers whose times are no help. What is only told to people may be
// left out; a box must not seem older than it is, nor younger than now.
func times() []fault {
	var out []fault
	for name, value := range map[string]string{
		"times that are to come": "2199-01-01T00:00:00Z", "times that are none": "yesterday", "empty times": "",
	} {
		out = append(out, fault{name: name, work: true, make: plain(mangled(edited(func(of map[string]any, field string) bool {
			text, _ := of[field].(string)
			if _, err := time.Parse(time.RFC3339, text); err != nil {
				return false
			}
			of[field] = value
			return true
		})))})
	}
	return out
}

// edited changes the fields of objects, wherever they lie.
func edited(change func(of map[string]any, name string) bool) func(body []byte) ([]byte, bool) {
	return func(body []byte) ([]byte, bool) {
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		var root any
		if decoder.Decode(&root) != nil {
			return nil, false
		}
		changed := false
		walk(root, func(of map[string]any, name string) {
			if change(of, name) {
				changed = true
			}
		})
		out, err := json.Marshal(root)
		return out, changed && err == nil
	}
}

// walk visits every field of every object, in the order of their names.
func walk(node any, visit func(of map[string]any, name string)) {
	switch node := node.(type) {
	case map[string]any:
		names := make([]string, 0, len(node))
		for name := range node {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			walk(node[name], visit)
			visit(node, name)
		}
	case []any:
		for _, one := range node {
			walk(one, visit)
		}
	}
}

// field is one name of a field in answers.
type field struct {
	name string
	// mark is true of what shows whose a box is: without it a driver may take the
	// box for somebody else's, and so leave it out of a list.
	mark bool
}

// fieldsOf collects the fields of answers; marks are the values of marks.
func fieldsOf(into map[string]field, marks []string) func(x *exchange) {
	var mu sync.Mutex
	return func(x *exchange) {
		rec := x.answer()
		var root any
		if json.Unmarshal(rec.Body.Bytes(), &root) == nil {
			mu.Lock()
			walk(root, func(of map[string]any, name string) {
				into[name] = field{name, into[name].mark || marksIn(of[name], marks)}
			})
			mu.Unlock()
		}
		x.pass(rec)
	}
}

// marksIn reports whether a value, or a field of it, is a mark.
func marksIn(value any, marks []string) bool {
	found := false
	if of, ok := value.(map[string]any); ok {
		walk(of, func(of map[string]any, name string) { found = found || marksIn(of[name], marks) })
		return found
	}
	_, list := value.([]any)
	return !list && slices.Contains(marks, fmt.Sprint(value))
}

// without are answers that lack fields, or have them as null.
func without(fields []field, null bool) fault {
	names, what := map[string]bool{}, "lacks "
	if null {
		what = "has null as "
	}
	out := fault{work: true}
	for i, of := range fields {
		names[of.name] = true
		out.mark = out.mark || of.mark
		if i > 0 {
			what += ", "
		}
		what += of.name
	}
	out.name = what
	out.make = plain(mangled(edited(func(of map[string]any, at string) bool {
		if !names[at] {
			return false
		}
		if null {
			of[at] = nil
		} else {
			delete(of, at)
		}
		return true
	})))
	return out
}

func jsonText(s string) string {
	out, err := json.Marshal(strings.ToValidUTF8(s, "?"))
	if err != nil {
		return `""`
	}
	return string(out)
}
