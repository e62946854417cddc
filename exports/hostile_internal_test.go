package exports

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"
	"testing"
)

// hostileZip is a zip that somebody made to harm its reader, and why it is
// refused.
type hostileZip struct {
	name, why string
	data      []byte
}

// hostileZips are what a fuzzer should not have to find first: bombs, names that
// lead elsewhere, names twice, sizes and sums that are wrong.
func hostileZips(t testing.TB) []hostileZip {
	t.Helper()
	le := binary.LittleEndian
	made := func(headers ...*zip.FileHeader) []byte {
		var buf bytes.Buffer
		w := zip.NewWriter(&buf)
		for _, h := range headers {
			if h.Name == "" {
				h.Name = event(0)
			}
			f, err := w.CreateHeader(h)
			if err == nil {
				_, err = io.WriteString(f, "{}")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	raw := func(h *zip.FileHeader, packed string) []byte {
		var buf bytes.Buffer
		w := zip.NewWriter(&buf)
		h.Name, h.CompressedSize64 = event(0), uint64(len(packed))
		f, err := w.CreateRaw(h)
		if err == nil {
			_, err = io.WriteString(f, packed)
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	linked := &zip.FileHeader{Name: testID + "/link"}
	linked.SetMode(fs.ModeSymlink | 0o777)
	device := &zip.FileHeader{Name: testID + "/null"}
	device.SetMode(fs.ModeDevice | 0o666)
	out := []hostileZip{
		{"a name that climbs", "climbs", made(&zip.FileHeader{Name: testID + "/../../x"})},
		{"a name of nothing but dots", "climbs", made(&zip.FileHeader{Name: testID + "/events/."})},
		{"an absolute name", "absolute", made(&zip.FileHeader{Name: "/etc/passwd"})},
		{"a drive", "absolute", made(&zip.FileHeader{Name: "C:/x"})},
		{"backslashes", "backslashes", made(&zip.FileHeader{Name: testID + `/..\x`})},
		{"a terminal's commands", "control", made(&zip.FileHeader{Name: testID + "/\x1b[2J"})},
		{"no UTF-8", "UTF-8", made(&zip.FileHeader{Name: testID + "/\xff", NonUTF8: true})},
		{"another conversation", "not of the conversation", made(&zip.FileHeader{Name: strings.Repeat("f", 32) + "/meta.json"})},
		{"a name twice", "twice", made(&zip.FileHeader{Name: testID + "/meta.json"}, &zip.FileHeader{Name: testID + "/meta.json"})},
		{"a name twice, once packed", "twice", made(&zip.FileHeader{}, &zip.FileHeader{Method: zip.Deflate})},
		{"a link", "link", made(linked)},
		{"a device", "device", made(device)},
		{"a terabyte in two bytes", "unpacks to more", raw(&zip.FileHeader{Method: zip.Deflate, UncompressedSize64: 1 << 40}, "\x03\x00")},
		{"one byte more than it says", "size or its sum", raw(&zip.FileHeader{Method: zip.Deflate, UncompressedSize64: 1, CRC32: crc32.ChecksumIEEE([]byte("xx"))}, "\xab\xa8\x00\x00")},
		{"one byte less than it says", "size or its sum", raw(&zip.FileHeader{Method: zip.Deflate, UncompressedSize64: 3, CRC32: crc32.ChecksumIEEE([]byte("xx"))}, "\xab\xa8\x00\x00")},
		{"another sum", "size or its sum", raw(&zip.FileHeader{Method: zip.Store, UncompressedSize64: 2, CRC32: 1}, "{}")},
		{"a size of stored data that is another", "packed in a way", raw(&zip.FileHeader{Method: zip.Store, UncompressedSize64: 3}, "{}")},
	}
	// A bomb whose entries all point at the same data.
	bomb := raw(&zip.FileHeader{Method: zip.Store, UncompressedSize64: 2, CRC32: crc32.ChecksumIEEE([]byte("{}"))}, "{}")
	end := len(bomb) - endLen
	dir := int(le.Uint32(bomb[end+16:]))
	overlap := bytes.Clone(bomb[:dir])
	const times = 50
	for i := range times {
		record := bytes.Clone(bomb[dir:end])
		local := bytes.Clone(bomb[:dir])
		copy(record[centralLen:], event(i))
		copy(local[localLen:], event(i))
		overlap = append(overlap, record...)
	}
	overlap = append(overlap, bomb[end:]...)
	tail := overlap[len(overlap)-endLen:]
	le.PutUint16(tail[8:], times)
	le.PutUint16(tail[10:], times)
	le.PutUint32(tail[12:], uint32(times*(end-dir)))
	out = append(out, hostileZip{"fifty entries in the place of one", "differs between", overlap})
	// Zips that say that there is more than there is.
	many := bytes.Clone(bomb)
	le.PutUint16(many[end+8:], 0xfffe)
	le.PutUint16(many[end+10:], 0xfffe)
	out = append(out, hostileZip{"more entries than there is room for", "more entries", many})
	wide := bytes.Clone(bomb)
	le.PutUint32(wide[end+12:], 0xffffffff)
	out = append(out, hostileZip{"a 64-bit end that is not there", "directory", wide})
	deep := raw(&zip.FileHeader{Method: zip.Store, UncompressedSize64: uint64(len(bomb)), CRC32: crc32.ChecksumIEEE(bomb)}, string(bomb))
	le.PutUint32(deep[len(deep)-endLen+16:], uint32(localLen+len(event(0))+dir))
	out = append(out, hostileZip{"a zip inside, at whose directory it points", "directory", deep})
	return out
}

// TestHostileZipsAreRefusedForWhatTheyAre proves that each seed of the fuzzer is
// what it is said to be.
func TestHostileZipsAreRefusedForWhatTheyAre(t *testing.T) {
	t.Parallel()
	for _, one := range hostileZips(t) {
		_, err := check(t, one.data)
		if _, bad := errors.AsType[badZip](err); !bad || !strings.Contains(fmt.Sprint(err), one.why) {
			t.Errorf("%s: %v, want %q", one.name, err, one.why)
		}
	}
}

// manifestsOfToday are m with what version 2 added, and one of each that lies.
func manifestsOfToday(m Manifest) (out []Manifest) {
	m.Version, m.Tool = ManifestVersion, "test"
	m.Secrets = &SecretsEntry{Key: "exports/ws/0001/a/secrets.json", SHA256: strings.Repeat("1", 64), Findings: 3}
	none, archive, both := m, m, m
	none.NoArchive = "the box has no files"
	archive.Archive = &WorkspaceArchive{
		Index: WorkspaceIndex{
			Key: "exports/ws/0001/a/workspace.json.zst", Bytes: 90, SHA256: strings.Repeat("2", 64),
			DirectoryBytes: 40, DirectorySHA256: strings.Repeat("3", 64),
		},
		Bytes: 2048, SHA256: strings.Repeat("4", 64), Chunks: 1, StoredBytes: 300, Files: 1,
	}
	both.Archive, both.NoArchive = archive.Archive, "and none"
	out = append(out, none, archive, both)
	for _, key := range []string{"exports/other/0001/a/workspace.json.zst", "exports/ws/0001/../../x/workspace.json.zst", "ledger/ws/00000001.json"} {
		astray, index := archive, *archive.Archive
		index.Index.Key = key
		astray.Archive = &index
		out = append(out, astray)
	}
	endless, index := archive, *archive.Archive
	index.Bytes, index.Chunks = 1<<62, 1<<30
	endless.Archive = &index
	return append(out, endless)
}

// leadsAstray says how a manifest of workspace ws would lead its reader to what
// is another's, or to more than there can be, or nothing.
func leadsAstray(m Manifest) string {
	ours := func(key string) bool {
		return strings.HasPrefix(key, "exports/ws/") && fs.ValidPath(key)
	}
	ids := map[string]bool{}
	for _, c := range m.Conversations {
		switch {
		case !ours(c.Key) || !strings.Contains(c.Key, c.ID):
			return "an object is not of its conversation"
		case ids[c.ID]:
			return "a conversation is there twice"
		case c.Bytes <= 0 || c.Events < 0:
			return "a size is impossible"
		}
		ids[c.ID] = true
	}
	if m.Secrets != nil && !ours(m.Secrets.Key) {
		return "its report is another's"
	}
	if a := m.Archive; a != nil && (!ours(a.Index.Key) || a.Bytes <= 0 || a.Bytes > 1<<40 || a.Chunks < 1 || a.Chunks > 1<<18 || m.NoArchive != "" || m.Version < 2) {
		return "its archive cannot be"
	}
	return ""
}
