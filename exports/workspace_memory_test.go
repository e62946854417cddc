package exports_test

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

// generatedWork is a workspace whose archive is made while it is read.
type generatedWork struct {
	generated
	files int
	bytes int64 // of each
}

func (g generatedWork) Workspace(context.Context) (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() {
		zip, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
		if err == nil {
			err = errors.Join(g.write(tar.NewWriter(zip)), zip.Close())
		}
		w.CloseWithError(err)
	}()
	return r, nil
}

func (g generatedWork) write(out *tar.Writer) error {
	random, block := rand.NewChaCha8([32]byte{9}), make([]byte, 64<<10)
	m := box.Manifest{Version: 1}
	var list []byte
	flush := func() error {
		if len(list) == 0 {
			return nil
		}
		sum := sha256.Sum256(list)
		part := box.ManifestPart{Name: fmt.Sprintf("entries/%06d.jsonl", len(m.Lists)+1), Bytes: int64(len(list)), SHA256: hex.EncodeToString(sum[:])}
		m.Lists = append(m.Lists, part)
		err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: part.Name, Size: part.Bytes, Mode: 0o600})
		if err == nil {
			_, err = out.Write(list)
		}
		list = list[:0]
		return err
	}
	var sum hash.Hash
	for i := range g.files {
		name := fmt.Sprintf("workspace/a-directory-of-some-depth/%04d/a-file-with-a-name-%08d", i/1000, i)
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "files/" + name, Size: g.bytes, Mode: 0o600, ModTime: time.Unix(1, 0)}); err != nil {
			return err
		}
		sum = sha256.New()
		for left := g.bytes; left > 0; left -= int64(len(block)) {
			part := block[:min(left, int64(len(block)))]
			_, _ = random.Read(part)
			_, _ = sum.Write(part)
			if _, err := out.Write(part); err != nil {
				return err
			}
		}
		line, err := json.Marshal(box.ManifestEntry{Name: name, Type: "file", Bytes: g.bytes, Mode: 0o600, SHA256: hex.EncodeToString(sum.Sum(nil))})
		if err != nil {
			return err
		}
		m.Entries, m.Files, m.Bytes = m.Entries+1, m.Files+1, m.Bytes+g.bytes
		if list = append(append(list, line...), '\n'); len(list) >= 1<<20 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Size: int64(len(text)), Mode: 0o600}); err != nil {
		return err
	}
	_, err = out.Write(text)
	return errors.Join(err, out.Close())
}

// TestScenario94AWorkspaceIsStreamed is not parallel: it measures the heap. What
// it takes must not grow with the files, neither their bytes nor their number.
func TestScenario94AWorkspaceIsStreamed(t *testing.T) { //nolint:paralleltest // see above
	for name, work := range map[string]generatedWork{
		"large files": {generated{1, 100}, 4, (55 << 20) / race.Slowness},
		"many files":  {generated{1, 100}, 120_000 / race.Slowness, 10},
	} {
		s, _ := directoryStore(t)
		var receipt box.Receipt
		grown := peak(t, func() {
			var err error
			if receipt, err = s.Export(t.Context(), request("a"), work, nil); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%s, %d MB: the heap grew by %d KB", name, receipt.Archive.Bytes>>20, grown>>10)
		if receipt.Archive.Files != int64(work.files) || grown > memoryBudget {
			t.Errorf("%s: %+v, the heap grew by %d", name, receipt.Archive, grown)
		}
		grown = peak(t, func() {
			if _, err := s.Verify(t.Context(), "ws", receipt); err != nil {
				t.Error(err)
			}
			r, err := s.Workspace(t.Context(), "ws", receipt)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, err := range r.Entries(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n < work.files {
				t.Errorf("%s: %d entries", name, n)
			}
			size, err := io.Copy(io.Discard, r.Tar(t.Context()))
			if err != nil || size != receipt.Archive.Bytes {
				t.Errorf("%s: the tar came back as %d bytes: %v", name, size, err)
			}
		})
		t.Logf("%s, read: the heap grew by %d KB", name, grown>>10)
		if grown > memoryBudget {
			t.Errorf("%s: reading grew the heap by %d", name, grown)
		}
	}
}

var _ exports.WorkspaceSource = generatedWork{}
