package reclaim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// ext4 mounts a filesystem of its own, so that what is free in it is only the
// test's doing.
func ext4(t *testing.T, size int64) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a filesystem of its own needs root")
	}
	image := filepath.Join(t.TempDir(), "image")
	file, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, file.Truncate(size))
	require.NoError(t, file.Close())
	if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-m", "0", image).CombinedOutput(); err != nil {
		t.Skipf("this machine makes no ext4: %v %s", err, out)
	}
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", image, root).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let us mount an image: %v %s", err, out)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	return root
}

func memory(t *testing.T, options string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a small filesystem needs root")
	}
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, options); err != nil {
		t.Skip("this machine does not let us mount a small filesystem: " + err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	return root
}

func usedShare(t *testing.T, root string) float64 {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(root, &st))
	used := st.Blocks - st.Bfree
	return float64(used) / float64(used+st.Bavail)
}

func TestScenario104TenConversationsThatFillCachesStayUnderTheBudget(t *testing.T) {
	t.Parallel()
	const size = 40 << 20
	root := ext4(t, size)
	const n, chunk, high, low = 10, 1 << 20, 0.8, 0.6
	places := conversations(t, root, n)
	places.change(conversationID(9), func(p *reclaim.Place) { p.Busy = "it runs" })
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}, Budget: reclaim.Budget{High: high, Low: low}})
	written, most := 0, 0.0
	for round := range 11 {
		for i := range n {
			if i == 9 && round > 3 {
				continue // what the running one fills nobody takes
			}
			npmBelow(t, root, runtimes+"/"+conversationID(i)+"/persistence")
			put(t, root, fmt.Sprintf("%s/content-v2/sha512/%02d/blob", cacheOf(i), round), strings.Repeat("c", chunk))
			written += chunk
			require.NoError(t, r.Pass(t.Context()))
			now := usedShare(t, root)
			most = max(most, now)
			require.LessOrEqual(t, now, high, "after %d bytes", written)
		}
	}
	require.Greater(t, written, 2*size, "more was written than there is room for")
	require.Greater(t, most, low, "the budget came into play")
	for round := range 4 {
		require.FileExists(t, filepath.Join(root, cacheOf(9), fmt.Sprintf("content-v2/sha512/%02d/blob", round)), "what runs was not touched")
	}
	for i := range n {
		require.DirExists(t, filepath.Join(root, nodeModules(i)), "caches were enough")
		require.FileExists(t, filepath.Join(root, runtimes, conversationID(i), "workspace/repo/main.js"))
	}
}

func TestScenario105AFullDiskIsClearedWithoutScratchSpace(t *testing.T) {
	t.Parallel()
	root := ext4(t, 16<<20)
	places := conversations(t, root, 2)
	places.change(conversationID(1), func(p *reclaim.Place) { p.Busy = "it runs" })
	fill := func() {
		file, err := os.OpenFile(filepath.Join(root, cacheOf(0), "content-v2/fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		require.NoError(t, err)
		defer file.Close()
		for _, size := range []int{64 << 10, 1 << 10} { // the rest in single blocks
			for err = nil; err == nil; {
				_, err = file.Write(make([]byte, size))
			}
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.NoError(t, file.Sync())
		}
	}
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}, Unsaved: saved, Budget: reclaim.Budget{High: 0.5}})
	fill()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(root, &st))
	require.Zero(t, st.Bavail)
	plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{box.TierDependencies}})
	fill() // what the reserve gave back
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.ElementsMatch(t, []string{cacheOf(0), mypyOf(0), nodeModules(0)}, taken(report))
	require.GreaterOrEqual(t, report.RemovedBytes, plan.PlannedBytes)
	require.InDelta(t, report.RemovedBytes, report.FreedBytes, 128<<10, "more or less the journal of the box")
	npmBelow(t, root, runtimes+"/"+conversationID(0)+"/persistence")
	fill()
	r.Close()
	r = openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}, Unsaved: saved, Budget: reclaim.Budget{High: 0.5}})
	require.NoError(t, r.Pass(t.Context()), "a start and a pass of its own need none either")
	require.Less(t, usedShare(t, root), 0.5)
	require.DirExists(t, filepath.Join(root, nodeModules(1)))
}

func TestTheBudgetCountsInodesToo(t *testing.T) {
	t.Parallel()
	root := memory(t, "size=64m,nr_inodes=1000")
	npm(t, root, 0)
	for i := range 900 {
		put(t, root, fmt.Sprintf("home/.npm/_cacache/content-v2/%d", i), "")
	}
	r := openWith(t, root, reclaim.Options{Budget: reclaim.Budget{High: 0.8, Bytes: 3 << 30}})
	disk, err := r.Disk()
	require.NoError(t, err)
	require.EqualValues(t, 1000, disk.TotalInodes)
	require.Less(t, disk.FreeInodes, int64(100))
	require.InDelta(t, 0.8, disk.Budget, 0)
	require.EqualValues(t, 3<<30, disk.TreeBudgetBytes)
	require.Less(t, usedShare(t, root), 0.5, "bytes are free")
	require.NoError(t, r.Pass(t.Context()))
	require.NoDirExists(t, filepath.Join(root, "home/.npm/_cacache"))
}

// megabytes fills the caches and the dependencies of the conversations, and
// returns what lies below the box then.
func megabytes(t *testing.T, root string, n int) int64 {
	t.Helper()
	for i := range n {
		put(t, root, cacheOf(i)+"/content-v2/big", strings.Repeat("c", 1<<20))
		put(t, root, nodeModules(i)+"/big", strings.Repeat("d", 1<<20))
	}
	npm(t, root, 0)
	put(t, root, "home/.npm/_cacache/content-v2/big", strings.Repeat("e", 1<<20))
	var sum int64
	require.NoError(t, filepath.WalkDir(root, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		sum += stat.Blocks * 512
		return nil
	}))
	return sum
}

func TestABudgetShedsTheLongestUnusedFirstAndStopsWhenUnder(t *testing.T) {
	t.Parallel()
	const margin = 600 << 10
	for name, row := range map[string]struct {
		shed int64 // how many megabytes are too many
		want []string
	}{
		"under it":          {-1, nil},
		"one cache":         {1, []string{cacheOf(2)}},
		"two caches":        {2, []string{cacheOf(2), cacheOf(1)}},
		"the box's own too": {4, []string{cacheOf(2), cacheOf(1), cacheOf(0), "home/.npm/_cacache"}},
		"a dependency": {5, []string{
			cacheOf(2), cacheOf(1), cacheOf(0), "home/.npm/_cacache", nodeModules(2),
		}},
		"all that may go": {100, []string{
			cacheOf(2), cacheOf(1), cacheOf(0), "home/.npm/_cacache", nodeModules(2), nodeModules(1), nodeModules(0),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			places := conversations(t, root, 4)
			// The last was used longest ago, of the first it is not known when.
			for i := range 3 {
				places.change(conversationID(i), func(p *reclaim.Place) { p.LastActive = used(10 - i) })
			}
			places.change(conversationID(0), func(p *reclaim.Place) { p.LastActive = time.Time{} })
			places.change(conversationID(3), func(p *reclaim.Place) { p.LastActive, p.Busy = used(0), "it runs" })
			sum := megabytes(t, root, 4)
			most := max(1, sum-row.shed<<20+margin)
			r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}, Budget: reclaim.Budget{Bytes: most}})
			require.NoError(t, r.Pass(t.Context()))
			for _, place := range []string{
				cacheOf(0), cacheOf(1), cacheOf(2), cacheOf(3), "home/.npm/_cacache",
				nodeModules(0), nodeModules(1), nodeModules(2), nodeModules(3),
			} {
				_, err := os.Lstat(filepath.Join(root, place))
				require.Equal(t, slices.Contains(row.want, place), errors.Is(err, os.ErrNotExist), place)
			}
		})
	}
}

func TestOverTheBudgetWithNothingLeftIsToldOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root, "workspace/big", strings.Repeat("x", 1<<20))
	var log bytes.Buffer
	r := openWith(t, root, reclaim.Options{Budget: reclaim.Budget{Bytes: 512 << 10}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	told := func() int { return strings.Count(log.String(), "nothing is left that may be shed") }
	for range 3 {
		require.NoError(t, r.Pass(t.Context()))
		require.Equal(t, 1, told())
	}
	require.NoError(t, os.Remove(filepath.Join(root, "workspace/big")))
	require.NoError(t, r.Pass(t.Context()))
	put(t, root, "workspace/big", strings.Repeat("x", 1<<20))
	require.NoError(t, r.Pass(t.Context()))
	require.Equal(t, 2, told(), "it was under in between")
}

func TestWithoutABudgetAPassTakesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	places := conversations(t, root, 1)
	own := npm(t, root, 1)
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}})
	require.NoError(t, r.Pass(t.Context()))
	for _, place := range []string{own, cacheOf(0), nodeModules(0)} {
		require.DirExists(t, filepath.Join(root, place))
	}
	plans, err := os.ReadDir(filepath.Join(root, "run/reclaim"))
	require.NoError(t, err)
	require.Empty(t, plans)
}

func TestAPassFinishesWhatWasMarkedAndNotMoved(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	places := conversations(t, root, 4)
	places.change(conversationID(0), func(p *reclaim.Place) { p.Archived = true })
	places.change(conversationID(1), func(p *reclaim.Place) { p.Archived, p.Busy = true, "it is being read" })
	places.change(conversationID(3), func(p *reclaim.Place) { p.Archived = true })
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}, Unsaved: func(_ context.Context, workspace string) (string, error) {
		if strings.Contains(workspace, conversationID(3)) {
			return "1 commit on no remote", nil
		}
		return "", nil
	}})
	require.NoError(t, r.Pass(t.Context()))
	require.NoDirExists(t, filepath.Join(root, runtimes, conversationID(0)))
	require.DirExists(t, filepath.Join(root, runtimes, conversationID(1)))
	require.DirExists(t, filepath.Join(root, runtimes, conversationID(2)))
	require.DirExists(t, filepath.Join(root, runtimes, conversationID(3)), "somebody worked there after it was archived")
}

func TestABudgetThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for field, budgets := range map[string][]reclaim.Budget{
		"budget.high":  {{High: -0.1}, {High: 1.1}, {High: math.NaN()}, {High: 85}},
		"budget.low":   {{High: 0.8, Low: 0.9}, {Low: 0.5}, {High: 0.8, Low: -1}, {High: 0.8, Low: math.NaN()}},
		"budget.bytes": {{Bytes: -1}},
	} {
		for _, budget := range budgets {
			_, err := reclaim.Open(t.TempDir(), reclaim.Options{Budget: budget})
			said, ok := errors.AsType[*box.Error](err)
			require.True(t, ok, "%+v", budget)
			require.Equal(t, field, said.Field)
		}
	}
}
