//go:build linux

package scan

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

func fill(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte("x"), 0o600))
	}
}

func TestAPartThatHangsIsListedAndTheRestIsMeasured(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4} {
		root := t.TempDir()
		fill(t, root, "bad/file", "good/file", "good/deeper/file")
		release := make(chan struct{})
		var paused atomic.Int32
		s := New(root, Options{Workers: workers, Stall: 50 * time.Millisecond, pause: func(path string) {
			if path == "bad" {
				paused.Add(1)
				<-release
			}
		}})
		places := []Place{{Path: ".", Label: 0, Estimate: true}, {Path: "bad", Label: 1}, {Path: "good", Label: 2}}
		result, err := s.Walk(t.Context(), places)
		require.NoError(t, err)
		require.Len(t, result.Faults, 1)
		require.Equal(t, "bad", result.Faults[0].Path)
		require.ErrorContains(t, result.Faults[0].Err, "did not answer")
		require.True(t, result.Partial[1])
		if workers > 1 {
			require.EqualValues(t, 2, result.Sizes[2].Files)
			require.Equal(t, []bool{false, true, false}, result.Partial)
		} else {
			require.True(t, result.Partial[2] || result.Sizes[2].Files == 2, "what was not reached is not passed off as empty")
		}
		for range 3 {
			result, err = s.Walk(t.Context(), places)
			require.NoError(t, err)
			require.Len(t, result.Faults, 1)
			require.ErrorIs(t, result.Faults[0].Err, errHung)
			require.EqualValues(t, 2, result.Sizes[2].Files)
			require.EqualValues(t, 1, paused.Load(), "nobody else is sent there")
		}
		close(release)
		for s.anyHung.Load() > 0 { // the worker is on its way back
			runtime.Gosched()
		}
		result, err = s.Walk(t.Context(), places)
		require.NoError(t, err)
		require.Empty(t, result.Faults)
		require.EqualValues(t, 1, result.Sizes[1].Files)
	}
}

func TestAWalkThatTakesTooLongAnswersWhatItHas(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("d%03d/file", i))
	}
	fill(t, root, names...)
	s := New(root, Options{Workers: 2, Limit: 50 * time.Millisecond, pause: func(path string) {
		if path != "." {
			time.Sleep(5 * time.Millisecond) // a slow disk
		}
	}})
	result, err := s.Walk(t.Context(), []Place{{Path: "."}})
	require.NoError(t, err)
	require.Less(t, result.Sizes[0].Files, int64(200))
	require.Equal(t, []bool{true}, result.Partial)
	require.Len(t, result.Faults, 1)
	require.ErrorContains(t, result.Faults[0].Err, "within 50ms")
}

// A file server that never answers stops everybody who looks at its mount.
func TestAStoppedFileServerIsNeverAsked(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fill(t, root, "tree/file", "tree/hung/below")
	s := New(root, Options{Now: func() time.Time { return time.Now().Add(time.Hour) }})
	places := []Place{{Path: "tree", Estimate: true}}
	_, err := s.Walk(t.Context(), places)
	require.NoError(t, err)
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no file server can be played here: " + err.Error())
	}
	hung := filepath.Join(root, "tree/hung")
	if err := unix.Mount("silent", hung, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server)); err != nil {
		unix.Close(server)
		t.Skip("this user cannot mount: " + err.Error())
	}
	stopped := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(hung)
		stopped <- err
	}()
	for _, estimate := range []bool{true, false} {
		for _, openat2 := range []bool{true, false} {
			s.opts.stepwise = !openat2
			result, err := s.Walk(t.Context(), []Place{{Path: "tree", Estimate: estimate}, {Path: "tree/hung/x", Label: 1}})
			require.NoError(t, err)
			require.Len(t, result.Faults, 1)
			require.Equal(t, "tree/hung", result.Faults[0].Path)
			require.ErrorIs(t, result.Faults[0].Err, ErrMounted)
			require.EqualValues(t, 1, result.Sizes[0].Files)
		}
	}
	select {
	case err := <-stopped:
		require.Fail(t, "the server did not hang, so nothing is shown", "%v", err)
	default:
	}
	require.NoError(t, unix.Unmount(hung, unix.MNT_DETACH|unix.MNT_FORCE))
	unix.Close(server)
	require.Error(t, <-stopped)
}

func TestWithoutOpenat2TheSameHolds(t *testing.T) {
	t.Parallel()
	root, other := t.TempDir(), t.TempDir()
	fill(t, root, "tree/a/b/c/file", "tree/file", "tree/"+strings.Repeat("deep/", 300)+"file")
	fill(t, other, "secret")
	require.NoError(t, os.Symlink(other, filepath.Join(root, "tree/link")))
	require.NoError(t, os.Symlink("tree", filepath.Join(root, "in")))
	s := New(root, Options{})
	want, err := s.Walk(t.Context(), []Place{{Path: "tree"}, {Path: "in/a", Label: 1}, {Path: "tree/link/x", Label: 0}})
	require.NoError(t, err)
	s.opts.stepwise = true
	got, err := s.Walk(t.Context(), []Place{{Path: "tree"}, {Path: "in/a", Label: 1}, {Path: "tree/link/x", Label: 0}})
	if box.ClassOf(err) == box.ClassUnsupported {
		t.Skip(err.Error())
	}
	require.NoError(t, err)
	require.Equal(t, want.Sizes, got.Sizes)
	require.EqualValues(t, 4, got.Sizes[0].Files)
	require.Len(t, got.Faults, 1)
	require.ErrorIs(t, got.Faults[0].Err, errLink)
	bound := filepath.Join(root, "tree/a/b")
	if err := unix.Mount(other, bound, "", unix.MS_BIND, ""); err != nil {
		t.Skip("this user cannot mount: " + err.Error())
	}
	defer func() { require.NoError(t, unix.Unmount(bound, unix.MNT_DETACH)) }()
	got, err = s.Walk(t.Context(), []Place{{Path: "tree"}})
	require.NoError(t, err)
	require.EqualValues(t, 3, got.Sizes[0].Files)
	require.ErrorIs(t, got.Faults[0].Err, ErrMounted)
}
