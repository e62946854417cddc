package box

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
)

// Decode reads what a caller sent. An empty text is an empty value, and fields
// that into does not have are ignored, so that an older worker takes what a
// newer caller sends. It may be repeated. What does not fit is refused with
// [ClassInvalid] and the path of the field at fault, such as "policy.idle": the
// caller changes that field.
func Decode(data []byte, into any) error {
	if len(data) == 0 {
		return nil
	}
	err := json.Unmarshal(data, into)
	if err == nil {
		return nil
	}
	path, cause := misfit(data, reflect.TypeOf(into).Elem(), "")
	if cause == nil {
		cause = err
	}
	return misfitError(path, cause)
}

func misfitError(path string, cause error) error {
	refusal, typed := errors.AsType[*Error](cause)
	wrong, mistyped := errors.AsType[*json.UnmarshalTypeError](cause)
	switch {
	case typed && path != "":
		return Invalidf(path, "%s", refusal.Message)
	case typed:
		return cause
	case mistyped:
		return Invalidf(path, "%s was sent where %s belongs", wrong.Value, formOf(wrong.Type))
	}
	return Invalidf(path, "this is not JSON of the right form: %v", cause)
}

// formOf says in the words of JSON what a type is written as.
func formOf(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // all others are not part of what callers send
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint8:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a text"
	}
	return "an object"
}

// misfit looks for the innermost value that does not fit its type: the decoder
// of the standard library does not say where a type's own reading failed.
func misfit(data []byte, t reflect.Type, path string) (string, error) {
	err := json.Unmarshal(data, reflect.New(t).Interface())
	if err == nil || readsItself(reflect.PointerTo(t)) {
		return path, err
	}
	switch t.Kind() { //nolint:exhaustive // nothing else has parts
	case reflect.Pointer:
		return misfit(data, t.Elem(), path)
	case reflect.Slice:
		var parts []json.RawMessage
		if json.Unmarshal(data, &parts) == nil {
			for i, part := range parts {
				if at, err := misfit(part, t.Elem(), path+"["+strconv.Itoa(i)+"]"); err != nil {
					return at, err
				}
			}
		}
	case reflect.Struct:
		var parts map[string]json.RawMessage
		if json.Unmarshal(data, &parts) == nil {
			for _, field := range reflect.VisibleFields(t) {
				name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				part, sent := parts[name]
				if !sent || field.Anonymous {
					continue
				}
				if at, err := misfit(part, field.Type, join(path, name)); err != nil {
					return at, err
				}
			}
		}
	}
	return path, err
}

func readsItself(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Unmarshaler]()) || t.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
