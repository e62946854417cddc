package reclaim_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// Scenario 100: a directory that was chosen is swapped for a link to another.
func TestScenario100WhatBecameALinkIsRefused(t *testing.T) {
	t.Parallel()
	for name, swapped := range map[string]string{
		"itself": "home/.npm/_cacache", "the directory it is in": "home/.npm", "the home": "home", "with a link inside the box": "home/.npm/_cacache",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, outside := t.TempDir(), t.TempDir()
			if name == "with a link inside the box" {
				outside = filepath.Join(root, "workspace")
			}
			place := npm(t, root, 3)
			precious := filepath.Join(outside, "copy", place)
			npm(t, filepath.Join(outside, "copy"), 3)
			require.NoError(t, os.WriteFile(filepath.Join(precious, "content-v2/work"), []byte("precious"), 0o600))
			r := open(t, root)
			plan := do(t, r, box.ReclaimRequest{DryRun: true})
			require.Empty(t, itemOf(t, plan, place).Skipped)
			require.NoError(t, os.Rename(filepath.Join(root, swapped), filepath.Join(root, "aside")))
			require.NoError(t, os.Symlink(filepath.Join(outside, "copy", swapped), filepath.Join(root, swapped)))
			require.FileExists(t, filepath.Join(root, place, "content-v2/work"), "by its path it looks like the cache")
			report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			require.NotEmpty(t, itemOf(t, report, place).Skipped)
			require.Zero(t, report.RemovedBytes)
			require.FileExists(t, filepath.Join(precious, "content-v2/work"))
			require.FileExists(t, filepath.Join(precious, "content-v2/sha512/00/blob"))
		})
	}
}

// A link that stays inside the box, by a relative path, is followed by what only
// keeps a look-up beneath the box.
func TestScenario100ALinkInsideTheBoxIsNotFollowedEither(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ link, to string }{
		"the cache":              {"home/.npm/_cacache", "../../workspace/home/.npm/_cacache"},
		"the directory above":    {"home/.npm", "../workspace/home/.npm"},
		"the home":               {"home", "workspace/home"},
		"the home, by more ways": {"home", "./workspace/../workspace/home"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			place := npm(t, filepath.Join(root, "workspace"), 3)
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, row.link)), 0o755))
			require.NoError(t, os.Symlink(row.to, filepath.Join(root, row.link)))
			require.FileExists(t, filepath.Join(root, place, "content-v2/sha512/00/blob"), "by its path it looks like the cache")
			report := do(t, open(t, root), box.ReclaimRequest{})
			require.Zero(t, report.PlannedBytes)
			require.Zero(t, report.RemovedBytes)
			require.FileExists(t, filepath.Join(root, "workspace", place, "content-v2/sha512/00/blob"))
		})
	}
}

// Scenario 101: links that lead out of what goes are removed, and what they lead
// to stays.
func TestScenario101LinksGoAndTheirTargetsStay(t *testing.T) {
	t.Parallel()
	root, outside := inMemory(t), t.TempDir()
	put(t, outside, "node_modules/package/index.js", "shared")
	put(t, root, "workspace/node_modules/package/index.js", "shared")
	place := npm(t, root, 3)
	cache := filepath.Join(root, place)
	links := map[string]string{
		"content-v2/out":      filepath.Join(outside, "node_modules"),
		"content-v2/inside":   "../../../../workspace/node_modules",
		"content-v2/file":     filepath.Join(outside, "node_modules/package/index.js"),
		"content-v2/dangling": filepath.Join(outside, "gone"),
		"content-v2/loop":     "loop",
		"content-v2/up":       "../../../..",
	}
	for name, to := range links {
		require.NoError(t, os.Symlink(to, filepath.Join(cache, name)))
	}
	report := do(t, open(t, root), box.ReclaimRequest{})
	require.Empty(t, itemOf(t, report, place).Skipped)
	require.Equal(t, report.PlannedBytes, report.RemovedBytes, "what a link leads to is not counted")
	require.NoDirExists(t, cache)
	for _, base := range []string{filepath.Join(outside), filepath.Join(root, "workspace")} {
		content, err := os.ReadFile(filepath.Join(base, "node_modules/package/index.js"))
		require.NoError(t, err)
		require.Equal(t, "shared", string(content))
	}
}

// Scenario 105: a pass works on a filesystem without a free byte, and on one
// without a free inode.
func TestScenario105AFullDiskIsCleared(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	t.Run("no byte is free", func(t *testing.T) {
		t.Parallel()
		root := disk(t, "ext4")
		place := npm(t, root, 3)
		r := open(t, root)
		file, err := os.OpenFile(filepath.Join(root, place, "content-v2/fill"), os.O_CREATE|os.O_WRONLY, 0o644)
		require.NoError(t, err)
		for block := make([]byte, 1<<20); err == nil; {
			_, err = file.Write(block)
		}
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.NoError(t, file.Close())
		written(t, root)
		before, _ := free(t, root)
		require.Less(t, before, int64(1<<20))
		report := do(t, r, box.ReclaimRequest{})
		require.Empty(t, itemOf(t, report, place).Skipped)
		require.Greater(t, report.FreedBytes, int64(100<<20))
		require.NoDirExists(t, filepath.Join(root, place))
	})
	t.Run("no inode is free", func(t *testing.T) {
		t.Parallel()
		root := t.TempDir()
		require.NoError(t, unix.Mount("tmpfs", root, "tmpfs", 0, "size=16m,nr_inodes=600"))
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		place := npm(t, root, 3)
		r := open(t, root)
		plan := do(t, r, box.ReclaimRequest{DryRun: true})
		at := filepath.Join(root, place, "content-v2/sha512")
		var err error
		for i := 0; err == nil; i++ {
			err = unix.Mknod(filepath.Join(at, strconv.Itoa(i)), unix.S_IFREG|0o600, 0)
		}
		require.ErrorIs(t, err, syscall.ENOSPC)
		_, inodes := free(t, root)
		require.Zero(t, inodes)
		report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
		require.Empty(t, itemOf(t, report, place).Skipped)
		require.NoDirExists(t, filepath.Join(root, place))
		_, inodes = free(t, root)
		require.Greater(t, inodes, int64(500))
	})
}

// Scenario 106: what is reported as removed is gone, a dangling link too, and
// what is left is reported.
func TestScenario106NothingReportedAsRemovedIsLeft(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	place := npm(t, root, 3)
	require.NoError(t, os.Symlink("gone", filepath.Join(root, place, "content-v2/dangling")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "home/.cache"), 0o755))
	require.NoError(t, os.Symlink("../gone", filepath.Join(root, "home/.cache/dangling")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, ".trash"), 0o700))
	require.NoError(t, os.Symlink("gone", filepath.Join(root, ".trash/dangling")))
	require.NoError(t, os.Chmod(root, 0o700))
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	report := do(t, r, box.ReclaimRequest{})
	r.Idle() // what lay in the trash before goes in its own time
	r.Close()
	require.Empty(t, itemOf(t, report, place).Skipped)
	require.Contains(t, itemOf(t, report, "home/.cache/dangling").Skipped, "is a link")
	_, err = os.Lstat(filepath.Join(root, "home/.cache/dangling"))
	require.NoError(t, err, "it was reported as left")
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.Name() == "dangling" && path != filepath.Join(root, "home/.cache/dangling") {
			return errors.Join(err, errors.New(path+" is left and not reported"))
		}
		return err
	}))
}
