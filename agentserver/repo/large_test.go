//go:build linux

package repo_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// gitWithin is git with so much memory for its data, as where a kernel would end
// it; what it maps of files does not count.
func gitWithin(t *testing.T, mib int) *repo.Git {
	t.Helper()
	real, err := exec.LookPath("git")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "git")
	require.NoError(t, os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\nulimit -d %d\nexec %s \"$@\"\n", mib<<10, real), 0o700))
	git, err := repo.New(repo.Options{Program: program})
	require.NoError(t, err)
	return git
}

// sized writes a file of zeros that begins with a text.
func sized(t *testing.T, file, text string, mib int64) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	require.NoError(t, os.Truncate(file, mib<<20))
}

// TestLargeChangesAreInNoPatch: git takes five times the size of a file to make a
// patch of it, and the kernel would end it, or the agent-server.
func TestLargeChangesAreInNoPatch(t *testing.T) {
	t.Parallel()
	const large = 32
	dir := newRepo(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"changed", "staged", "twice", "gone", "shrunk", "dropped"} {
		sized(t, at(name), name, large)
	}
	write(t, at("grown"), "small")
	write(t, at(":(glob)*"), "an odd name\n")
	do(t, dir, "add", "-A")
	do(t, dir, "commit", "-q", "-m", "large files")
	for _, name := range []string{"staged", "twice", "new"} {
		sized(t, at(name), name+" and more", large)
	}
	write(t, at("shrunk"), "small\n")
	do(t, dir, "rm", "-q", "dropped")
	do(t, dir, "add", "staged", "twice", "new", "shrunk")
	sized(t, at("twice"), "changed again", large)
	write(t, at("shrunk"), "small again\n")
	sized(t, at("changed"), "changed and more", large)
	sized(t, at("grown"), "large now", large)
	sized(t, at(":(glob)*"), "large now, and odd", large)
	require.NoError(t, os.Remove(at("gone")))
	write(t, at("a.txt"), "a small change\n")

	r := open(t, gitWithin(t, 64), dir)
	list, err := r.Large(t.Context())
	require.NoError(t, err)
	found := map[string]repo.Large{}
	var without [2][]string
	for _, one := range list {
		if one.Staged {
			without[0] = append(without[0], one.Path)
		}
		if one.Unstaged {
			without[1] = append(without[1], one.Path)
		}
		path := one.Path
		one.Path = ""
		found[path] = one
	}
	require.Equal(t, map[string]repo.Large{
		"changed": {Unstaged: true}, "gone": {Unstaged: true}, "grown": {Unstaged: true}, ":(glob)*": {Unstaged: true},
		"staged": {Staged: true}, "new": {Staged: true}, "dropped": {Staged: true},
		"twice": {Staged: true, Unstaged: true, Twice: true}, "shrunk": {Staged: true, Twice: true},
	}, found)
	var staged, unstaged bytes.Buffer
	require.NoError(t, r.Patch(t.Context(), &staged, true, without[0]))
	require.NoError(t, r.Patch(t.Context(), &unstaged, false, without[1]))
	require.Empty(t, staged.String())
	require.Equal(t, 2, strings.Count(unstaged.String(), "diff --git"))
	require.Contains(t, unstaged.String(), "+a small change")
	require.Contains(t, unstaged.String(), "+small again")
	require.Error(t, r.Patch(t.Context(), &unstaged, false, nil), "this is what it is for")
}

func TestTooManyLargeChangesAreSaid(t *testing.T) {
	t.Parallel()
	dir := newRepo(t)
	for i := range 1_001 {
		write(t, filepath.Join(dir, fmt.Sprintf("f%04d", i)), "small")
	}
	do(t, dir, "add", "-A")
	do(t, dir, "commit", "-q", "-m", "small files")
	for i := range 1_001 {
		require.NoError(t, os.Truncate(filepath.Join(dir, fmt.Sprintf("f%04d", i)), repo.MaxPatched+1))
	}
	// Git looks for what its index says of a file; other sizes are enough.
	_, err := open(t, newGit(t), dir).Large(t.Context())
	require.Equal(t, box.ClassExhausted, box.ClassOf(err), "%v", err)
}

// TestAPatchOfManyFilesTakesLittleMemory: git holds all of a patch that it is given.
func TestAPatchOfManyFilesTakesLittleMemory(t *testing.T) {
	t.Parallel()
	dir := newRepo(t)
	random := rand.NewChaCha8([32]byte{5})
	for i := range 8 {
		content := make([]byte, 5<<20) // which nothing makes smaller
		_, _ = random.Read(content)
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), content, 0o644))
	}
	do(t, dir, "-c", "core.compression=0", "add", "-A")
	git := gitWithin(t, 48)
	var staged bytes.Buffer
	require.NoError(t, open(t, git, dir).Patch(t.Context(), &staged, true, nil))
	require.Greater(t, staged.Len(), 48<<20)

	other, index := newRepo(t), filepath.Join(t.TempDir(), "index")
	head := do(t, other, "rev-parse", "HEAD")
	require.NoError(t, git.ReadIndex(t.Context(), filepath.Join(other, ".git"), index, head, bytes.NewReader(staged.Bytes())))
	want := do(t, dir, "ls-files", "-s")
	require.NoError(t, os.Rename(index, filepath.Join(other, ".git/index")))
	require.Equal(t, want, do(t, other, "ls-files", "-s"))

	// One that does not fit leaves what was committed, also of what did.
	broken := append(bytes.Clone(staged.Bytes()), "diff --git a/none b/none\n--- a/none\n+++ b/none\n@@ -1 +1 @@\n-x\n+y\n"...)
	require.Error(t, git.ReadIndex(t.Context(), filepath.Join(other, ".git"), index, head, bytes.NewReader(broken)))
	require.NoError(t, os.Rename(index, filepath.Join(other, ".git/index")))
	require.Empty(t, do(t, other, "diff", "--cached"))
}

// TestGitIsEndedFirst: when the memory of a box is used up, the kernel ends git
// rather than somebody's agent-server.
func TestGitIsEndedFirst(t *testing.T) {
	t.Parallel()
	dir := newRepo(t)
	said := filepath.Join(t.TempDir(), "score")
	real, err := exec.LookPath("git")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "git")
	// Whoever starts it needs a moment to say so.
	script := fmt.Sprintf("#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9 10; do read s </proc/self/oom_score_adj; [ $s = 1000 ] && break; sleep 0.2; done\necho $s >%s\nexec %s \"$@\"\n", said, real)
	require.NoError(t, os.WriteFile(program, []byte(script), 0o700))
	git, err := repo.New(repo.Options{Program: program})
	require.NoError(t, err)
	open(t, git, dir)
	text, err := os.ReadFile(said)
	require.NoError(t, err)
	require.Equal(t, "1000\n", string(text))
}
