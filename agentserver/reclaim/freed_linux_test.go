package reclaim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// free is what statfs says: bytes for an ordinary user, and inodes.
func free(t *testing.T, at string) (bytes, inodes int64) {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(at, &st))
	return int64(st.Bavail) * st.Bsize, int64(st.Ffree)
}

// link gives the file a second name.
func link(t *testing.T, root, from, to string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, to)), 0o755))
	require.NoError(t, os.Link(filepath.Join(root, from), filepath.Join(root, to)))
}

// exact applies a pass on a filesystem of the test alone, and requires that the
// plan, the count and the filesystem agree to the byte and the inode.
func exact(t *testing.T, root string) (plan, report box.ReclaimReport) {
	t.Helper()
	r := open(t, root)
	written(t, root)
	plan = do(t, r, box.ReclaimRequest{DryRun: true})
	_, before := free(t, root)
	report = do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	_, after := free(t, root)
	require.Equal(t, plan.PlannedBytes, report.RemovedBytes)
	// The plan itself is a file there, whose block may be written back meanwhile.
	require.InDelta(t, plan.PlannedBytes, report.FreedBytes, 4096)
	require.Equal(t, plan.PlannedInodes, after-before)
	require.False(t, plan.LowerBound)
	require.Zero(t, report.HeldOpenBytes)
	return plan, report
}

// TestAPassThatRemovedNothingFreedNothing: what others gave back meanwhile is not
// its work.
func TestAPassThatRemovedNothingFreedNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	place := npm(t, root, 1)
	put(t, root, "work/others", strings.Repeat("x", 32<<20))
	r := openWith(t, root, reclaim.WithFault(reclaim.Options{}, func(step string) {
		if step == "deleted" {
			_ = os.Remove(filepath.Join(root, "work/others"))
		}
	}))
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	require.NoError(t, os.Rename(filepath.Join(root, place), filepath.Join(root, "aside")))
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Zero(t, report.RemovedBytes, "%+v", report)
	require.Zero(t, report.FreedBytes)
	require.NoFileExists(t, filepath.Join(root, "work/others"))
}

func TestFreedIsWhatTheFilesystemGivesBack(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	t.Run("a uv cache that is linked into two environments", func(t *testing.T) {
		t.Parallel()
		root := disk(t, "ext4")
		const uv = "home/.cache/uv"
		put(t, root, uv+"/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
		for i := range 600 {
			name := fmt.Sprintf("%s/archive-v0/%02d/file%03d.py", uv, i%20, i)
			put(t, root, name, strings.Repeat("x", 100+i*37))
			if i%3 > 0 {
				link(t, root, name, fmt.Sprintf("work/one/.venv/lib/file%03d.py", i))
			}
			if i%3 > 1 {
				link(t, root, name, fmt.Sprintf("work/two/.venv/lib/file%03d.py", i))
			}
		}
		plan, _ := exact(t, root)
		out, err := exec.CommandContext(t.Context(), "du", "-s", "--block-size=1", filepath.Join(root, "work")).Output()
		require.NoError(t, err)
		t.Logf("planned and freed %d bytes in %d files; the environments still hold %s", plan.PlannedBytes, plan.PlannedInodes, out)
		require.Less(t, plan.PlannedInodes, int64(300))
	})
	t.Run("a store that is linked across two caches", func(t *testing.T) {
		t.Parallel()
		root := disk(t, "ext4")
		place := npm(t, root, 0)
		put(t, root, "home/.cache/go-build/README", "x")
		put(t, root, "home/.cache/go-build/ff/x", "x")
		for i := range 300 {
			name := fmt.Sprintf("home/.cache/go-build/00/file%03d", i)
			put(t, root, name, strings.Repeat("x", 5000))
			link(t, root, name, fmt.Sprintf("%s/content-v2/%d/file", place, i))
			if i%3 == 0 {
				link(t, root, name, fmt.Sprintf("work/node_modules/%d/file", i))
			}
		}
		plan, _ := exact(t, root)
		one, other := itemOf(t, plan, place), itemOf(t, plan, "home/.cache/go-build")
		require.GreaterOrEqual(t, plan.PlannedBytes-one.Bytes-other.Bytes, int64(200*8192), "each alone frees none of what both link to")
	})
	t.Run("files with holes, long links and large attributes", func(t *testing.T) {
		t.Parallel()
		root := disk(t, "ext4")
		place := npm(t, root, 3)
		hole := filepath.Join(root, place, "content-v2/hole")
		file, err := os.Create(hole)
		require.NoError(t, err)
		for _, at := range []int64{0, 1 << 30, 5 << 30} {
			_, err := file.WriteAt([]byte(strings.Repeat("x", 10_000)), at)
			require.NoError(t, err)
		}
		require.NoError(t, file.Close())
		require.NoError(t, os.Symlink(strings.Repeat("x", 1000), filepath.Join(root, place, "content-v2/link")))
		require.NoError(t, unix.Setxattr(hole, "user.large", []byte(strings.Repeat("x", 3000)), 0))
		require.NoError(t, unix.Mkfifo(filepath.Join(root, place, "content-v2/fifo"), 0o600))
		plan, _ := exact(t, root)
		require.Less(t, plan.PlannedBytes, int64(1<<20), "5 GiB of holes are nothing")
	})
	t.Run("a file that is open under a name deleted before", func(t *testing.T) {
		t.Parallel()
		root := disk(t, "ext4")
		place := npm(t, root, 3)
		put(t, root, place+"/content-v2/big", strings.Repeat("x", 8<<20))
		link(t, root, place+"/content-v2/big", "work/big")
		file, err := os.Open(filepath.Join(root, "work/big"))
		require.NoError(t, err)
		defer file.Close()
		require.NoError(t, os.Remove(filepath.Join(root, "work/big")))
		r := open(t, root)
		written(t, root)
		plan := do(t, r, box.ReclaimRequest{DryRun: true})
		require.Greater(t, plan.PlannedBytes, int64(8<<20))
		report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
		require.Equal(t, plan.PlannedBytes, report.RemovedBytes)
		require.Equal(t, int64(8<<20), report.HeldOpenBytes)
		require.InDelta(t, report.RemovedBytes-report.HeldOpenBytes, report.FreedBytes, 4096)
		before, _ := free(t, root)
		require.NoError(t, file.Close())
		// A process that another test is just starting has it for a moment longer.
		require.Eventually(t, func() bool {
			written(t, root)
			after, _ := free(t, root)
			return after-before == report.HeldOpenBytes
		}, 10*time.Second, 20*time.Millisecond, "it comes free when the file is closed")
	})
}

// Copies that share their blocks give nothing back while one of them stays, and
// neither the number of blocks nor that of links says so.
func TestFreedIsALowerBoundWhereCopiesShareBlocks(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			root := disk(t, kind)
			place := npm(t, root, 3)
			const size = 8 << 20
			put(t, root, "work/original", strings.Repeat("x", size))
			from, err := os.Open(filepath.Join(root, "work/original"))
			require.NoError(t, err)
			defer from.Close()
			to, err := os.Create(filepath.Join(root, place, "content-v2/copy"))
			require.NoError(t, err)
			defer to.Close()
			require.NoError(t, unix.IoctlFileClone(int(to.Fd()), int(from.Fd())))
			require.NoError(t, to.Close())
			put(t, root, place+"/content-v2/own", strings.Repeat("y", size))
			written(t, root)
			var st unix.Stat_t
			require.NoError(t, unix.Stat(filepath.Join(root, place, "content-v2/copy"), &st))
			require.EqualValues(t, size, st.Blocks*512, "the copy looks as if it had blocks of its own")

			r := open(t, root)
			plan := do(t, r, box.ReclaimRequest{DryRun: true})
			require.True(t, plan.LowerBound)
			require.True(t, itemOf(t, plan, place).LowerBound)
			require.Greater(t, plan.PlannedBytes, int64(size))
			require.Less(t, plan.PlannedBytes, int64(size+1<<20))
			before, _ := free(t, root)
			report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			written(t, root)
			after, _ := free(t, root)
			t.Logf("planned at least %d, removed %d, statfs %d", plan.PlannedBytes, report.RemovedBytes, after-before)
			require.Less(t, report.RemovedBytes, int64(size+1<<20))
			require.Less(t, after-before, int64(size+1<<20), "the copy gave something back, so this shows nothing")
		})
	}
}
