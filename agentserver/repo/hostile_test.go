package repo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile is one way in which a repository names a program. prepare plants it;
// program is a script that leaves a mark. show is a plain command that runs it.
type hostile struct {
	name    string
	prepare func(t *testing.T, dir, program string)
	show    []string
	// input is what show gets to read.
	input string
	// linked uses a worktree instead of the main checkout.
	linked bool
	// broken says that our answers may be errors; else all must be right.
	broken bool
}

func config(pairs ...string) func(t *testing.T, dir, program string) {
	return func(t *testing.T, dir, program string) {
		t.Helper()
		for i := 0; i < len(pairs); i += 2 {
			do(t, dir, "config", pairs[i], strings.ReplaceAll(pairs[i+1], "PROGRAM", program))
		}
	}
}

// touched gives a tracked file the attribute and makes git look at its content.
func touched(attribute string, pairs ...string) func(t *testing.T, dir, program string) {
	return func(t *testing.T, dir, program string) {
		t.Helper()
		write(t, filepath.Join(dir, ".git-attributes-source"), "")
		attributes := filepath.Join(dir, ".gitattributes")
		write(t, attributes, "*.txt "+attribute+"\n")
		do(t, dir, "add", "-A")
		do(t, dir, "commit", "-q", "-m", "attributes")
		write(t, filepath.Join(dir, "a.txt"), "eno\n") // as long as before
		config(pairs...)(t, dir, program)
	}
}

func hook(name string) func(t *testing.T, dir, program string) {
	return func(t *testing.T, dir, program string) {
		t.Helper()
		common := do(t, dir, "rev-parse", "--git-common-dir")
		if !filepath.IsAbs(common) {
			common = filepath.Join(dir, common)
		}
		text, err := os.ReadFile(program)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(common, "hooks"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(common, "hooks", name), text, 0o755))
		write(t, filepath.Join(dir, "a.txt"), "eno\n")
	}
}

var hostiles = []hostile{
	{name: "core.fsmonitor", prepare: config("core.fsmonitor", "PROGRAM"), show: []string{"status"}},
	{name: "core.fsmonitor in a worktree", prepare: config("core.fsmonitor", "PROGRAM"), show: []string{"status"}, linked: true},
	{name: "filter.clean", prepare: touched("filter=evil", "filter.evil.clean", "PROGRAM"), show: []string{"status"}},
	{name: "filter.clean that is required", prepare: touched("filter=evil", "filter.evil.clean", "PROGRAM", "filter.evil.required", "true"), show: []string{"status"}},
	{name: "filter.clean with a name of its own making", prepare: touched("filter=evil", "filter.evil.clean", "PROGRAM"), show: []string{"diff"}},
	{name: "filter.process", prepare: touched("filter=evil", "filter.evil.process", "PROGRAM"), show: []string{"status"}},
	{name: "filter.smudge", prepare: touched("filter=evil", "filter.evil.smudge", "PROGRAM"), show: []string{"checkout", "--", "sub/b.txt", "a.txt"}},
	{name: "filter.clean in a worktree that is removed", prepare: touched("filter=evil", "filter.evil.clean", "PROGRAM"), show: []string{"worktree", "remove", "."}, linked: true},
	{name: "textconv", prepare: touched("diff=evil", "diff.evil.textconv", "PROGRAM"), show: []string{"diff"}},
	{name: "diff driver", prepare: touched("diff=evil", "diff.evil.command", "PROGRAM"), show: []string{"diff"}},
	{name: "diff.external", prepare: touched("text", "diff.external", "PROGRAM"), show: []string{"diff"}},
	{name: "post-index-change hook", prepare: hook("post-index-change"), show: []string{"update-index", "--refresh", "--really-refresh"}},
	{name: "reference-transaction hook", prepare: hook("reference-transaction"), show: []string{"update-ref", "refs/x", "HEAD"}},
	{name: "reference-transaction hook in a worktree", prepare: hook("reference-transaction"), show: []string{"update-ref", "refs/x", "HEAD"}, linked: true},
	{name: "core.hooksPath", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		hooks := filepath.Join(filepath.Dir(program), "hooks")
		require.NoError(t, os.MkdirAll(hooks, 0o755))
		require.NoError(t, os.Symlink(program, filepath.Join(hooks, "reference-transaction")))
		config("core.hooksPath", hooks)(t, dir, program)
	}, show: []string{"update-ref", "refs/x", "HEAD"}},
	{name: "alias", prepare: config("alias.ls-filez", "!PROGRAM"), show: []string{"ls-filez"}},
	{name: "core.alternateRefsCommand", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		other := filepath.Join(filepath.Dir(program), "other")
		do(t, dir, "clone", "-q", "--bare", dir, other)
		write(t, filepath.Join(dir, ".git/objects/info/alternates"), filepath.Join(other, "objects")+"\n")
		config("core.alternateRefsCommand", "PROGRAM")(t, dir, program)
	}, show: []string{"rev-list", "--alternate-refs"}},
	{name: "core.sshCommand", prepare: config("core.sshCommand", "PROGRAM", "remote.origin.url", "ssh://example.invalid/x"), show: []string{"fetch", "origin"}},
	{name: "ext transport", prepare: config("protocol.ext.allow", "always", "remote.origin.url", "ext::PROGRAM"), show: []string{"fetch", "origin"}},
	{name: "remote.uploadpack", prepare: config("remote.origin.url", "/", "remote.origin.uploadpack", "PROGRAM"), show: []string{"fetch", "origin"}},
	{name: "credential helper", prepare: config("credential.helper", "!PROGRAM", "remote.origin.url", "https://example.invalid/x"), show: []string{"credential", "fill"}, input: "protocol=https\nhost=example.invalid\n\n"},
	{name: "gpg program", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		body := do(t, dir, "cat-file", "commit", "HEAD")
		head, message, _ := strings.Cut(body, "\n\n")
		signed := filepath.Join(filepath.Dir(program), "commit")
		write(t, signed, head+"\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n eA==\n -----END PGP SIGNATURE-----\n\n"+message+"\n")
		id := do(t, dir, "hash-object", "-t", "commit", "-w", signed)
		do(t, dir, "reset", "-q", "--hard", id)
		config("gpg.program", "PROGRAM", "log.showSignature", "true")(t, dir, program)
		write(t, filepath.Join(dir, "a.txt"), "stash\n")
		do(t, dir, "stash")
	}, show: []string{"log", "-1"}},
	{name: "an include", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		write(t, filepath.Join(dir, ".git/more"), "[core]\n\tfsmonitor = "+program+"\n")
		config("include.path", "more")(t, dir, program)
	}, show: []string{"status"}},
	{name: "an include on a condition", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		write(t, filepath.Join(dir, ".git/more"), "[core]\n\tfsmonitor = "+program+"\n")
		config("includeIf.onbranch:main.path", "more")(t, dir, program)
	}, show: []string{"status"}},
	{name: "the user's own configuration", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		do(t, dir, "config", "--global", "core.fsmonitor", program)
	}, show: []string{"status"}},
	{name: "a worktree's own configuration", prepare: config("extensions.worktreeConfig", "true", "core.fsmonitor", "PROGRAM"), show: []string{"status"}, linked: true},
	{name: "a submodule's configuration", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		inner := filepath.Join(dir, "inner")
		do(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", dir, "inner")
		do(t, dir, "commit", "-q", "-m", "with a submodule")
		do(t, inner, "config", "core.fsmonitor", program)
	}, show: []string{"status"}},
	{name: "a submodule's filter", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		inner := filepath.Join(dir, "inner")
		do(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", dir, "inner")
		do(t, dir, "commit", "-q", "-m", "with a submodule")
		touched("filter=evil", "filter.evil.clean", "PROGRAM")(t, inner, program)
	}, show: []string{"status"}},
	{name: "an object that only a promisor has", prepare: func(t *testing.T, dir, program string) {
		t.Helper()

		config("core.repositoryformatversion", "1", "extensions.partialClone", "origin", "remote.origin.promisor", "true",
			"remote.origin.url", "ssh://example.invalid/x", "core.sshCommand", "PROGRAM")(t, dir, program)
		blob := do(t, dir, "rev-parse", "HEAD:a.txt")
		require.NoError(t, os.Remove(filepath.Join(dir, ".git/objects", blob[:2], blob[2:])))
		write(t, filepath.Join(dir, "a.txt"), "eno\n")
	}, show: []string{"diff"}, broken: true},
}

// Nothing that a repository says is executed, by any question or change. Each row
// first shows that its program runs under plain git.
func TestNothingThatARepositorySaysIsExecuted(t *testing.T) {
	t.Parallel()
	for _, row := range hostiles {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := newRepo(t)
			if row.linked {
				linked := filepath.Join(filepath.Dir(dir), "linked")
				do(t, dir, "worktree", "add", "-q", "-b", "side", linked)
				dir = linked
			}
			tools := t.TempDir()
			mark := filepath.Join(tools, "ran")
			program := filepath.Join(tools, "program")
			require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho \"$0 $*\" >> "+mark+"\nexit 1\n"), 0o755))
			row.prepare(t, dir, program)
			_ = os.Remove(mark)

			out, _ := plainWith(t, dir, row.input, row.show...)
			require.FileExists(t, mark, "plain git runs it; it said: %s", out)
			require.NoError(t, os.Remove(mark))

			err := ours(t, newGit(t), dir)
			text, _ := os.ReadFile(mark)
			require.NoFileExists(t, mark, "ours does not: %s", text)
			if row.broken {
				require.Error(t, err, "what cannot be known is said to be unknown")
				return
			}
			require.NoError(t, err, "and it answers all the same")
		})
	}
}

// What the environment of boxd says is not for git either.
func TestVariablesOfGitAreNotPassedOn(t *testing.T) {
	dir := newRepo(t)
	tools := t.TempDir()
	mark := filepath.Join(tools, "ran")
	program := filepath.Join(tools, "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho x >> "+mark+"\nexit 1\n"), 0o755))
	write(t, filepath.Join(dir, "a.txt"), "eno\n")
	t.Setenv("GIT_EXTERNAL_DIFF", program)
	trace := filepath.Join(tools, "trace")
	t.Setenv("GIT_TRACE", trace)
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
	t.Setenv("GIT_CONFIG_VALUE_0", program)
	cmd := exec.CommandContext(t.Context(), "git", "diff")
	cmd.Dir = dir
	_ = cmd.Run()
	require.FileExists(t, mark, "plain git runs it")
	require.NoError(t, os.Remove(mark))
	require.NoError(t, os.Remove(trace))
	require.NoError(t, ours(t, newGit(t), dir))
	require.NoFileExists(t, mark)
	require.NoFileExists(t, trace, "the helpers of this test do not pass it on either")
}
