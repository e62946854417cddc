package repo

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A change that did look at a working tree would run nothing either: between our
// look at a path and git's, somebody may have put a directory there.
func TestAChangeRunsNoFilterWhateverItLooksAt(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, linked, mark := filepath.Join(base, "repo"), filepath.Join(base, "linked"), filepath.Join(base, "ran")
	program := filepath.Join(base, "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho x >> "+mark+"\nexit 1\n"), 0o755))
	require.NoError(t, os.Mkdir(dir, 0o755))
	plain := func(at string, args ...string) {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.invalid"}, args...)...)
		cmd.Dir = at
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	plain(dir, "init", "-q", "-b", "main")
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitattributes"), []byte("* filter=evil=x\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o600))
	plain(dir, "add", "-A")
	plain(dir, "commit", "-q", "-m", "first")
	plain(dir, "worktree", "add", "-q", "-b", "side", linked)
	plain(dir, "config", "filter.evil=x.clean", program)
	plain(dir, "config", "filter.evil=x.process", program)
	plain(dir, "config", "filter.evil=x.required", "true")
	require.NoError(t, os.WriteFile(filepath.Join(linked, "a.txt"), []byte("eno\n"), 0o600)) // as long as before
	git, err := New(Options{Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	r, err := git.Open(t.Context(), linked)
	require.NoError(t, err)
	defer r.Close()
	require.Error(t, r.Unlist(t.Context()), "we do not ask while something is there")
	require.NoFileExists(t, mark)
	require.Error(t, r.change(t.Context(), nil, "worktree", "remove", "--", linked), "git refuses: it is changed")
	require.NoFileExists(t, mark)

	cmd := exec.CommandContext(t.Context(), "git", "worktree", "remove", linked)
	cmd.Dir = dir
	_ = cmd.Run()
	require.FileExists(t, mark, "plain git runs it")
}
