package server

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// entriesOf writes entries of all the kinds that a history has.
func entriesOf(t *testing.T, n int, create func(*zip.FileHeader) (io.Writer, error)) {
	t.Helper()
	for i := range n {
		name, mode, method := fmt.Sprintf("a/events/event-%05d.json", i), fs.FileMode(0o600), zip.Deflate
		switch i % 1_000 {
		case 0:
			name, mode, method = fmt.Sprintf("a/%d/", i), fs.ModeDir|0o700, zip.Store
		case 7:
			name += "ö~"
		}
		w, err := create(header(name, mode, method))
		require.NoError(t, err)
		if method == zip.Deflate && i%11 > 0 { // some are empty
			_, err = fmt.Fprintf(w, `{"n":%d,"text":"%d"}`, i, i*i)
			require.NoError(t, err)
		}
	}
}

func TestAStreamedZipIsThatOfTheStandardLibrary(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		entries int
		offset  int64
	}{{0, 0}, {1, 0}, {zipBatch - 1, 0}, {zipBatch, 0}, {zipBatch + 1, 0}, {3 * zipBatch, 1<<32 - 9_000}, {zipBatch + 1, 5 << 30}, {70_000, 0}} {
		var got, want bytes.Buffer
		s := newZipStream(&got)
		s.out.n = row.offset
		entriesOf(t, row.entries, s.create)
		require.NoError(t, s.close())
		w := zip.NewWriter(&want)
		w.SetOffset(row.offset)
		w.RegisterCompressor(zip.Deflate, newZipStream(nil).pack)
		entriesOf(t, row.entries, w.CreateHeader)
		require.NoError(t, w.Close())
		require.True(t, bytes.Equal(want.Bytes(), got.Bytes()), "%+v", row)
	}
}

// Not parallel, since it measures the memory of the process.
func TestAnEntryOfAZipTakesLittleMemory(t *testing.T) { //nolint:paralleltest // see above
	const entries = 50_000
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	s := newZipStream(io.Discard)
	entriesOf(t, 1, s.create)
	before := live()
	entriesOf(t, entries, s.create)
	each := (live() - before) / entries
	t.Logf("%d bytes for each entry", each)
	require.Less(t, each, int64(150)) // its record has 83; a zip.Writer keeps some 400 and the name
	require.NoError(t, s.close())
}
