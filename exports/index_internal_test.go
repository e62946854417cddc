package exports

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"gocloud.dev/blob/memblob"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
	"github.com/openhands/boxkeeper/workspacetar"
)

// indexed writes an index into a new store.
func indexed(t testing.TB, chunks []chunk, entries []workspacetar.Entry) (*Store, WorkspaceArchive) {
	t.Helper()
	var out bytes.Buffer
	w, err := newIndexWriter(&out)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, e := range entries {
		if err := w.entry(e); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if err := w.chunks(chunks); err != nil {
		t.Fatalf("%v", err)
	}
	a := WorkspaceArchive{Chunks: len(chunks)}
	for _, c := range chunks {
		a.Bytes += int64(c.bytes)
	}
	if a.Index, err = w.finish(a.Chunks, a.Bytes); err != nil {
		t.Fatalf("%v", err)
	}
	a.Index.Key = "exports/ws/0001/a/workspace.json.zst"
	s := New(memblob.OpenBucket(nil), Options{})
	if err := s.put(t.Context(), a.Index.Key, "application/zstd", &out, nil); err != nil {
		t.Fatalf("%v", err)
	}
	return s, a
}

func numbered(n int) []chunk {
	out := make([]chunk, n)
	for i := range out {
		out[i] = chunk{sum: sha256.Sum256([]byte(fmt.Sprint(i))), bytes: int32(1 + i%7), stored: int32(1 + i%5), copy: int32(1 + i%3)}
	}
	return out
}

// Many frames of each kind, read in every way.
func TestAnIndexGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	chunks := numbered(5000)
	total := int64(0)
	for _, c := range chunks {
		total += int64(c.bytes)
	}
	var entries []workspacetar.Entry
	for i := range 6000 {
		e := workspacetar.Entry{ManifestEntry: box.ManifestEntry{Name: fmt.Sprintf("files/%05d\xff", i), Type: "file", Bytes: int64(i % 3)}, Offset: int64(i)}
		if i%10 == 9 {
			e.Name, e.Type = fmt.Sprintf("repositories/%06d", i), workspacetar.TypePart
		}
		entries = append(entries, e)
	}
	s, a := indexed(t, chunks, entries)
	x, err := s.openIndex(t.Context(), "ws", a)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(x.directory.Pieces); n < 6 {
		t.Fatalf("%d frames only", n)
	}
	var back []chunk
	if err := x.eachChunk(t.Context(), func(c chunk) error { back = append(back, c); return nil }); err != nil || !slices.Equal(back, chunks) {
		t.Errorf("%d chunks came back: %v", len(back), err)
	}
	var read []workspacetar.Entry
	for _, kind := range []pieceKind{pieceFiles, pieceParts} {
		if err := x.entries(t.Context(), kind, "", func(e workspacetar.Entry) bool { read = append(read, e); return true }); err != nil {
			t.Error(err)
		}
	}
	if len(read) != len(entries) {
		t.Errorf("%d entries came back", len(read))
	}
	const step = 7 * race.Slowness // each look unpacks a frame, which has hundreds
	for i := 0; i < len(entries); i += step {
		want := entries[i]
		if want.Type != "file" {
			continue
		}
		looked := 0
		err := x.entries(t.Context(), pieceFiles, want.Name, func(e workspacetar.Entry) bool {
			looked++
			return e.Name != want.Name
		})
		if err != nil || looked > pieceSize/50 {
			t.Fatalf("%q: %d entries were looked at: %v", want.Name, looked, err)
		}
	}
	at := int64(0)
	for i, want := range chunks {
		for _, offset := range []int64{at, at + int64(want.bytes) - 1} {
			if i%step != 0 {
				break
			}
			if c, begins, err := x.find(t.Context(), offset); err != nil || begins != at || c != want {
				t.Fatalf("at %d: %+v from %d: %v", offset, c, begins, err)
			}
		}
		at += int64(want.bytes)
	}
	if _, _, err := x.find(t.Context(), total); box.ClassOf(err) != box.ClassUnknown {
		t.Errorf("beyond the end: %v", err)
	}
}

// FuzzIndex gives any directory and any frame: what is taken must hold together.
func FuzzIndex(f *testing.F) {
	line := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		return append(text, '\n')
	}
	sum := sumOf(nil)
	f.Add(line(indexDirectory{Version: 1, Chunks: 1, Bytes: 5, Pieces: []piece{{Kind: pieceChunks, Bytes: 9, SHA256: sum, Lines: 1}}}), line(chunkLine{Chunk: sum, Bytes: 5, Stored: 3}), 1, int64(5), int64(10))
	f.Add(line(indexDirectory{Version: 1, Pieces: []piece{{Kind: pieceFiles, Bytes: 9, SHA256: sum, Lines: 1, First: "files/a"}}}), line(workspacetar.Entry{ManifestEntry: box.ManifestEntry{Name: "files/a", Type: "file", Bytes: 5}}), 0, int64(5), int64(10))
	f.Add([]byte("{}"), []byte("{}\n"), 0, int64(0), int64(0))
	f.Add([]byte("0"), []byte(`{"nAme":"0"}`+"\n"), 0, int64(-49), int64(10))
	f.Fuzz(func(t *testing.T, directory, text []byte, chunks int, tarBytes, indexBytes int64) {
		a := WorkspaceArchive{Chunks: chunks, Bytes: tarBytes, Index: WorkspaceIndex{Bytes: indexBytes, DirectoryBytes: 1}}
		d, err := decodeDirectory(directory, a)
		if err != nil {
			d.Pieces = []piece{{Kind: pieceChunks, Lines: 1}, {Kind: pieceFiles, Lines: 1, First: "files/a"}, {Kind: pieceParts, Lines: 2}}
		} else {
			at := int64(0)
			for _, p := range d.Pieces {
				if p.At != at {
					t.Errorf("a frame at %d follows one that ends at %d", p.At, at)
				}
				at += p.Bytes
			}
		}
		for _, p := range d.Pieces {
			if list, err := decodeChunks(text, p); err == nil && len(list) != p.Lines {
				t.Errorf("%d chunks of %d lines", len(list), p.Lines)
			}
			n, last := 0, ""
			err := decodeEntries(text, p, tarBytes, func(e workspacetar.Entry) bool {
				if n++; !workspacetar.Whole(e.Name) || e.Offset < 0 || e.Bytes < 0 || e.Offset+e.Bytes > tarBytes {
					t.Errorf("took %+v of a tar of %d", e, tarBytes)
				}
				if p.Kind == pieceFiles && workspacetar.Order(last, e.Name) >= 0 {
					t.Errorf("%q after %q", e.Name, last)
				}
				last = e.Name
				return true
			})
			if err == nil && n != p.Lines {
				t.Errorf("%d entries of %d lines", n, p.Lines)
			}
		}
	})
}

// What is cut must be what came in, whatever the sizes of the writes, and the
// same content must be cut alike.
func TestCutsDependOnTheContentAlone(t *testing.T) {
	t.Parallel()
	var content []byte
	for block := sha256.Sum256(nil); len(content) < 20<<20; {
		block = sha256.Sum256(block[:])
		content = append(content, block[:]...)
	}
	content = append(content, make([]byte, 20<<20)...) // zeros are cut at the most
	cut := func(step int) (cuts []int) {
		var back []byte
		c := newCutter(func(data []byte) error {
			cuts, back = append(cuts, len(data)), append(back, data...)
			return nil
		})
		for rest := content; len(rest) > 0; {
			n := min(step, len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, content) || c.size != int64(len(content)) {
			t.Error("other bytes came out")
		}
		return cuts
	}
	want := cut(1 << 20)
	for i, n := range want {
		if n > maxChunk || n < minChunk && i != len(want)-1 {
			t.Errorf("cut %d is of %d bytes", i, n)
		}
	}
	for _, step := range []int{1000, 128 << 10, 64 << 20} {
		if got := cut(step); !slices.Equal(got, want) {
			t.Errorf("in steps of %d: %v, and %v", step, got, want)
		}
	}
}

// The cuts of this release are those of all others: where they moved, nothing of
// what a store holds would be found again.
func TestCutsNeverMove(t *testing.T) {
	t.Parallel()
	var cuts []int
	c := newCutter(func(data []byte) error { cuts = append(cuts, len(data)); return nil })
	block := sha256.Sum256([]byte("cuts"))
	for range 1 << 19 {
		if _, err := c.Write(block[:]); err != nil {
			t.Fatal(err)
		}
		block = sha256.Sum256(block[:])
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if want := []int{2594568, 2664404, 2685397, 8104397, 728450}; !slices.Equal(cuts, want) {
		t.Errorf("cut %v, want %v", cuts, want)
	}
}
