package secretscan_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/openhands/boxkeeper/exports/secretscan"
	"github.com/openhands/boxkeeper/internal/race"
)

var scanner = sync.OnceValues(secretscan.New)

func theScanner(t testing.TB) *secretscan.Scanner {
	t.Helper()
	s, err := scanner()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var key = secretscan.NewKey([]byte("a key of an installation"), "ws")

// found scans content in writes of the given size.
func found(t testing.TB, name string, content []byte, write int) (all []secretscan.Found) {
	t.Helper()
	stream := theScanner(t).Stream(key, name, nil, func(f secretscan.Found) { all = append(all, f) })
	for len(content) > 0 {
		n := min(write, len(content))
		if _, err := stream.Write(content[:n]); err != nil {
			t.Fatal(err)
		}
		content = content[n:]
	}
	if err := stream.Close(); err != nil {
		t.Fatal(err)
	}
	return all
}

func masked(t testing.TB, name string, content []byte, all []secretscan.Found) []byte {
	t.Helper()
	var spans []secretscan.Span
	for _, f := range all {
		spans = append(spans, secretscan.SpanOf(f))
	}
	var out bytes.Buffer
	if err := secretscan.MaskEntry(t.Context(), &out, bytes.NewReader(content), name, spans); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func has(all []secretscan.Found, rule string) (f secretscan.Found, ok bool) {
	for _, f := range all {
		if f.Rule == rule {
			return f, true
		}
	}
	return f, false
}

// TestScenario92 finds a secret of each kind in each form, at the right place,
// and masks it so that what was JSON still is.
func TestScenario92ASecretIsFoundInEveryForm(t *testing.T) {
	t.Parallel()
	for _, p := range plants(1) {
		for _, form := range forms {
			t.Run(p.kind+" in "+form.name, func(t *testing.T) {
				t.Parallel()
				content := []byte(form.put(p.text))
				name := "notes.txt"
				if form.json {
					name = "events/event-00000-x.json"
				}
				all := found(t, name, content, len(content))
				f, ok := has(all, p.kind)
				if !ok {
					t.Fatalf("not found; found %d others: %+v", len(all), places(all))
				}
				if form.name == "text" && string(content[f.Offset:f.End]) != p.value {
					t.Errorf("found at %d to %d, where %d bytes stand that are not the value", f.Offset, f.End, f.End-f.Offset)
				}
				if form.name == "text" && f.Line != int64(1+strings.Count(string(content[:f.Offset]), "\n")) {
					t.Errorf("found on line %d", f.Line)
				}
				out := masked(t, name, content, all)
				if form.json && !json.Valid(out) {
					t.Errorf("it is no JSON any more when masked")
				}
				if again := found(t, name, out, len(out)); len(again) > 0 {
					t.Errorf("found again when masked: %+v", places(again))
				}
				if bytes.Contains(out, []byte(p.value)) {
					t.Errorf("the value is there when masked")
				}
			})
		}
	}
}

// places is what may be printed of finds.
func places(all []secretscan.Found) (out []string) {
	for _, f := range all {
		out = append(out, fmt.Sprintf("%s at %d", f.Rule, f.Offset))
	}
	return out
}

// TestABorderHidesNothing puts secrets across the ends of pieces, in writes of
// any size, and wants each once.
func TestABorderHidesNothing(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	for _, piece := range []int{256 << 10, 273 << 10} {
		var content bytes.Buffer
		var want []string
		for i, p := range plants(uint64(piece)) {
			at := piece - len(p.text)/2 + (i-9)*7000
			for content.Len() < at {
				content.WriteString("nothing to see here, " + some(r, 5, lower) + "\n")
			}
			want = append(want, p.kind+" "+p.value)
			content.WriteString("\n" + p.text + "\n")
		}
		for content.Len() < piece+(100<<10) {
			content.WriteString("and nothing here\n")
		}
		for _, write := range []int{4093, content.Len()} {
			all := found(t, "log.txt", content.Bytes(), write)
			var got []string
			for _, f := range all {
				got = append(got, f.Rule+" "+content.String()[f.Offset:f.End])
				if line := 1 + strings.Count(content.String()[:f.Offset], "\n"); f.Line != int64(line) {
					t.Fatalf("%s is on line %d, said to be on %d", f.Rule, line, f.Line)
				}
			}
			if len(got) != len(want) || strings.Join(got, "|") != strings.Join(want, "|") {
				t.Fatalf("around %d, in writes of %d: found %v", piece, write, places(all))
			}
		}
	}
}

// TestEverySecretOfALongRowIsFound has a secret across every border.
func TestEverySecretOfALongRowIsFound(t *testing.T) {
	t.Parallel()
	for _, kind := range []int{0, 14, 15} { // a token, a private key, a password
		var content bytes.Buffer
		want := 0
		for seed := uint64(1); content.Len() < 600<<10/race.Slowness; seed++ {
			p := plants(seed % 50)[kind]
			fmt.Fprintf(&content, "%d: %s\n\n", seed, p.text)
			want++
		}
		all := found(t, "log.txt", content.Bytes(), 32<<10)
		if len(all) != want {
			t.Errorf("%d of %d found of kind %d", len(all), want, kind)
		}
	}
}

func TestFingerprintsTellEqualValuesAndNothingElse(t *testing.T) {
	t.Parallel()
	p := plants(5)[0]
	other := plants(6)[0]
	content := []byte("a " + p.text + "\nb " + other.text + "\n" + `c {\"x\": \"` + p.text + `\"}` + "\n")
	all := found(t, "", content, 1<<20)
	if len(all) != 3 || all[0].Fingerprint != all[2].Fingerprint || all[0].Fingerprint == all[1].Fingerprint {
		t.Fatalf("fingerprints of a, b, a: %v", all)
	}
	if again := secretscan.NewKey(nil, "ws"); again == secretscan.NewKey(nil, "ws") || again == key {
		t.Fatal("keys without a secret are equal")
	}
	if secretscan.NewKey([]byte("x"), "a") == secretscan.NewKey([]byte("x"), "b") {
		t.Fatal("two workspaces have one key")
	}
}

// TestPromised finds what an agent-server masks and did not, by the key alone.
func TestScenario92WhatTheAgentServerPromisesToMaskIsChecked(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, file, content string
		want                int
	}{
		{"masked", "base_state.json", `{"llm": {"api_key": "**********", "aws_session_token" : ""}}`, 0},
		{"null", "base_state.json", `{"llm": {"api_key": null}}`, 0},
		{"a short value", "base_state.json", `{"llm": {"api_key" :  "hunter2"}}`, 1},
		{"a number", "meta.json", `{"llm": {"api_key": 12345}}`, 1},
		{"all keys", "meta.json", `{"api_key":"a","aws_access_key_id":"b","aws_secret_access_key":"c","aws_session_token":"d","llm_api_key":"e"}`, 5},
		{"an escaped value", "meta.json", `{"api_key":"a\"b\\c"}`, 1},
		{"a Fernet token", "secrets.json", `["gAAAAABk", "x"]`, 1},
		{"lines of JSON", "x.jsonl", `{"api_key":"a"}` + "\n" + `{"api_key":"b"}`, 2},
		{"JSON that does not parse", "base_state.json", `{"llm": {"api_key": "hunter2"`, 1},
		{"JSON that is cut in the value", "base_state.json", `{"llm": {"api_key": "hunt`, 1},
		{"JSON after a broken string", "base_state.json", `{"a": "b" "c, "api_key": "hunter2"}`, 1},
		{"no JSON by its name", "notes.txt", `{"api_key": "hunter2"}`, 0},
		{"a schema", "tools.json", `{"api_key": {"type": "string"}}`, 0},
		{"a string that speaks of it", "event.json", `{"text": "set \"api_key\": \"hunter2\""}`, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var promised []secretscan.Found
			for _, f := range found(t, row.file, []byte(row.content), 7) {
				if f.Promised {
					promised = append(promised, f)
				}
			}
			if len(promised) != row.want {
				t.Fatalf("found %d, want %d: %v", len(promised), row.want, places(promised))
			}
			out := masked(t, row.file, []byte(row.content), promised)
			if json.Valid([]byte(row.content)) && !json.Valid(out) {
				t.Fatalf("it is no JSON any more: %s", out)
			}
			if row.want > 0 && bytes.Contains(out, []byte("hunt")) {
				t.Fatalf("the value is there: %s", out)
			}
		})
	}
}

// TestALongValueIsMaskedToItsEnd masks a value that is longer than what is kept.
func TestALongValueIsMaskedToItsEnd(t *testing.T) {
	t.Parallel()
	long := some(rand.New(rand.NewPCG(1, 2)), 400<<10/race.Slowness, alnum)
	content := []byte(`{"api_key":"` + long + `","next":"stays"}`)
	out := masked(t, "a.json", content, found(t, "a.json", content, 1<<20))
	if want := `{"api_key":"` + secretscan.Mask + `","next":"stays"}`; string(out) != want {
		t.Fatalf("%d bytes, beginning with %.60q and ending with %q", len(out), out, out[max(0, len(out)-60):])
	}
}

func TestANameIsMasked(t *testing.T) {
	t.Parallel()
	p := plants(9)[0]
	var all []secretscan.Found
	name := theScanner(t).Name(key, "x/bash_events/"+p.text+".json", nil, func(f secretscan.Found) { all = append(all, f) })
	if name != "x/bash_events/"+secretscan.NameMask+".json" || len(all) != 1 || all[0].Rule != p.kind {
		t.Fatalf("%q, %v", name, places(all))
	}
	all = nil
	name = theScanner(t).Name(key, "x/client.p12", nil, func(f secretscan.Found) { all = append(all, f) })
	if name != "x/client.p12" || len(all) != 1 || !all[0].File {
		t.Fatalf("%q, %v", name, places(all))
	}
}

// TestKnownValuesAreFoundWithoutARule finds a value where nothing around says
// what it is.
func TestKnownValuesAreFoundWithoutARule(t *testing.T) {
	t.Parallel()
	p := plants(11)[15] // a password, found by what is before it
	first := []byte(p.text + "\n")
	var known secretscan.Values
	for _, f := range found(t, "", first, 100) {
		if err := known.Add(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, form := range forms {
		content := []byte(form.put("it is " + p.value + " really"))
		var all []secretscan.Found
		stream := theScanner(t).Stream(key, "", &known, func(f secretscan.Found) { all = append(all, f) })
		if _, err := io.Copy(stream, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		if err := stream.Close(); err != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %v", form.name, err, places(all))
		}
	}
}

// What an agent-server promises to mask in an export it does not promise of files.
func TestFilesAreNotHeldToWhatAnAgentServerPromises(t *testing.T) {
	t.Parallel()
	s, err := secretscan.New()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	files := s.Files(secretscan.NewKey([]byte("k"), "ws"), func(f secretscan.Found) { found = append(found, f.Rule) })
	for name, text := range map[string]string{
		"settings.json": `{"api_key": "of the service", "llm_api_key": "gAAAAA"}`,
		"a.txt":         "ghp" + "_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8\n",
	} {
		files.Reset(name)
		if _, err := files.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := files.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(found) != 1 || found[0] != "github-pat" {
		t.Errorf("found %q", found)
	}
}
