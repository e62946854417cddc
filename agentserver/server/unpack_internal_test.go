package server

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzUnpack gives any bytes as the history that is taken in. Whatever they are,
// nothing comes to lie outside of the staging directory, no link, no device, and
// no more bytes than the archive said.
func FuzzUnpack(f *testing.F) {
	id := strings.Repeat("a", 32)
	made := func(headers ...*zip.FileHeader) []byte {
		var buf bytes.Buffer
		w := zip.NewWriter(&buf)
		for _, h := range headers {
			to, err := w.CreateHeader(h)
			if err == nil && !strings.HasSuffix(h.Name, "/") {
				_, err = io.WriteString(to, "{}")
			}
			if err != nil {
				f.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		return buf.Bytes()
	}
	link := &zip.FileHeader{Name: id + "/link"}
	link.SetMode(fs.ModeSymlink | 0o777)
	for _, headers := range [][]*zip.FileHeader{
		{{Name: id + "/meta.json"}, {Name: id + "/events/"}, {Name: id + "/events/event-00000-12345678.json", Method: zip.Deflate}},
		{{Name: id + "/../../escape"}},
		{{Name: "/escape"}},
		{{Name: id + `/..\escape`}},
		{{Name: id}},
		{link, {Name: id + "/link/x"}},
		{{Name: id + "/a"}, {Name: id + "/a"}},
		{{Name: id + "/a"}, {Name: id + "/a/b"}},
		{{Name: id + "/" + strings.Repeat("d/", 40) + "x"}},
		{{Name: strings.Repeat("b", 32) + "/meta.json"}},
		{{Name: id + "/\x00"}},
		{},
	} {
		f.Add(made(headers...))
	}
	whole := made(&zip.FileHeader{Name: id + "/meta.json", Method: zip.Store})
	f.Add(whole[:len(whole)-10])
	f.Fuzz(func(t *testing.T, data []byte) {
		archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		var says uint64
		for _, entry := range archive.File {
			if entry.UncompressedSize64 > 1<<20 || len(archive.File) > 100 {
				return // a test's disk is not for bombs; hasRoom has a test of its own
			}
			says += entry.UncompressedSize64
		}
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if err := root.MkdirAll("run/staging", 0o700); err != nil {
			t.Fatal(err)
		}
		refused := unpack(root, archive, "run/staging", id)
		var bytes uint64
		files := 0
		err = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			below, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			info, err := e.Info()
			switch {
			case err != nil:
				return err
			case !e.IsDir() && !e.Type().IsRegular():
				return errors.New(below + " is no file")
			case !e.IsDir() && !strings.HasPrefix(below, "run/staging/"+id+"/"):
				return errors.New(below + " is outside")
			case !e.IsDir():
				files++
				bytes += uint64(info.Size())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if refused == nil && bytes != says || bytes > says+uint64(len(archive.File)) {
			t.Fatalf("%d bytes in %d files of an archive that says %d: %v", bytes, files, says, refused)
		}
	})
}
