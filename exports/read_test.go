package exports_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func export(t *testing.T, s *exports.Store, epoch int, attempt string, src *server) box.Receipt {
	t.Helper()
	receipt, err := s.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: epoch, Attempt: attempt}, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	return receipt
}

func TestMostCompleteCopyWins(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{Now: clock})
	export(t, s, 1, "a", newServer(9, 2))
	export(t, s, 2, "a", newServer(4, 2, 5)) // a box that was rolled back
	all, err := s.Histories(t.Context(), "ws")
	if err != nil {
		t.Fatal(err)
	}
	type short struct {
		id     string
		events int
		epoch  int
	}
	var got []short
	for _, h := range all {
		got = append(got, short{h.ID, h.Events, h.Epoch})
	}
	if want := []short{{hex32(1), 9, 1}, {hex32(2), 2, 2}, {hex32(3), 5, 2}}; !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	listed, err := s.Conversations(t.Context(), "ws")
	if err != nil || len(listed) != 3 || listed[0] != all[0].ConversationEntry {
		t.Fatalf("%+v %v", listed, err)
	}
	// The best copy breaks: reading falls back, and says so where it lists.
	b.change(all[0].Key, func(d []byte) []byte { d[len(d)-22] ^= 1; return d })
	after, err := s.Histories(t.Context(), "ws")
	wantClass(t, err, box.ClassUnknown)
	if len(after) != 3 || after[0].Events != 4 || after[0].Epoch != 2 {
		t.Errorf("%+v", after)
	}
	n := 0
	for _, err := range s.Events(t.Context(), "ws", hex32(1)) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 4 {
		t.Errorf("%d events", n)
	}
	// A manifest breaks: the others are still read.
	b.change("exports/ws/0001/a/manifest.json", func(d []byte) []byte { return d[:30] })
	listed, err = s.Conversations(t.Context(), "ws")
	wantClass(t, err, box.ClassUnknown)
	if len(listed) != 3 || listed[0].Events != 4 {
		t.Errorf("%+v", listed)
	}
}

func TestUnfinishedAttemptIsNeverRead(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	b.beforeWrite = func(_ int, key string) error {
		if strings.HasSuffix(key, "manifest.json") {
			return errFailing
		}
		return nil
	}
	if _, err := s.Export(t.Context(), request("a"), newServer(3), nil); err == nil {
		t.Fatal("no error")
	}
	if len(b.keys()) != 2 { // the conversation, and the report of secrets
		t.Fatalf("%v", b.keys())
	}
	if all, err := s.Conversations(t.Context(), "ws"); err != nil || len(all) != 0 {
		t.Errorf("%v %v", all, err)
	}
	for _, err := range s.Events(t.Context(), "ws", hex32(1)) {
		wantClass(t, err, box.ClassNotFound)
	}
}

// one exports a single conversation whose zip is given.
func one(t *testing.T, events int, data []byte) *exports.Store {
	t.Helper()
	s := newBucket().store(exports.Options{SpoolDir: t.TempDir(), Now: clock})
	src := newServer(events)
	src.served = func(int, string, []byte) (io.ReadCloser, int64, error) { return body(data) }
	if _, err := s.Export(t.Context(), request("a"), src, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEventsAreReadLenientlyAndInOrder(t *testing.T) {
	t.Parallel()
	id := hex32(1)
	big := `{"kind":"Big","x":"` + strings.Repeat("y", 9<<20) + `"}`
	data := zipped(t, func(w *zip.Writer) {
		entry(t, w, &zip.FileHeader{Name: id + "/events/event-00010-last.json"}, `{"kind":"MessageEvent","source":"agent","id":"own","timestamp":"2026-11-29T10:00:00Z"}`)
		entry(t, w, &zip.FileHeader{Name: id + "/events/event-00002-b.json"}, `not json`)
		entry(t, w, &zip.FileHeader{Name: id + "/events/event-00003-c.json"}, `{"kind":7,"source":["x"],"timestamp":"yesterday","id":null}`)
		entry(t, w, &zip.FileHeader{Name: id + "/events/event-00000-a.json", Method: zip.Deflate}, `{"kind":"SystemPromptEvent"}`)
		entry(t, w, &zip.FileHeader{Name: id + "/events/event-00004-d.json", Method: zip.Deflate}, big)
		entry(t, w, &zip.FileHeader{Name: id + "/events/.eventlog.lock"}, ``)
		entry(t, w, &zip.FileHeader{Name: id + "/events/event-0005-short.json"}, `{}`)
		entry(t, w, &zip.FileHeader{Name: id + "/bash_events/event-00006-x.json"}, `{}`)
	})
	s := one(t, 5, data)
	var got []string
	for e, err := range s.Events(t.Context(), "ws", id) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s %q %q %v raw=%d size=%d", e.Index, e.ID, e.Kind, e.Source, !e.Timestamp.IsZero(), len(e.Raw), e.SizeBytes))
	}
	want := []string{
		`0 a "SystemPromptEvent" "" false raw=28 size=28`,
		`2 b "" "" false raw=8 size=8`,
		`3 c "" "" false raw=59 size=59`,
		fmt.Sprintf(`4 d "" "" false raw=0 size=%d`, len(big)),
		`10 own "MessageEvent" "agent" true raw=86 size=86`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	// A reader may stop early.
	for range s.Events(t.Context(), "ws", id) { //nolint:errcheck // it stops before there can be one
		break
	}
	var text bytes.Buffer
	if err := s.WriteText(t.Context(), &text, "ws", id); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"#2\n    (not JSON) not json\n", "not shown; it is in the zip", "#10 2026-11-29T10:00:00Z agent MessageEvent"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in %.2000s", want, text.String())
		}
	}
}

func TestTextCannotDriveATerminal(t *testing.T) {
	t.Parallel()
	hostile := "red\x1b[31m \x07bell \x9b2J c1 \u202eevil\u2066 \u200b|\u2028#99 agent\r\n#98 fake head\tTab"
	events := []string{
		message(hostile),
		`{"kind":"K\u001b]0;title\u0007\n#97 x","source":"user\u202e","id":"x"}`,
		`{"kind":"NewThing","action":{"command":"rm -rf /","n":3,"nested":[{"text":"deep"},null,true]},"\u001b[0m":"key"}`,
		"\xff\xfe\x1b[2J",
		`[1,"\u001b"]`,
		`"\u009b31m"`,
	}
	s := one(t, len(events), packed(hex32(1), events...))
	var out strings.Builder
	if err := s.WriteText(t.Context(), &out, "ws", hex32(1)); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, r := range text {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)) {
			t.Errorf("%U is in the text", r)
		}
	}
	heads := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			heads++
		}
	}
	if heads != len(events) {
		t.Errorf("%d heads for %d events:\n%s", heads, len(events), text)
	}
	for _, want := range []string{`red\x1b[31m`, `\u{202e}evil`, "action.command: rm -rf /", "action.n: 3", "action.nested: deep", "llm_message.content: red"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteTextTellsOfItsWriter(t *testing.T) {
	t.Parallel()
	s := one(t, 1, packed(hex32(1), "{}"))
	if err := s.WriteText(t.Context(), brokenPipe{}, "ws", hex32(1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
	wantClass(t, s.WriteText(t.Context(), io.Discard, "ws", "../x"), box.ClassInvalid)
	wantClass(t, s.WriteText(t.Context(), io.Discard, "other", hex32(1)), box.ClassNotFound)
}

func TestVerifyRefusesOtherKeys(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	receipt := export(t, s, 1, "a", newServer(1))
	for _, r := range []box.Receipt{{}, {Key: "ledger/ws/00000001.json"}, {Key: "exports/other/0001/a/manifest.json"}, {Key: "exports/ws/0001/../../x/manifest.json"}} {
		_, err := s.Verify(t.Context(), "ws", r)
		wantClass(t, err, box.ClassInvalid)
	}
	if report, err := s.Verify(t.Context(), "ws", box.Receipt{Key: receipt.Key}); err != nil || report.Receipt != receipt {
		t.Errorf("by key alone: %+v %v", report, err)
	}
	for name, change := range map[string]func(*box.Receipt){
		"sum": func(r *box.Receipt) { r.SHA256 = strings.Repeat("0", 64) }, "digest": func(r *box.Receipt) { r.Digest = "x" },
		"epoch": func(r *box.Receipt) { r.Epoch++ }, "events": func(r *box.Receipt) { r.Events++ },
	} {
		other := receipt
		change(&other)
		if _, err := s.Verify(t.Context(), "ws", other); box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("a receipt with another %s: %v", name, err)
		}
	}
}

func TestVerifyFindsAnotherWholeZip(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{})
	stored := func(text string) []byte {
		return zipped(t, func(w *zip.Writer) {
			entry(t, w, &zip.FileHeader{Name: hex32(1) + "/events/event-00000-x.json"}, text)
		})
	}
	src := newServer(1)
	src.served = func(int, string, []byte) (io.ReadCloser, int64, error) { return body(stored(`"said"`)) }
	receipt := export(t, s, 1, "a", src)
	b.change("exports/ws/0001/a/conversations/"+hex32(1)+".zip", func(old []byte) []byte {
		other := stored(`"SAID"`)
		if len(other) != len(old) {
			t.Fatalf("%d bytes and %d", len(other), len(old))
		}
		return other
	})
	_, err := s.Verify(t.Context(), "ws", receipt)
	wantClass(t, err, box.ClassUnknown)
}
