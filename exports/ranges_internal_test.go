package exports

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// counting counts the requests that a directory serves.
type counting struct {
	driver.Bucket
	requests int
	bytes    int64
}

func (c *counting) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	c.requests++
	c.bytes += length
	return c.Bucket.NewRangeReader(ctx, key, offset, length, opts)
}

// rangesOf stores data as one object.
func rangesOf(t testing.TB, data []byte) (*ranges, *counting, string) {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "object")
	require.NoError(t, os.WriteFile(name, data, 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	c := &counting{Bucket: &directory{path: dir, root: root}}
	s := New(blob.NewBucket(c), Options{})
	return s.ranges("object", int64(len(data))), c, name
}

func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	return data
}

func TestRangesReadWhatIsThere(t *testing.T) {
	t.Parallel()
	data := noise(maxBlocks*blockSize + 3*blockSize + 17)
	r, _, _ := rangesOf(t, data)
	at := r.with(t.Context())
	whole := bytes.NewReader(data)
	rapid.Check(t, func(rt *rapid.T) {
		for range 20 {
			offset := rapid.Int64Range(0, int64(len(data))+10).Draw(rt, "offset")
			p := make([]byte, rapid.IntRange(0, 5*blockSize).Draw(rt, "length"))
			want := make([]byte, len(p))
			n, err := at.ReadAt(p, offset)
			m, wantErr := whole.ReadAt(want, offset)
			if n != m || (err == nil) != (wantErr == nil) && len(p) > 0 || !bytes.Equal(p[:n], want[:m]) {
				rt.Fatalf("%d bytes and %v, want %d and %v", n, err, m, wantErr)
			}
			if len(r.blocks) > maxBlocks {
				rt.Fatalf("%d blocks are kept", len(r.blocks))
			}
		}
	})
	_, err := at.ReadAt(make([]byte, 1), -1)
	require.Error(t, err)
}

func TestRangesReadAheadInOrderOnly(t *testing.T) {
	t.Parallel()
	data := noise(16 << 20)
	r, count, _ := rangesOf(t, data)
	at := r.with(t.Context())
	// Two places are read in order at once, as a directory and the files are.
	const half = 8 << 20
	p := make([]byte, 10_000)
	for i := int64(0); i+int64(len(p)) <= half; i += int64(len(p)) {
		for _, offset := range []int64{i, half + i} {
			_, err := at.ReadAt(p, offset)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data[offset:offset+int64(len(p))], p))
		}
	}
	require.LessOrEqual(t, count.requests, 30)
	require.LessOrEqual(t, count.bytes, int64(len(data)+maxRun*blockSize))

	r, count, _ = rangesOf(t, data)
	at = r.with(t.Context())
	_, err := at.ReadAt(p[:1], 15*blockSize) // the first also tells whether it is encrypted
	require.NoError(t, err)
	count.requests, count.bytes = 0, 0
	for i := range 50 { // scattered: never a block more than is asked for
		_, err := at.ReadAt(p[:100], int64((i*37)%50)*10*blockSize)
		require.NoError(t, err)
	}
	require.Equal(t, 50, count.requests)
	require.Equal(t, int64(50*blockSize), count.bytes)
}

func TestRangesOfAnObjectThatIsDamaged(t *testing.T) {
	t.Parallel()
	data := noise(10 * blockSize)
	r, _, name := rangesOf(t, data)
	p := make([]byte, 100)
	_, err := r.with(t.Context()).ReadAt(p, 0)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(name, 5*blockSize+10))
	_, err = r.with(t.Context()).ReadAt(p, 5*blockSize)
	require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%v", err)
	require.NoError(t, os.Remove(name))
	_, err = r.with(t.Context()).ReadAt(p, 8*blockSize)
	require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%v", err)
	n, err := r.with(t.Context()).ReadAt(p, 0)
	require.NoError(t, err, "what is kept is read on")
	require.Equal(t, 100, n)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.with(ctx).ReadAt(p, 8*blockSize)
	require.Equal(t, box.ClassCanceled, box.ClassOf(err), "%v", err)
}

func BenchmarkRangesInOrder(b *testing.B) {
	data := noise(16 << 20)
	r, _, _ := rangesOf(b, data)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		clear(r.blocks)
		if _, err := io.Copy(io.Discard, io.NewSectionReader(r.with(b.Context()), 0, r.size)); err != nil {
			b.Fatal(err)
		}
	}
}
