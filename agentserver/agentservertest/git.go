package agentservertest

import (
	"os"
	"os/exec"
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
