package exports_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// work is what is in a box's workspace: content by name. Names that end with a
// slash are directories, those below repositories/ parts of bundles and patches,
// with their place in the archive.
type work map[string]string

// pack writes the archive as boxd does. Change may bend the manifest.
func (w work) pack(t testing.TB, change ...func(*box.Manifest)) []byte {
	t.Helper()
	var out bytes.Buffer
	zip, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.tar(zip, change...), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (w work) tar(to io.Writer, change ...func(*box.Manifest)) error {
	out := tar.NewWriter(to)
	var list bytes.Buffer
	m := box.Manifest{Version: 1, Lists: []box.ManifestPart{}, Repositories: []box.ManifestRepository{}}
	put := func(h *tar.Header, content string) error {
		h.ModTime = time.Unix(1_700_000_000, 0)
		err := out.WriteHeader(h)
		if err == nil {
			_, err = io.WriteString(out, content)
		}
		return err
	}
	for _, name := range slices.SortedFunc(maps.Keys(w), workspacetar.Order) {
		if strings.HasPrefix(name, box.WorkspaceRepositories) {
			continue
		}
		content := w[name]
		entry, header := box.ManifestEntry{Name: strings.TrimSuffix(name, "/"), Mode: 0o644}, &tar.Header{Name: "files/" + name, Mode: 0o644}
		if strings.HasSuffix(name, "/") {
			header.Typeflag, entry.Type = tar.TypeDir, "directory"
		} else {
			header.Typeflag, header.Size = tar.TypeReg, int64(len(content))
			sum := sha256.Sum256([]byte(content))
			entry.Type, entry.Bytes, entry.SHA256 = "file", header.Size, hex.EncodeToString(sum[:])
			m.Files++
			m.Bytes += entry.Bytes
		}
		m.Entries++
		if err := put(header, content); err != nil {
			return err
		}
		if !utf8.ValidString(entry.Name) {
			entry.Name, entry.NameBase64 = "", []byte(entry.Name)
		}
		line, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		list.Write(append(line, '\n'))
	}
	if list.Len() > 0 {
		sum := sha256.Sum256(list.Bytes())
		m.Lists = append(m.Lists, box.ManifestPart{Name: "entries/000001.jsonl", Bytes: int64(list.Len()), SHA256: hex.EncodeToString(sum[:])})
		if err := put(&tar.Header{Typeflag: tar.TypeReg, Name: "entries/000001.jsonl", Size: int64(list.Len()), Mode: 0o600}, list.String()); err != nil {
			return err
		}
	}
	streams, err := w.repositories(put)
	if err != nil {
		return err
	}
	for _, one := range streams {
		repository := box.ManifestRepository{Bundle: one}
		if strings.Contains(one.Name, "/git/") {
			repository = box.ManifestRepository{GitFiles: 1} // they are counted only
		}
		m.Repositories = append(m.Repositories, repository)
	}
	for _, c := range change {
		c(&m)
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return errors.Join(put(&tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Size: int64(len(text)), Mode: 0o600}, string(text)), out.Close())
}

// repositories writes the parts of bundles and patches.
func (w work) repositories(put func(*tar.Header, string) error) (streams []box.ManifestPart, err error) {
	var sum hash.Hash
	for _, name := range slices.SortedFunc(maps.Keys(w), workspacetar.Order) {
		if !strings.HasPrefix(name, box.WorkspaceRepositories) {
			continue
		}
		if stream := path.Dir(name); len(streams) == 0 || streams[len(streams)-1].Name != stream {
			streams, sum = append(streams, box.ManifestPart{Name: stream}), sha256.New()
		}
		one := &streams[len(streams)-1]
		_, _ = io.WriteString(sum, w[name])
		one.Parts, one.Bytes, one.SHA256 = one.Parts+1, one.Bytes+int64(len(w[name])), hex.EncodeToString(sum.Sum(nil))
		if err := put(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(w[name])), Mode: 0o600}, w[name]); err != nil {
			return nil, err
		}
	}
	return streams, nil
}

// noise is content that does not compress, the same for the same seed.
func noise(seed, n int) string {
	var out []byte
	for block := [sha256.Size]byte{byte(seed), byte(seed >> 8)}; len(out) < n; {
		block = sha256.Sum256(block[:])
		out = append(out, block[:]...)
	}
	return string(out[:n])
}

// boxWithWork is a server that has a workspace too, with faults.
type boxWithWork struct {
	*server
	mu      sync.Mutex
	archive []byte
	// given may bend the n-th answer, counted from 1.
	given  func(n int, honest []byte) (io.ReadCloser, error)
	called int
}

func newBoxWithWork(t testing.TB, w work, counts ...int) *boxWithWork {
	t.Helper()
	return &boxWithWork{server: newServer(counts...), archive: w.pack(t)}
}

func (b *boxWithWork) Workspace(ctx context.Context) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.called++
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b.given != nil {
		return b.given(b.called, b.archive)
	}
	return io.NopCloser(bytes.NewReader(b.archive)), nil
}

func untar(t testing.TB, packed []byte) []byte {
	t.Helper()
	zip, err := workspacetar.Decompress(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	defer zip.Close()
	plain, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// compressed compresses what was unpacked.
func compressed(plain []byte) []byte {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	return zip.EncodeAll(plain, nil)
}

// smallWork has a bit of everything that names can be.
func smallWork() work {
	return work{
		"workspace/": "", "workspace/a.txt": "alpha", "workspace/a/": "", "workspace/a/b.txt": "beta", "workspace/empty": "",
		"workspace/tab\tand\nline": "odd", "workspace/not-utf8-\xff": "x", "workspace/z.bin": noise(1, 5000),
	}
}

func chunkKeys(keys []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !strings.HasPrefix(k, "chunks/") })
}

// ended is a connection that gives data and ends with err.
func ended(data []byte, err error) io.ReadCloser {
	return io.NopCloser(io.MultiReader(bytes.NewReader(data), broken{err}))
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

var errCut = box.Errorf(box.ClassUnavailable, "the connection broke")
