package workspacetar_test

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// hostileTars are what a fuzzer should not have to find first: names that lead
// elsewhere, names twice, sizes that are wrong, and headers that say more than
// there is.
func hostileTars(t testing.TB) map[string][]byte {
	t.Helper()
	whole := written{entries: tree()}.bytes(t)
	sized := func(size string) []byte {
		out := bytes.Clone(whole)
		at := bytes.Index(out, []byte("files/workspace/a\x00"))
		require.GreaterOrEqual(t, at, 0)
		header := out[at : at+512]
		copy(header[124:136], size+"\x00")
		sum := 0
		copy(header[148:156], "        ")
		for _, b := range header {
			sum += int(b)
		}
		copy(header[148:156], []byte{
			byte('0' + sum>>15&7), byte('0' + sum>>12&7), byte('0' + sum>>9&7), byte('0' + sum>>6&7), byte('0' + sum>>3&7), byte('0' + sum&7), 0, ' ',
		})
		return out
	}
	return map[string][]byte{
		"a name that climbs":      written{entries: []one{file("files/workspace/../../x", "a")}}.bytes(t),
		"an absolute name":        written{entries: []one{file("/files/workspace/x", "a")}}.bytes(t),
		"a name twice":            written{entries: []one{file("files/workspace/a", "a"), file("files/workspace/a", "b")}}.bytes(t),
		"a file below a file":     written{entries: []one{file("files/workspace/a", "a"), file("files/workspace/a/b", "b")}}.bytes(t),
		"a file below a link":     written{entries: []one{{tar.Header{Typeflag: tar.TypeSymlink, Name: "files/workspace/a", Linkname: "/etc"}, ""}, file("files/workspace/a/b", "b")}}.bytes(t),
		"a hard link to a system": written{entries: []one{{tar.Header{Typeflag: tar.TypeLink, Name: "files/workspace/a", Linkname: "/etc/passwd"}, ""}}}.bytes(t),
		"a device":                written{entries: []one{{tar.Header{Typeflag: tar.TypeBlock, Name: "files/workspace/a", Devmajor: 8}, ""}}}.bytes(t),
		"a list that says less":   written{entries: tree(), lines: func(l []box.ManifestEntry) []box.ManifestEntry { return l[:2] }}.bytes(t),
		"no list":                 written{manifest: func(m *box.Manifest) { m.Entries, m.Files = 1<<40, 1<<40 }}.bytes(t),
		"a second manifest":       written{after: []one{file("manifest.json", `{"version":1}`)}}.bytes(t),
		"an owner who may all":    written{entries: []one{{tar.Header{Typeflag: tar.TypeReg, Name: "files/a", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}, "a"}}}.bytes(t),
		"a long name":             written{entries: []one{file("files/"+strings.Repeat("x", 70_000), "a")}}.bytes(t),
		"a size of one byte less": sized("00000000004"),
		"a size of one byte more": sized("00000000006"),
		"a size of 8 GB":          sized("77777777777"),
		"a negative size":         sized("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
	}
}

// TestHostileTarsAreNotTaken proves that each seed of the fuzzer is hostile.
func TestHostileTarsAreNotTaken(t *testing.T) {
	t.Parallel()
	for name, plain := range hostileTars(t) {
		if _, err := workspacetar.Read(bytes.NewReader(plain), nil); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// FuzzVerify gives any bytes as a compressed archive: what is wrong with it is
// always of the box, never of us, and what is taken reads the same when it is
// compressed anew.
func FuzzVerify(f *testing.F) {
	packed := func(plain []byte, opts ...zstd.EOption) []byte {
		var out bytes.Buffer
		zip, err := zstd.NewWriter(&out, append(opts, zstd.WithEncoderConcurrency(1))...)
		require.NoError(f, err)
		_, err = zip.Write(plain)
		require.NoError(f, err)
		require.NoError(f, zip.Close())
		return out.Bytes()
	}
	whole := packed(written{entries: tree()}.bytes(f))
	f.Add(whole)
	f.Add(whole[:len(whole)-5])
	f.Add(append(bytes.Clone(whole), whole...))
	f.Add(packed(make([]byte, 32<<20), zstd.WithWindowSize(32<<20))) // a bomb that asks for more memory than is given
	f.Add(packed(make([]byte, 1<<20)))
	for _, plain := range hostileTars(f) {
		f.Add(packed(plain))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := workspacetar.Verify(bytes.NewReader(data))
		if err != nil {
			if box.ClassOf(err) != box.ClassUnknown {
				t.Fatalf("class %s: %v", box.ClassOf(err), err)
			}
			return
		}
		r, err := workspacetar.Decompress(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		plain, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := workspacetar.Read(bytes.NewReader(plain), nil)
		if err != nil || again.Entries != m.Entries || again.Bytes != m.Bytes {
			t.Fatalf("it reads as %+v once and as %+v then: %v", m, again, err)
		}
	})
}
