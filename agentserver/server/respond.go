package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// maxBody bounds the bodies of our own endpoints.
const maxBody = 64 << 10

func writeJSON(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"detail":"Internal Server Error","exception":"500: the answer could not be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the caller may have gone
}

// refuse answers a failure in upstream's form: below 500 the text is in
// "detail", from 500 on it is in "exception".
func refuse(w http.ResponseWriter, status int, text string) {
	if status < http.StatusInternalServerError {
		writeJSON(w, status, map[string]any{"detail": text})
		return
	}
	writeJSON(w, status, map[string]any{"detail": "Internal Server Error", "exception": fmt.Sprintf("%d: %s", status, text)})
}

// refuseFor answers 503 with the seconds after which another try is useful.
func refuseFor(w http.ResponseWriter, wait time.Duration, text string) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(wait.Seconds())))))
	refuse(w, http.StatusServiceUnavailable, text)
}

// fault is one entry of a 422 answer.
type fault struct {
	Type  string `json:"type"`
	Loc   []any  `json:"loc"`
	Msg   string `json:"msg"`
	Input any    `json:"input"`
}

func refuseAs(w http.ResponseWriter, f fault) {
	writeJSON(w, http.StatusUnprocessableEntity, map[string]any{"detail": []fault{f}})
}

// refuseField answers 422 for a value that is not accepted. Input is what was
// given, as far as it can be shown: a value that could be a secret is nil.
func refuseField(w http.ResponseWriter, where, field, text string, input any) {
	refuseAs(w, fault{Type: "value_error", Loc: locOf(where, field), Msg: text, Input: input})
}

func locOf(where, field string) []any {
	loc := []any{where}
	for step := range strings.FieldsFuncSeq(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		if n, err := strconv.Atoi(step); err == nil {
			loc = append(loc, n)
		} else {
			loc = append(loc, step)
		}
	}
	return loc
}

// refuseError answers an error of ours by its class.
func refuseError(w http.ResponseWriter, err error) {
	said, ok := errors.AsType[*box.Error](err)
	if !ok {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	switch said.Class {
	case box.ClassInvalid:
		refuseField(w, "body", said.Field, said.Message, nil)
	case box.ClassNotFound:
		refuse(w, http.StatusNotFound, said.Error())
	case box.ClassConflict, box.ClassAlreadyExists:
		refuse(w, http.StatusConflict, said.Error())
	case box.ClassFailedPrecondition:
		refuse(w, http.StatusGone, said.Error())
	case box.ClassUnsupported:
		refuse(w, http.StatusNotImplemented, said.Error())
	case box.ClassExhausted:
		refuse(w, http.StatusInsufficientStorage, said.Error())
	case box.ClassUnavailable, box.ClassCanceled, box.ClassDeadlineExceeded:
		refuseFor(w, said.RetryAfter, said.Error())
	case box.ClassUnauthorized, box.ClassInternal, box.ClassUnknown:
		refuse(w, http.StatusInternalServerError, said.Error())
	}
}

// decode reads a JSON body strictly into out. It answers the request itself when
// it returns false.
func decode(w http.ResponseWriter, r *http.Request, out any) bool {
	text, ok := readBody(w, r)
	return ok && decodeText(w, text, out)
}

// readBody reads a body that must be there.
func readBody(w http.ResponseWriter, r *http.Request) (text []byte, ok bool) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", maxBody))
			return nil, false
		}
		refuse(w, http.StatusBadRequest, "the body could not be read")
		return nil, false
	}
	if plain := bytes.TrimSpace(text); len(plain) == 0 || string(plain) == "null" {
		refuseAs(w, fault{Type: "missing", Loc: []any{"body"}, Msg: "Field required"})
		return nil, false
	}
	return text, true
}

func decodeText(w http.ResponseWriter, text []byte, out any) bool {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(out)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			refuseAs(w, fault{Type: "json_invalid", Loc: []any{"body", decoder.InputOffset()}, Msg: "one JSON object is expected, and nothing after it", Input: map[string]any{}})
			return false
		}
		return true
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, name := plainType(wrong.Type.Kind().String())
		refuseAs(w, fault{Type: name, Loc: locOf("body", wrong.Field), Msg: "must be a " + kind + ", not a " + wrong.Value})
		return false
	}
	if name, ok := strings.CutPrefix(err.Error(), `json: unknown field "`); ok {
		refuseAs(w, fault{Type: "extra_forbidden", Loc: locOf("body", strings.TrimSuffix(name, `"`)), Msg: "is not a field of this request"})
		return false
	}
	at := len(text) // where it breaks off
	if wrong, ok := errors.AsType[*json.SyntaxError](err); ok {
		at = int(wrong.Offset) - 1
	}
	refuseAs(w, fault{Type: "json_invalid", Loc: []any{"body", at}, Msg: "is not a JSON object", Input: map[string]any{}})
	return false
}

// plainType names a type for people, and as the agent-server names its fault.
func plainType(kind string) (plain, name string) {
	switch kind {
	case "float64", "int", "int64":
		return "number", "float_type"
	case "slice":
		return "list", "list_type"
	case "struct":
		return "object", "dict_type"
	}
	return kind, kind + "_type"
}
