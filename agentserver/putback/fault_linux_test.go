package putback_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/putback"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// What fails in the box says nothing of the archive: it is tried again, and no
// half of it stays.
func TestWhatFailsInTheBoxIsNotTheArchivesFault(t *testing.T) {
	t.Parallel()
	old, clone := agentservertest.ClonedBox(t)
	write(t, filepath.Join(clone, "a.txt"), "staged\n")
	agentservertest.Git(t, clone, "add", "a.txt")
	archive, _ := export(t, old)
	tar, sum := tarOf(t, archive)
	git, err := exec.LookPath("git")
	require.NoError(t, err)
	for name, row := range map[string]struct {
		does string
		want box.Class
	}{
		"it is killed":     {"kill -9 $$", box.ClassInternal},
		"the disk is full": {"echo 'fatal: write error: No space left on device' >&2; exit 128", box.ClassExhausted},
		"there is a quota": {"echo 'fatal: write error: Disk quota exceeded' >&2; exit 128", box.ClassExhausted},
	} {
		for _, at := range []string{"index-pack", "read-tree", "apply"} {
			t.Run(at+", "+name, func(t *testing.T) {
				t.Parallel()
				program := filepath.Join(t.TempDir(), "git")
				write(t, program, "#!/bin/sh\ncase \" $* \" in *' "+at+" '*) "+row.does+";; esac\nexec "+git+" \"$@\"\n")
				require.NoError(t, os.Chmod(program, 0o755))
				bad, err := repo.New(repo.Options{Program: program, Scratch: []string{t.TempDir()}})
				require.NoError(t, err)
				root := freshBox(t)
				_, _, err = putback.New(putback.Options{Root: root, Dirs: []string{"workspace", "worktrees"}, Scratch: scratch, Git: bad}).
					Restore(t.Context(), sum, int64(len(tar)), bytes.NewReader(tar))
				require.Equal(t, row.want, box.ClassOf(err), err)
				untouched(t, root)
			})
		}
	}
}
