package repo_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// bundleOf is a bundle of a repository with two branches, and its first commit.
func bundleOf(t *testing.T) (bundle []byte, first string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	require.NoError(t, os.Mkdir(dir, 0o755))
	do(t, dir, "init", "-q", "-b", "main")
	for _, text := range []string{"one", "two"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte(text), 0o600))
		do(t, dir, "add", "a.txt")
		do(t, dir, "commit", "-q", "-m", text)
	}
	do(t, dir, "branch", "side", "main~1")
	r, err := newGit(t).Open(t.Context(), dir)
	require.NoError(t, err)
	defer r.Close()
	refs, err := r.Refs(t.Context())
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, r.Bundle(t.Context(), &out, refs))
	return out.Bytes(), do(t, dir, "rev-parse", "side")
}

func TestABundleBecomesARepository(t *testing.T) {
	t.Parallel()
	bundle, first := bundleOf(t)
	dir := filepath.Join(t.TempDir(), "git")
	refs, err := newGit(t).Unbundle(t.Context(), dir, bytes.NewReader(bundle))
	require.NoError(t, err)
	require.Len(t, refs, 2)
	left, err := newGit(t).Settle(t.Context(), dir, repo.Settled{Head: repo.Head{ID: first}, Refs: refs})
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, first, do(t, dir, "rev-parse", "HEAD"))
	do(t, dir, "fsck", "--strict")
	_, err = newGit(t).Unbundle(t.Context(), dir, bytes.NewReader(bundle))
	require.Error(t, err, "what is there is not written over")
}

// A row bends a bundle whose objects are right.
func TestABentBundleIsNotTaken(t *testing.T) {
	t.Parallel()
	bundle, first := bundleOf(t)
	head, pack, ok := bytes.Cut(bundle, []byte("\n\n"))
	require.True(t, ok)
	named := func(name string) []byte {
		return append(append(append(bytes.Clone(head), "\n"+first+" "+name...), "\n\n"...), pack...)
	}
	g := newGit(t)
	_, err := g.Unbundle(t.Context(), filepath.Join(t.TempDir(), "git"), bytes.NewReader(named("refs/heads/another")))
	require.NoError(t, err, "what the rows are made of is right")
	rows := map[string][]byte{
		"nothing":                     nil,
		"another version":             bytes.Replace(bundle, []byte("# v2"), []byte("# v9"), 1),
		"an unknown extension":        bytes.Replace(bundle, []byte("# v2 git bundle\n"), []byte("# v3 git bundle\n@filter=blob:none\n"), 1),
		"it needs others":             bytes.Replace(bundle, []byte("# v2 git bundle\n"), []byte("# v2 git bundle\n-"+first+" one\n"), 1),
		"an object that is not in it": bytes.Replace(bundle, []byte(first), []byte(strings.Repeat("a", 40)), 1),
		"a pack that is cut off":      bundle[:len(bundle)-30],
		"a pack that is altered":      append(bytes.Clone(bundle[:len(bundle)-40]), append([]byte{bundle[len(bundle)-40] ^ 1}, bundle[len(bundle)-39:]...)...),
		"no end of its head":          head,
	}
	for _, name := range []string{
		"refs/../../hooks/x", "refs/heads/../../x", "/etc/passwd", "heads/x", "refs/", "refs", "refs//x", "refs/heads/.x", "refs/heads/x.lock", "refs/heads/x.",
		"refs/heads/x@{y", "refs/heads/a b", "refs/heads/a:b", "refs/heads/a\\b", "refs/heads/a\x00b", "refs/heads/a*", "config",
	} {
		rows["a reference "+name] = named(name)
	}
	for what, bent := range rows {
		_, err := g.Unbundle(t.Context(), filepath.Join(t.TempDir(), "git"), bytes.NewReader(bent))
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%s: %v", what, err)
	}
}
