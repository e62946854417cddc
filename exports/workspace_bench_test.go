package exports_test

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
)

// BenchmarkExportWorkspace takes a workspace through download, check, look, cut,
// store and read-back: 64 MB that do not compress, and the texts of this
// repository, eight times over. "again" is the same when all chunks are there, and
// "known" when the export before is known, too.
func BenchmarkExportWorkspace(b *testing.B) {
	work := generatedWork{generated{1, 100}, 64, 1 << 20}
	r, err := work.Workspace(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	noise, err := io.ReadAll(r)
	if err != nil {
		b.Fatal(err)
	}
	for name, packed := range map[string][]byte{"noise": noise, "text": texts(b).pack(b)} {
		src := &boxWithWork{server: newServer(), archive: packed}
		size := int64(len(untar(b, packed)))
		b.Run(name+"/first", func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				s, _ := directoryStore(b)
				if _, err := s.Export(b.Context(), request("a"), src, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
		for _, how := range []string{"again", "known"} {
			b.Run(name+"/"+how, func(b *testing.B) {
				s, _ := directoryStore(b)
				before, err := s.Export(b.Context(), request("a"), src, nil)
				if err != nil {
					b.Fatal(err)
				}
				if how == "again" {
					before = box.Receipt{}
				}
				b.SetBytes(size)
				for n := 0; b.Loop(); n++ {
					req := request(fmt.Sprintf("b%d", n))
					req.Previous = before
					if _, err := s.Export(b.Context(), req, src, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// texts are the texts of this repository.
func texts(b *testing.B) work {
	b.Helper()
	out := work{"workspace/": ""}
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || !strings.Contains(".go.md.json.ts.txt.sh", filepath.Ext(name)) || filepath.Ext(name) == "":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		for i := range 8 {
			out[fmt.Sprintf("workspace/%d-%s", i, strings.ReplaceAll(name, "/", "-"))] = string(text)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return out
}
