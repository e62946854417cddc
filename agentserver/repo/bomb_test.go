package repo_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" // the sums of git's packs
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// TestAPackThatUnfoldsIsRefused: a difference of a few hundred bytes can say
// that an object is gigabytes large, which git would hold in memory.
func TestAPackThatUnfoldsIsRefused(t *testing.T) {
	t.Parallel()
	const piece = 7 << 20
	for what, row := range map[string]struct {
		copies int
		taken  bool
	}{
		"one that is small": {1, true},
		"a bomb":            {220, false}, // 1.5 GiB
	} {
		bundle := unfolding(t, piece, row.copies)
		require.Less(t, len(bundle), 64<<10)
		_, err := newGit(t).Unbundle(t.Context(), filepath.Join(t.TempDir(), "git"), bytes.NewReader(bundle))
		if row.taken {
			require.NoError(t, err, what)
			continue
		}
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%s: %v", what, err)
		require.ErrorContains(t, err, "over limit", what)
	}
}

// unfolding is a bundle of two objects: one of so many zeros, and one that
// repeats it so often.
func unfolding(t *testing.T, size, copies int) []byte {
	t.Helper()
	var pack bytes.Buffer
	pack.WriteString("PACK")
	_ = binary.Write(&pack, binary.BigEndian, []uint32{2, 2})
	base := make([]byte, size)
	at := pack.Len()
	object(t, &pack, 3, len(base), nil, base)
	delta := append(varint(size), varint(size*copies)...)
	for range copies { // from 0, of size, which has three bytes
		delta = append(delta, 0x80|0x70, byte(size), byte(size>>8), byte(size>>16))
	}
	object(t, &pack, 6, len(delta), back(pack.Len()-at), delta)
	sum := sha1.Sum(pack.Bytes())
	pack.Write(sum[:])
	id := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", size, base))
	return fmt.Appendf(nil, "# v2 git bundle\n%x refs/tags/zeros\n\n%s", id, pack.Bytes())
}

// object writes one object of a pack.
func object(t *testing.T, to *bytes.Buffer, kind, size int, base, content []byte) {
	t.Helper()
	first := byte(kind<<4 | size&15)
	for size >>= 4; size > 0; size >>= 7 {
		to.WriteByte(first | 0x80)
		first = byte(size & 0x7f)
	}
	to.WriteByte(first)
	to.Write(base)
	z := zlib.NewWriter(to)
	_, err := z.Write(content)
	require.NoError(t, err)
	require.NoError(t, z.Close())
}

func varint(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

// back says how far before an object the one lies that it is a difference to.
func back(distance int) []byte {
	out := []byte{byte(distance & 0x7f)}
	for distance >>= 7; distance > 0; distance >>= 7 {
		distance--
		out = append([]byte{0x80 | byte(distance&0x7f)}, out...)
	}
	return out
}
