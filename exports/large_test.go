package exports_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// large is a bucket with one object that is on disk and too large for memory.
type large struct {
	*bucket
	key  string
	file *os.File
	size int64
}

func (l *large) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	if key == l.key {
		return &driver.Attributes{Size: l.size}, nil
	}
	return l.bucket.Attributes(ctx, key)
}

func (l *large) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	if key == l.key {
		return l.reader(l.file, l.size, offset, length), nil
	}
	return l.bucket.NewRangeReader(ctx, key, offset, length, opts)
}

// holey writes a file and leaves out what is zero.
type holey struct{ *os.File }

var zeros [100 << 10]byte

func (h holey) Write(p []byte) (int, error) {
	if len(p) > 4096 && bytes.Equal(p, zeros[:len(p)]) {
		_, err := h.Seek(int64(len(p)), io.SeekCurrent)
		return len(p), err
	}
	return h.File.Write(p)
}

// gigabyte makes a store that holds one conversation of 1 GB, with words in one
// of its events. Its file has holes, so it takes no room.
func gigabyte(t *testing.T, events, spoken int, said string) (*exports.Store, *large) {
	t.Helper()
	id := hex32(1)
	f, err := os.Create(filepath.Join(t.TempDir(), "zip"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	w := zip.NewWriter(holey{f})
	add := func(name string, content []byte, sum uint32) {
		to, err := w.CreateRaw(&zip.FileHeader{Name: id + "/" + name, Method: zip.Store, CRC32: sum, CompressedSize64: uint64(len(content)), UncompressedSize64: uint64(len(content))})
		require.NoError(t, err)
		_, err = to.Write(content)
		require.NoError(t, err)
	}
	zeroSum := crc32.ChecksumIEEE(zeros[:])
	for i := range events {
		content, sum := zeros[:], zeroSum
		if i == spoken {
			content = []byte(message(said))
			sum = crc32.ChecksumIEEE(content)
		}
		add(fmt.Sprintf("events/event-%05d-%s.json", i, hex32(i)), content, sum)
	}
	add("meta.json", []byte("{}"), crc32.ChecksumIEEE([]byte("{}")))
	require.NoError(t, w.Close())
	size, err := f.Seek(0, io.SeekCurrent)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	c := exports.ConversationEntry{ID: id, Key: "exports/ws/0001/a/conversations/" + id + ".zip", Bytes: size, SHA256: strings.Repeat("0", 64), Events: events}
	b := &large{bucket: newBucket(), key: c.Key, file: f, size: size}
	b.objects["exports/ws/0001/a/manifest.json"] = manifestOf(t, c)
	return exports.New(blob.NewBucket(b), exports.Options{SpoolDir: filepath.Join(t.TempDir(), "absent")}), b
}

// Not parallel: it measures the heap.
func TestScenario94OneEventOfAGigabyteIsReadByRanges(t *testing.T) { //nolint:paralleltest // see above
	const events, spoken = 10_000, 6_543
	s, b := gigabyte(t, events, spoken, "found it")
	require.Greater(t, b.size, int64(1_000_000_000))
	for name, read := range map[string]func() error{
		"one event": func() error {
			c, err := s.OpenConversation(t.Context(), "ws", hex32(1))
			if err != nil {
				return err
			}
			defer c.Close() //nolint:errcheck // only read
			for e, err := range c.Events(t.Context(), spoken, 1) {
				if err != nil || e.Index != spoken || !strings.Contains(string(e.Raw), "found it") {
					return fmt.Errorf("event %d, %q: %w", e.Index, e.Raw, err)
				}
			}
			return c.Damage()
		},
		"its text": func() error {
			c, err := s.OpenConversation(t.Context(), "ws", hex32(1))
			if err != nil {
				return err
			}
			defer c.Close() //nolint:errcheck // only read
			var text strings.Builder
			if err := c.WriteText(t.Context(), &text, spoken, 1); err != nil || !strings.Contains(text.String(), "found it") {
				return fmt.Errorf("%q: %w", text.String(), err)
			}
			return nil
		},
		"one file": func() error {
			c, err := s.OpenConversation(t.Context(), "ws", hex32(1))
			if err != nil {
				return err
			}
			defer c.Close() //nolint:errcheck // only read
			f, err := c.Find(t.Context(), "meta.json")
			if err != nil {
				return err
			}
			r, err := c.OpenFile(t.Context(), f)
			if err != nil {
				return err
			}
			content, err := io.ReadAll(r)
			if string(content) != "{}" {
				return fmt.Errorf("%q: %w", content, err)
			}
			return err
		},
	} {
		b.sent, b.reads = 0, 0
		var err error
		grown := peak(t, func() { err = read() })
		require.NoError(t, err, name)
		t.Logf("%s of %d MB: %d KB in %d reads, the heap grew by %d KB", name, b.size>>20, b.sent>>10, b.reads, grown>>10)
		require.Less(t, b.sent*100, b.size, "%s takes more than 1 %% of the export", name)
		require.Less(t, b.reads, 40, name)
		require.Less(t, grown, uint64(16<<20), name)
	}
}

// manifestOf is the manifest of an export of one conversation.
func manifestOf(t testing.TB, c exports.ConversationEntry) []byte {
	t.Helper()
	data, err := json.Marshal(exports.Manifest{
		Version: exports.ManifestVersion, Workspace: "ws", Epoch: 1, Attempt: "a",
		NoArchive: "the box has no files", Digest: box.HistoryDigest([]box.ConversationMark{{ID: c.ID, Events: c.Events}}),
		Totals: exports.Totals{Conversations: 1, Events: c.Events, Bytes: c.Bytes}, Conversations: []exports.ConversationEntry{c},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}
