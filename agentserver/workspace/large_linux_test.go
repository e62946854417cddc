package workspace_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/repo"
)

// TestALargeChangeIsInTheTree: no patch has it, and what only the index has of it
// is said to be missing.
func TestALargeChangeIsInTheTree(t *testing.T) {
	t.Parallel()
	root, clone := agentservertest.ClonedBox(t)
	lay := func(name, begin string) {
		write(t, filepath.Join(clone, name), begin)
		require.NoError(t, os.Truncate(filepath.Join(clone, name), repo.MaxPatched+1))
	}
	lay("model.bin", "one")
	agentservertest.Git(t, clone, "add", "model.bin")
	agentservertest.Git(t, clone, "commit", "-q", "-m", "a large file")
	lay("model.bin", "two")
	lay("new.bin", "new")
	write(t, filepath.Join(clone, "small.txt"), "small")
	agentservertest.Git(t, clone, "add", "new.bin", "small.txt")

	archive, manifest := export(t, root)
	require.Zero(t, manifest.Missing, "%q", manifest.Incomplete)
	one := manifest.Repositories[0]
	require.Equal(t, 1, one.StagedLarge)
	require.Zero(t, one.Unstaged.Parts)
	dir := unpack(t, archive)
	tree := restore(t, dir, manifest, one)
	require.Equal(t, "M model.bin\nA  small.txt\n?? new.bin", agentservertest.Git(t, tree, "status", "--porcelain"))
	require.Equal(t, "two", content(t, filepath.Join(tree, "model.bin"))[:3])

	lay("new.bin", "changed again")
	_, manifest = export(t, root)
	require.Equal(t, int64(1), manifest.Missing)
	require.Contains(t, manifest.Incomplete[0], `workspace/project: what is staged of "new.bin"`)
}

func content(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
