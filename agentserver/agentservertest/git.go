package agentservertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Git runs git in a directory, where no configuration but the repository's counts,
// and returns what it says without the space around. Its failure is the test's.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := TryGit(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// TryGit is Git where it may fail.
func TryGit(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_EDITOR=true", //nolint:forbidigo // for a process of the test itself
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.invalid", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.invalid",
		"GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z", // the same commits have the same ids
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Commit writes a.txt and commits it, and returns the commit.
func Commit(t testing.TB, dir, content string) string {
	t.Helper()
	put(t, filepath.Join(dir, "a.txt"), content)
	Git(t, dir, "add", "a.txt")
	Git(t, dir, "commit", "-q", "-m", content)
	return Git(t, dir, "rev-parse", "HEAD")
}

// ClonedBox is the directory of a box with a clone at workspace/project, whose
// remote has all of it. The clone ignores .env, node_modules and nested.
func ClonedBox(t testing.TB) (root, clone string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "box")
	remote := filepath.Join(t.TempDir(), "remote")
	clone = filepath.Join(root, "workspace/project")
	put(t, filepath.Join(remote, ".gitignore"), ".env\nnode_modules/\nnested/\n")
	Git(t, remote, "init", "-q", "-b", "main")
	Git(t, remote, "add", ".gitignore")
	Commit(t, remote, "first\n")
	if err := os.MkdirAll(filepath.Dir(clone), 0o755); err != nil {
		t.Fatal(err)
	}
	Git(t, root, "clone", "-q", remote, clone)
	return root, clone
}

func put(t testing.TB, file, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(content), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
