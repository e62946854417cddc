package exports

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"gocloud.dev/blob/memblob"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports/secretscan"
)

type oneConversation struct{ data []byte }

func (o oneConversation) Conversations(context.Context) ([]box.ConversationMark, error) {
	return []box.ConversationMark{{ID: strings.Repeat("a", 32), Events: 1}}, nil
}

func (o oneConversation) Download(context.Context, string) (io.ReadCloser, int64, error) {
	return io.NopCloser(bytes.NewReader(o.data)), int64(len(o.data)), nil
}

func oneEvent(t testing.TB, id string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	f, err := w.Create(id + "/events/event-00000-a.json")
	if err == nil {
		_, err = io.WriteString(f, `{"kind":"MessageEvent"}`)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestAScannerThatFailsIsNoExport breaks the scanner, and wants no receipt and
// no manifest.
func TestAScannerThatFailsIsNoExport(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	s := New(memblob.OpenBucket(nil), Options{SpoolDir: t.TempDir()})
	broken := errors.New("the rules are broken")
	s.scanner = func() (*secretscan.Scanner, error) { return nil, broken }
	req := Request{Workspace: "ws", Epoch: 1, Attempt: "a"}
	receipt, err := s.Export(t.Context(), req, oneConversation{oneEvent(t, id)}, nil)
	if !errors.Is(err, broken) || !receipt.IsZero() {
		t.Fatalf("%v, %+v", err, receipt)
	}
}

// TestWhatIsNotLookedThroughIsNotExported leaves an object out of the scan.
func TestWhatIsNotLookedThroughIsNotExported(t *testing.T) {
	t.Parallel()
	s := New(memblob.OpenBucket(nil), Options{SpoolDir: t.TempDir()})
	req := Request{Workspace: "ws", Epoch: 1, Attempt: "a"}
	scan, err := s.newScan(req)
	if err != nil {
		t.Fatal(err)
	}
	e := &exporter{store: s, req: req, scan: scan, report: func(Progress) {}, prefix: attemptPrefix("ws", 1, "a")}
	entry := ConversationEntry{ID: strings.Repeat("a", 32), Key: objectKey(e.prefix, strings.Repeat("a", 32), 1), Bytes: 1, SHA256: strings.Repeat("0", 64), Events: 1}
	if _, err := e.secretsReport(t.Context(), "a", objectIDs([]ConversationEntry{entry})); box.ClassOf(err) != box.ClassInternal {
		t.Fatalf("a conversation that nobody looked through: %v", err)
	}
	// One that cannot be read to its end is not looked through either.
	f, err := s.spoolFrom(t.Context(), bytes.NewReader(oneEvent(t, entry.ID)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it has no name any more
	z, err := openZip(f.file, f.size)
	if err != nil {
		t.Fatal(err)
	}
	var at int64
	if err := z.walk(t.Context(), func(e zipEntry) error { at = e.header; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := f.file.WriteAt([]byte{0xff, 0xff, 0xff, 0xff}, at+localLen+60); err != nil {
		t.Fatal(err)
	}
	if found, err := scan.look(t.Context(), f, nil); err == nil {
		t.Fatalf("a damaged entry was looked through: %+v", found.object)
	}
}

// TestMaskedZips holds the writer to other readers of the format, and to our own.
func TestMaskedZips(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	value := "ghp" + "_" + "aB3dE6fG7hJ8kL9mN0pQ1rS2tU4vW5xY6zA7"
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, f := range []struct{ name, content string }{
		{"events/", ""},
		{"events/event-00000-a.json", `{"text":"` + value + `"}`},
		{"events/event-00001-" + value + ".json", `{"text":"x"}`},
		{"events/event-00002-" + value + ".json", `{"text":"y"}`},
		{"key.p12", "\x00\x01binary"},
		{"empty", ""},
		{"large.txt", strings.Repeat("nothing here\n", 100_000) + value + "\n"},
		{"ünï.txt", "x"},
	} {
		header := &zip.FileHeader{Name: id + "/" + f.name, Method: zip.Deflate}
		if f.content == "" {
			header.Method = zip.Store
		}
		out, err := w.CreateHeader(header)
		if err == nil {
			_, err = io.WriteString(out, f.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s := New(memblob.OpenBucket(nil), Options{SpoolDir: t.TempDir()})
	req := Request{Workspace: "ws", Epoch: 1, Attempt: "a", Secrets: box.SecretsRedact}
	scan, err := s.newScan(req)
	if err != nil {
		t.Fatal(err)
	}
	e := &exporter{store: s, req: req, scan: scan, report: func(Progress) {}}
	f, err := s.spoolFrom(t.Context(), &buf, nil)
	if err != nil {
		t.Fatal(err)
	}
	masked, object, err := e.clean(t.Context(), id, f, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer masked.Close() //nolint:errcheck // it has no name any more
	if object.Findings != 5 || object.Masked != 5 || object.Entries != 8 {
		t.Errorf("found %+v", object)
	}
	z, err := zip.NewReader(masked.file, masked.size)
	if err != nil {
		t.Fatal(err)
	}
	if z.Comment != maskedComment {
		t.Errorf("comment %q", z.Comment)
	}
	want := map[string]string{
		"events/":                          "",
		"events/event-00000-a.json":        `{"text":"**********"}`,
		"events/event-00001-masked-1.json": `{"text":"x"}`,
		"events/event-00002-masked-2.json": `{"text":"y"}`,
		"key.p12":                          secretscan.Mask,
		"empty":                            "",
		"large.txt":                        strings.Repeat("nothing here\n", 100_000) + secretscan.Mask + "\n",
		"ünï.txt":                          "x",
	}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		name := strings.TrimPrefix(f.Name, id+"/")
		if text, ok := want[name]; !ok || text != string(content) {
			t.Errorf("%q holds %.60q, want %.60q", name, content, text)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}
