package scan

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinksAreJoinedAsAMapWould holds the table against a plain map, over several
// partitions, with inode numbers that fall into few slots.
func TestLinksAreJoinedAsAMapWould(t *testing.T) {
	t.Parallel()
	for _, stride := range []uint64{1, 1 << 20, 1 << 56} {
		random := rand.New(rand.NewPCG(stride, 1))
		type file struct {
			nlink, seen, labels uint32
			blocks              uint64
		}
		files := map[uint64]*file{}
		var runs []linkRun
		for range 3000 {
			run := linkRun{label: random.Int32N(5)}
			for range 50 {
				ino := random.Uint64N(60_000) * stride
				one := files[ino]
				if one == nil {
					one = &file{nlink: 2 + random.Uint32N(3), blocks: random.Uint64N(100)}
					files[ino] = one
				}
				one.seen++
				one.labels |= 1 << run.label
				run.links = append(run.links, link{ino, one.blocks * 500, one.blocks, one.nlink, 7})
			}
			runs = append(runs, run)
		}
		result := Result{Sizes: make([]Size, 5), alone: make([]freed, 5)}
		result.groups, _ = join(runs, result.Sizes)
		want := make([]Size, 5)
		for _, one := range files {
			lowest := 0
			for one.labels&(1<<lowest) == 0 {
				lowest++
			}
			want[lowest].Allocated += int64(one.blocks) * 512
			want[lowest].Apparent += int64(one.blocks) * 500
			want[lowest].Inodes++
		}
		require.Equal(t, want, result.Sizes)
		for set := range uint32(32) {
			var labels []int
			for label := range 5 {
				if set&(1<<label) != 0 {
					labels = append(labels, label)
				}
			}
			var bytes, inodes int64
			for _, one := range files {
				if one.seen >= one.nlink && one.labels&^set == 0 {
					bytes += int64(one.blocks) * 512
					inodes++
				}
			}
			gotBytes, gotInodes := result.Freed(labels...)
			require.Equal(t, bytes, gotBytes)
			require.Equal(t, inodes, gotInodes)
		}
	}
}
