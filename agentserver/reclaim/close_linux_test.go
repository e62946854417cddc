package reclaim_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// The number of a closed descriptor is given to the next file that is opened, by
// anybody in the process: closed twice, a stranger's file is closed, and a walk
// goes on in another directory.
func TestClosedTwiceNobodyElsesFileIsClosed(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{}) { // alone: numbers are not taken by others
		return
	}
	r := open(t, t.TempDir())
	r.Close()
	var others []*os.File
	for range 64 { // one of them has the number
		file, err := os.Open("/")
		require.NoError(t, err)
		others = append(others, file)
	}
	r.Close()
	for _, file := range others {
		_, err := file.Stat()
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
}

func TestAfterCloseEveryCallIsRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	npm(t, root, 1)
	r := open(t, root)
	r.Close()
	_, err := r.Do(t.Context(), box.ReclaimRequest{})
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), err)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(r.Pass(t.Context())))
	_, err = r.Select(t.Context())
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), err)
	require.DirExists(t, filepath.Join(root, "home/.npm/_cacache"))
}

// A call that is under way keeps the tree open, gives up soon, and loses nothing.
func TestCloseWaitsForACallThatIsUnderWay(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	npm(t, root, 1)
	reached, goOn := make(chan struct{}), make(chan struct{})
	r := openWith(t, root, reclaim.WithFault(reclaim.Options{}, func(step string) {
		if step == "journaled" {
			close(reached)
			<-goOn
		}
	}))
	answer := make(chan error, 1)
	go func() {
		_, err := r.Do(t.Context(), box.ReclaimRequest{})
		answer <- err
	}()
	<-reached
	closed := make(chan struct{})
	go func() { r.Close(); close(closed) }()
	select {
	case <-closed:
		t.Fatal("closed under a pass")
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	<-closed
	<-answer
	again := open(t, root) // what was taken is deleted, what was not is there
	do(t, again, box.ReclaimRequest{})
	require.NoDirExists(t, filepath.Join(root, "home/.npm/_cacache"))
	left, err := os.ReadDir(filepath.Join(root, ".trash"))
	require.NoError(t, err)
	require.Empty(t, left)
}
