package reclaim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// A tree of any shape, with links, hard links and mounts between what may go and
// what may not: what a pass reports as taken is gone, all else is as it was, and
// the count is what came free.
func TestRandomTreesLoseNothingOutsideThePlan(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: os.Getuid() == 0}) {
		return
	}
	taken, left := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp("", "reclaim-") //nolint:usetesting // one for each tree
		require.NoError(t, err)
		defer func() { _ = os.RemoveAll(root) }()
		w := wild{t, root, nil, nil}
		defer w.unmount()
		w.grow()
		before := w.kept(nil)
		r, err := reclaim.Open(root, reclaim.Options{})
		require.NoError(t, err)
		defer r.Close()
		plan, err := r.Do(t.Context(), box.ReclaimRequest{DryRun: true})
		require.NoError(t, err)
		report, err := r.Do(t.Context(), box.ReclaimRequest{PlanID: plan.PlanID})
		require.NoError(t, err)
		gone := map[string]bool{}
		for _, entry := range report.Items {
			left++
			if entry.Skipped == "" {
				left--
				taken++
				gone[entry.Path] = true
				_, err := os.Lstat(filepath.Join(root, entry.Path))
				require.ErrorIs(t, err, os.ErrNotExist, "reported as taken")
			}
		}
		for name := range before {
			for at := name; at != "."; at = filepath.Dir(at) {
				if gone[at] {
					delete(before, name)
				}
			}
		}
		require.Equal(t, before, w.kept(gone))
		require.Equal(t, plan.PlannedBytes, report.RemovedBytes, "%+v, planned %+v", report, plan)
	})
	t.Logf("%d directories were taken, %d left", taken, left)
	require.Positive(t, taken, "nothing was ever taken, so this shows nothing")
	require.Positive(t, left)
}

// wild makes a tree by chance.
type wild struct {
	t      *rapid.T
	root   string
	places []string // directories
	mounts []string
}

func (w *wild) unmount() {
	for _, at := range w.mounts {
		_ = unix.Unmount(at, unix.MNT_DETACH)
	}
}

func (w *wild) grow() {
	w.places = []string{"workspace", "home/.cache/one", "home/.cache/two", "home/.cache/plain", "home/.npm/_cacache", "home"}
	for _, place := range w.places {
		require.NoError(w.t, os.MkdirAll(filepath.Join(w.root, place), 0o755))
	}
	for place, content := range map[string]string{
		"home/.cache/one/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55", "home/.cache/two/CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55",
		"home/.npm/_cacache/index-v5": "x", "home/.npm/_cacache/content-v2": "x", "workspace/file": "precious",
	} {
		require.NoError(w.t, os.WriteFile(filepath.Join(w.root, place), []byte(content), 0o600))
	}
	files := []string{"workspace/file"}
	names := rapid.SampledFrom(append([]string{"a", "b", "c", "d", "node_modules", ".env", "token"}, oddNames()...))
	pick := func(of []string) string { return rapid.SampledFrom(of).Draw(w.t, "place") }
	for range rapid.IntRange(0, 25).Draw(w.t, "steps") {
		name := filepath.Join(pick(w.places), names.Draw(w.t, "name"))
		at := filepath.Join(w.root, name)
		switch rapid.IntRange(0, 9).Draw(w.t, "what") {
		case 0, 1, 2:
			if os.Mkdir(at, 0o755) == nil {
				w.places = append(w.places, name)
			}
		case 3, 4:
			if _, err := os.Lstat(at); err != nil && os.WriteFile(at, []byte("file "+name), 0o600) == nil {
				files = append(files, name)
			}
		case 5:
			_ = os.Symlink(filepath.Join(w.root, pick(w.places)), at)
		case 6:
			_ = os.Symlink("../"+pick(w.places), at)
		case 7, 8:
			_ = os.Link(filepath.Join(w.root, pick(files)), at)
		case 9:
			if os.Getuid() == 0 && len(w.mounts) < 2 && os.Mkdir(at, 0o755) == nil && unix.Mount(filepath.Join(w.root, "workspace"), at, "", unix.MS_BIND, "") == nil {
				w.mounts = append(w.mounts, at)
			}
		}
	}
}

// kept describes all that is there, but for what was taken and what is ours.
func (w *wild) kept(taken map[string]bool) map[string]string {
	out := map[string]string{}
	require.NoError(w.t, filepath.WalkDir(w.root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(w.root, path)
		switch {
		case err != nil:
			return err
		case name == ".trash", name == "run":
			return filepath.SkipDir
		case taken[name]:
			return fmt.Errorf("%s is still there", name)
		case entry.IsDir():
			out[name] = "directory"
		case entry.Type()&os.ModeSymlink != 0:
			out[name], err = os.Readlink(path)
		default:
			var content []byte
			content, err = os.ReadFile(path)
			out[name] = string(content)
		}
		return err
	}))
	return out
}
