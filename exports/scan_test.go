package exports_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// leak is a made-up secret, made here so that no file of this repository holds
// one.
type leak struct{ rule, value, text string }

func leaks(seed uint64) []leak {
	r := rand.New(rand.NewPCG(seed, 99))
	some := func(n int, of string) string {
		out := make([]byte, n)
		for i := range out {
			out[i] = of[r.IntN(len(of))]
		}
		return string(out)
	}
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	pat := "ghp" + "_" + some(36, alnum)
	aws := "AK" + "IA" + some(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
	password := some(22, alnum) + "9x"
	body := some(64, alnum) + "\n" + some(64, alnum) + "\n" + some(60, alnum)
	pem := "-----BEGIN RSA PRIVATE" + " KEY-----\n" + body + "\n-----END RSA PRIVATE" + " KEY-----"
	return []leak{
		{"github-pat", pat, pat},
		{"aws-access-token", aws, aws},
		{"generic-api-key", password, "DB_PASSWORD=" + password},
		{"private-key", some(0, alnum) + body, pem},
	}
}

// files packs a conversation with the given entries, in order.
func files(id string, pairs ...string) []byte {
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for i := 0; i < len(pairs); i += 2 {
		f, err := w.Create(id + "/" + pairs[i])
		if err != nil {
			panic(err)
		}
		if _, err := io.WriteString(f, pairs[i+1]); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// leaky is a server whose first conversation holds the leaks in events, in a
// name, in an entry that is no JSON, in base64 and without a rule around it; the
// second holds none.
func leaky(all []leak) *server {
	src := newServer(4, 3)
	id := hex32(1)
	src.served = func(_ int, asked string, honest []byte) (io.ReadCloser, int64, error) {
		if asked != id {
			return body(honest)
		}
		quote := func(v any) string {
			data, err := json.Marshal(v)
			if err != nil {
				panic(err)
			}
			return string(data)
		}
		inner := quote(map[string]string{"command": "cat <<X\n" + all[3].text + "\nX"})
		return body(files(id,
			"meta.json", `{"id":"`+id+`"}`,
			"base_state.json", `{"execution_status":"idle","agent":{"llm":{"api_key":"**********"}}}`,
			"events/event-00000-a.json", message("look: "+all[0].text+" \"quoted\""),
			"events/event-00001-b.json", quote(map[string]any{"kind": "ActionEvent", "arguments": inner}),
			"events/event-00002-c.json", message(all[2].text+"\nand again "+all[2].value+" alone"),
			"events/event-00003-d.json", message("data "+base64.StdEncoding.EncodeToString([]byte("first\n"+all[1].text+"\nlast"))),
			"notes/"+all[0].value+".txt", "plain text\n"+all[1].text+"\n",
			"notes/broken.json", `{"text": "`+all[2].text+`", `,
		))
	}
	return src
}

// everything is all that the store holds, unpacked too, and all that an error
// says.
func everything(t testing.TB, b *bucket, errs ...error) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, key := range b.keys() {
		data := b.objects[key]
		fmt.Fprintf(&out, "%s\n%s\n", key, data)
		if !strings.HasSuffix(key, ".zip") {
			continue
		}
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatalf("%s in %s: %v", f.Name, key, err)
			}
			fmt.Fprintf(&out, "%s\n%s\n", f.Name, content)
			var v any
			if json.Unmarshal(content, &v) == nil {
				fmt.Fprintf(&out, "%v\n", v)
			} else if strings.HasPrefix(f.Name[33:], "events/") {
				t.Errorf("%s is no JSON", f.Name)
			}
		}
	}
	for _, err := range errs {
		fmt.Fprintf(&out, "%v %+v %#v\n", err, err, err)
	}
	return out.Bytes()
}

func wantNone(t testing.TB, where []byte, all []leak) {
	t.Helper()
	for _, l := range all {
		for _, form := range []string{l.value, strings.ReplaceAll(l.value, "\n", `\n`), strings.ReplaceAll(l.value, "\n", `\\n`), base64.StdEncoding.EncodeToString([]byte("first\n" + l.text + "\nlast"))} {
			if i := bytes.Index(where, []byte(form)); i >= 0 {
				t.Errorf("a value of %s is there, after %q", l.rule, where[max(0, i-80):i])
			}
		}
	}
}

func withPolicy(attempt string, p box.SecretsPolicy) exports.Request {
	req := request(attempt)
	req.Secrets = p
	return req
}

func reportOf(t testing.TB, s *exports.Store, manifest string) exports.SecretsReport {
	t.Helper()
	r, err := s.Secrets(t.Context(), manifest)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func rulesIn(r exports.SecretsReport) (out []string) {
	for _, o := range r.Objects {
		for _, f := range o.List {
			out = append(out, f.Rule)
		}
	}
	return out
}

// TestScenario92 keeps what it finds and says where, and says nowhere what.
func TestScenario92KeptSecretsAreReportedWithoutTheirValues(t *testing.T) {
	t.Parallel()
	all := leaks(1)
	b := newBucket()
	s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir(), FingerprintKey: []byte("key")})
	var told []exports.Progress
	receipt, err := s.Export(t.Context(), request("a"), leaky(all), func(p exports.Progress) { told = append(told, p) })
	if err != nil {
		t.Fatal(err)
	}
	r := reportOf(t, s, receipt.Key)
	if r.Policy != box.SecretsKeep || r.Findings != 7 || r.Masked != 0 || len(r.Objects) != 2 || r.Objects[1].Findings != 0 || r.Objects[1].Entries != 5 {
		t.Fatalf("report %+v", r)
	}
	for _, l := range all {
		if !slices.Contains(rulesIn(r), l.rule) {
			t.Errorf("no %s in the report", l.rule)
		}
	}
	same := map[string]int{}
	for _, f := range r.Objects[0].List {
		same[f.Fingerprint]++
		if f.Line == 0 || f.Entry == "" {
			t.Errorf("no place: %+v", f)
		}
	}
	if len(same) != 4 {
		t.Errorf("%d different values, want 4: %v", len(same), same)
	}
	b.change(r.Objects[0].Key, func([]byte) []byte { return nil }) // the one place where they may stand
	text := everything(t, b)
	wantNone(t, append(text, fmt.Sprintf("%+v %+v %+v", receipt, told, r)...), all)
	if !bytes.Contains(text, []byte("github-pat")) {
		t.Error("the report is not among what was looked through")
	}
}

// TestScenario92 masks every value wherever it stands: an event stays an event,
// the export proves itself, and a second run writes the same bytes.
func TestScenario92RedactedSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	all := leaks(2)
	var first map[string][]byte
	for run := range 2 {
		b := newBucket()
		s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir(), FingerprintKey: []byte("key")})
		receipt, err := s.Export(t.Context(), withPolicy("a", box.SecretsRedact), leaky(all), nil)
		if err != nil {
			t.Fatal(err)
		}
		if receipt.Events != 7 || receipt.Conversations != 2 {
			t.Fatalf("receipt %+v", receipt)
		}
		if _, err := s.Verify(t.Context(), "ws", receipt); err != nil {
			t.Fatal(err)
		}
		r := reportOf(t, s, receipt.Key)
		if r.Findings != r.Masked || r.Masked < 7 {
			t.Fatalf("report %+v", r)
		}
		wantNone(t, everything(t, b), all)
		events := 0
		for e, err := range s.Events(t.Context(), "ws", hex32(1)) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == "" {
				t.Errorf("event %d is not readable any more: %s", e.Index, e.Raw)
			}
			events++
		}
		if events != 4 {
			t.Fatalf("%d events", events)
		}
		if run == 0 {
			first = b.objects
			continue
		}
		for key, data := range b.objects {
			if !bytes.Equal(data, first[key]) {
				t.Errorf("%s differs between two runs", key)
			}
		}
	}
}

// TestScenario92 blocks: no receipt, nothing with a secret in the store, and a
// report that tells where.
func TestScenario92BlockedSecretsLeaveAReportOnly(t *testing.T) {
	t.Parallel()
	all := leaks(3)
	b := newBucket()
	s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir()})
	receipt, err := s.Export(t.Context(), withPolicy("a", box.SecretsBlock), leaky(all), nil)
	wantClass(t, err, box.ClassFailedPrecondition)
	if !receipt.IsZero() {
		t.Fatal("there is a receipt")
	}
	report := "exports/ws/0001/a/secrets.json"
	if !strings.Contains(err.Error(), report) || !strings.Contains(err.Error(), "7 possible secrets") {
		t.Errorf("the error says %q", err)
	}
	if !slices.Contains(b.keys(), report) || slices.ContainsFunc(b.keys(), func(k string) bool { return strings.HasSuffix(k, "manifest.json") }) {
		t.Errorf("the store holds %v", b.keys())
	}
	wantNone(t, everything(t, b, err), all)
	clean, err := s.Export(t.Context(), withPolicy("b", box.SecretsBlock), newServer(2), nil)
	if err != nil || clean.IsZero() {
		t.Fatalf("a history without secrets: %v", err)
	}
}

// TestScenario92 checks what the agent-server promised to mask: it is masked
// under every policy, also in a file that does not parse.
func TestScenario92UnmaskedKeysAreMaskedAlways(t *testing.T) {
	t.Parallel()
	for _, policy := range []box.SecretsPolicy{box.SecretsKeep, box.SecretsRedact, box.SecretsBlock} {
		src := newServer(1)
		id := hex32(1)
		src.served = func(int, string, []byte) (io.ReadCloser, int64, error) {
			return body(files(id,
				"meta.json", `{"llm_api_key": "hunter2hunter2", "n": 1}`,
				"base_state.json", `{"agent":{"llm":{"api_key":"hunter2hunter2`,
				"events/event-00000-a.json", message("hello"),
			))
		}
		b := newBucket()
		s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir()})
		receipt, err := s.Export(t.Context(), withPolicy("a", policy), src, nil)
		if err != nil {
			t.Fatalf("%s: %v", policy, err)
		}
		if r := reportOf(t, s, receipt.Key); r.Findings != 2 || r.Masked != 2 {
			t.Fatalf("%s: %+v", policy, r)
		}
		if bytes.Contains(everything(t, b), []byte("hunter2")) {
			t.Errorf("%s: an unmasked key is in the store", policy)
		}
	}
}

// TestAnInterruptedExportTellsWhatItMasked repeats an export that broke off
// after each write: the report is that of an export in one go.
func TestAnInterruptedExportTellsWhatItMasked(t *testing.T) {
	t.Parallel()
	all := leaks(4)
	for _, policy := range []box.SecretsPolicy{box.SecretsKeep, box.SecretsRedact} {
		var want map[string][]byte
		for fail := range 6 {
			b := newBucket()
			b.afterWrite = func(n int, _ string) error {
				if n == fail {
					return errFailing
				}
				return nil
			}
			s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir(), FingerprintKey: []byte("key")})
			_, err := s.Export(t.Context(), withPolicy("a", policy), leaky(all), nil)
			if (err == nil) != (fail == 0 || fail > 4) {
				t.Fatalf("%s, write %d failed: %v", policy, fail, err)
			}
			if _, err := s.Export(t.Context(), withPolicy("a", policy), leaky(all), nil); err != nil {
				t.Fatal(err)
			}
			if fail == 0 {
				want = b.objects
				continue
			}
			for _, key := range b.keys() {
				if !bytes.Equal(b.objects[key], want[key]) {
					t.Errorf("%s, write %d failed: %s is not as in one go", policy, fail, key)
				}
			}
		}
	}
}

// TestAReusedConversationIsReportedAgain carries over what an earlier export
// found, unless the policy is another one now.
func TestAReusedConversationIsReportedAgain(t *testing.T) {
	t.Parallel()
	all := leaks(5)
	b := newBucket()
	s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir(), FingerprintKey: []byte("key")})
	src := leaky(all)
	first, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := len(src.downloads)
	next := func(attempt string, p box.SecretsPolicy) (box.Receipt, error) {
		req := withPolicy(attempt, p)
		req.Previous = first
		return s.Export(t.Context(), req, src, nil)
	}
	again, err := next("b", box.SecretsKeep)
	if err != nil || len(src.downloads) != before || again.Reused != 2 {
		t.Fatalf("%v, %d downloads more, %+v", err, len(src.downloads)-before, again)
	}
	a, c := reportOf(t, s, first.Key), reportOf(t, s, again.Key)
	if c.Findings != a.Findings || fmt.Sprint(c.Objects) != fmt.Sprint(a.Objects) {
		t.Errorf("the report says\n%+v\nand the one before\n%+v", c, a)
	}
	if _, err = next("c", box.SecretsBlock); box.ClassOf(err) != box.ClassFailedPrecondition {
		t.Errorf("a policy that blocks: %v", err)
	}
	masked, err := next("d", box.SecretsRedact)
	if err != nil || len(src.downloads) != before+1 || masked.Reused != 1 {
		t.Fatalf("a policy that masks: %v, %d downloads more, %+v", err, len(src.downloads)-before, masked)
	}
	for _, o := range reportOf(t, s, masked.Key).Objects {
		if o.Findings != o.Masked {
			t.Errorf("not all is masked: %+v", o)
		}
	}
}

// TestALostReportIsNoExport holds the report to what the manifest says of it.
func TestALostReportIsNoExport(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir()})
	receipt, err := s.Export(t.Context(), request("a"), leaky(leaks(6)), nil)
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Verify(t.Context(), "ws", receipt)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func([]byte) []byte{
		func(d []byte) []byte { return bytes.Replace(d, []byte(`"line": 2`), []byte(`"line": 9`), 1) },
		func([]byte) []byte { return nil },
	} {
		b.change("exports/ws/0001/a/secrets.json", change)
		if _, err := s.Verify(t.Context(), "ws", receipt); box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("verify: %v", err)
		}
		if err := s.Unchanged(t.Context(), report); box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("unchanged: %v", err)
		}
	}
}

// TestManySecretsAreCountedAndNotAllListed bounds the report.
func TestManySecretsAreCountedAndNotAllListed(t *testing.T) {
	t.Parallel()
	const events, each = 40, 20
	src := newServer(events)
	src.served = func(int, string, []byte) (io.ReadCloser, int64, error) {
		var lines []string
		for i := range events {
			text := ""
			for j := range each {
				text += leaks(uint64(1000 + i*each + j))[0].text + "\n"
			}
			lines = append(lines, message(text))
		}
		return body(packed(hex32(1), lines...))
	}
	b := newBucket()
	s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir()})
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := reportOf(t, s, receipt.Key)
	if r.Findings != events*each || len(r.Objects[0].List) != 200 || r.Unlisted != events*each-200 {
		t.Fatalf("%d found, %d listed, %d not", r.Findings, len(r.Objects[0].List), r.Unlisted)
	}
}

// TestACancelledScanEndsTheExport cancels in the middle of a look.
func TestACancelledScanEndsTheExport(t *testing.T) {
	t.Parallel()
	for _, stage := range []exports.Stage{exports.StageScan, exports.StageMask} {
		b := newBucket()
		s := b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir()})
		ctx, cancel := context.WithCancel(t.Context())
		seen := false
		receipt, err := s.Export(ctx, withPolicy("a", box.SecretsRedact), leaky(leaks(7)), func(p exports.Progress) {
			if p.Stage == stage && p.Bytes >= 0 {
				seen = true
				cancel()
			}
		})
		cancel()
		wantClass(t, err, box.ClassCanceled)
		if !seen || !receipt.IsZero() || !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: %v", stage, err)
		}
	}
}
