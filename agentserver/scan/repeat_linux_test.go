package scan_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/scan"
)

// tick returns when the filesystem's clock has moved on: within one of its ticks
// two changes have the same time, which in life is what settling is for.
func tick(t *testing.T) {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "probe")
	stamp := func() (st unix.Stat_t) {
		require.NoError(t, os.WriteFile(probe, nil, 0o600))
		require.NoError(t, unix.Stat(probe, &st))
		require.NoError(t, os.Remove(probe))
		return st
	}
	first := stamp()
	for stamp().Ctim == first.Ctim {
	}
}

// change does something to a tree at random that a tool might do.
func change(t *testing.T, random *rand.Rand, root string) string {
	t.Helper()
	pick := func() string { // a directory one to three levels down
		dir := root
		for range 1 + random.IntN(3) {
			dir = filepath.Join(dir, fmt.Sprintf("d%d", random.IntN(4)))
		}
		require.NoError(t, os.MkdirAll(dir, 0o755))
		return dir
	}
	file := func() string { return filepath.Join(pick(), fmt.Sprintf("f%d", random.IntN(5))) }
	one, two := file(), file()
	switch random.IntN(9) {
	case 0, 1: // a new file, or one that takes the place of another
		draft := filepath.Join(filepath.Dir(one), "draft")
		require.NoError(t, os.WriteFile(draft, make([]byte, random.IntN(20_000)), 0o600))
		require.NoError(t, os.Rename(draft, one))
		return "write " + one
	case 2:
		_ = os.Remove(one)
		return "remove " + one
	case 3:
		_ = os.Rename(one, two)
		return "rename " + one + " to " + two
	case 4, 5:
		_ = os.Remove(two)
		_ = os.Link(one, two)
		return "link " + one + " to " + two
	case 6:
		from, to := pick(), pick()
		_ = os.Rename(from, filepath.Join(to, filepath.Base(from)))
		return "move " + from + " into " + to
	case 7:
		dir := pick()
		require.NoError(t, os.RemoveAll(dir))
		return "remove all of " + dir
	}
	_ = os.Remove(one)
	_ = os.Symlink("nowhere", one)
	return "a link at " + one
}

func TestARepeatFindsWhatAFreshWalkFinds(t *testing.T) {
	t.Parallel()
	const rounds, most = 60, 6
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			random := rand.New(rand.NewPCG(seed, 7))
			places := []scan.Place{
				{Path: ".", Label: 0, Estimate: true},
				{Path: "d0", Label: 1, Estimate: true, Watch: 1},
				{Path: "d0/d1", Label: 2},
				{Path: "d1/d2", Label: 3, Estimate: true},
			}
			watch := []func([]byte) bool{func(name []byte) bool { return string(name) == "f3" }}
			s := scan.New(root, scan.Options{Now: later, Watch: watch})
			kept, again := int64(0), 0
			for round := range rounds {
				var did []string
				for range random.IntN(most) {
					did = append(did, change(t, random, root))
				}
				got := walk(t, s, places...)
				fresh := walk(t, scan.New(root, scan.Options{Watch: watch}), places...)
				require.Equal(t, fresh.Sizes, got.Sizes, "round %d after %q", round, did)
				require.Equal(t, fresh.Watched, got.Watched)
				require.Equal(t, fresh.Print, got.Print)
				for labels := range 16 {
					var in []int
					for label := range 4 {
						if labels&(1<<label) != 0 {
							in = append(in, label)
						}
					}
					wantBytes, wantInodes := fresh.Freed(in...)
					bytes, inodes := got.Freed(in...)
					require.Equal(t, wantBytes, bytes, "%v, round %d after %q", in, round, did)
					require.Equal(t, wantInodes, inodes, "%v, round %d after %q", in, round, did)
				}
				plain := measure(t, root)
				var whole scan.Size
				for _, size := range got.Sizes {
					whole.Allocated += size.Allocated
					whole.Apparent += size.Apparent
					whole.Files += size.Files
					whole.Dirs += size.Dirs
					whole.Inodes += size.Inodes
				}
				require.Equal(t, plain.Size, whole)
				bytes, _ := got.Freed(0, 1, 2, 3)
				require.Equal(t, plain.freed(), bytes)
				kept += got.Work.Kept
				if got.Work.Again {
					again++
				}
				tick(t)
			}
			require.Positive(t, kept, "something was taken from memory")
			require.Less(t, again, rounds)
		})
	}
}

func TestAnUnchangedTreeCostsOneLookForEachDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range 400 {
		write(t, filepath.Join(root, fmt.Sprintf("tree/d%d/e%d/f%d", i%10, i%40, i)), 100)
	}
	require.NoError(t, os.Link(filepath.Join(root, "tree/d0/e0/f0"), filepath.Join(root, "tree/d1/linked")))
	place := scan.Place{Path: "tree", Estimate: true}
	s := scan.New(root, scan.Options{Now: later})
	first := walk(t, s, place)
	require.EqualValues(t, 401, first.Work.Looked)
	require.Equal(t, first.Sizes[0].Dirs, first.Work.Read)
	second := walk(t, s, place)
	require.Equal(t, scan.Work{Kept: first.Sizes[0].Dirs}, second.Work)
	require.Equal(t, first.Sizes, second.Sizes)
	tick(t)
	write(t, filepath.Join(root, "tree/d3/e3/new"), 100)
	third := walk(t, s, place)
	require.EqualValues(t, 1, third.Work.Read, "only what changed is read")
	require.Equal(t, first.Sizes[0].Files+1, third.Sizes[0].Files)
	place.Estimate = false
	require.EqualValues(t, 402, walk(t, s, place).Work.Looked, "what is no estimate is looked at each time")
}

func TestAFreshChangeIsNotRemembered(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "tree/f"), 100)
	s := scan.New(root, scan.Options{})
	for range 2 {
		got := walk(t, s, scan.Place{Path: "tree", Estimate: true})
		require.Zero(t, got.Work.Kept, "a second change could have the same time")
		require.EqualValues(t, 1, got.Work.Looked)
	}
}

func TestGrowthInPlaceIsSeenExceptInEstimates(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"work/log", "cache/blob"} {
		write(t, filepath.Join(root, name), 100)
	}
	s := scan.New(root, scan.Options{Now: later})
	places := []scan.Place{{Path: "work", Label: 0}, {Path: "cache", Label: 1, Estimate: true}}
	before := walk(t, s, places...)
	for _, name := range []string{"work/log", "cache/blob"} {
		file, err := os.OpenFile(filepath.Join(root, name), os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.Write(make([]byte, 100_000))
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	after := walk(t, s, places...)
	require.EqualValues(t, 100_000, after.Sizes[0].Apparent-before.Sizes[0].Apparent)
	require.Equal(t, before.Sizes[1], after.Sizes[1], "the stated limit of an estimate")
	require.EqualValues(t, 100_000, walk(t, scan.New(root, scan.Options{}), places...).Sizes[1].Apparent-before.Sizes[1].Apparent)
}

func TestTheMemoryIsBounded(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range 100 {
		write(t, filepath.Join(root, fmt.Sprintf("d%d/f", i)), 100)
	}
	s := scan.New(root, scan.Options{Now: later, CacheBytes: 30 * 230})
	place := scan.Place{Path: ".", Estimate: true}
	first := walk(t, s, place)
	second := walk(t, s, place)
	require.Equal(t, first.Sizes, second.Sizes)
	require.Positive(t, second.Work.Kept)
	require.LessOrEqual(t, second.Work.Kept, int64(31))
	require.EqualValues(t, 101, second.Work.Kept+second.Work.Read)
	require.NoError(t, os.RemoveAll(filepath.Join(root, "d1")))
	require.EqualValues(t, 99, walk(t, s, place).Sizes[0].Files)
}
