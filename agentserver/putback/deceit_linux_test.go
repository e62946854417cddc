package putback_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// aBundle is a bundle of a repository with one commit.
func aBundle(t *testing.T) (bundle, head string) {
	t.Helper()
	dir := t.TempDir()
	agentservertest.Git(t, dir, "init", "-q", "-b", "main")
	head = agentservertest.Commit(t, dir, "first\n")
	agentservertest.Git(t, dir, "bundle", "create", "-q", "x.bundle", "--all")
	text, err := os.ReadFile(filepath.Join(dir, "x.bundle"))
	require.NoError(t, err)
	return string(text), head
}

// What a manifest says a repository is at becomes an argument of git.
func TestAHeadThatIsAnOptionIsNotGivenToGit(t *testing.T) {
	t.Parallel()
	text, _ := aBundle(t)
	root := freshBox(t)
	victim := filepath.Join(root, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	b := bent{
		entries: []tar.Header{aDir("workspace"), aDir("workspace/p"), aFile("workspace/p/a")},
		streams: map[string]string{"0001/bundle": text}, order: []string{"0001/bundle"},
		manifest: func(m *box.Manifest) {
			m.Repositories = []box.ManifestRepository{{
				Path: "workspace/p", Kind: box.RepositoryClone, Branch: "main", Head: "--index-output=" + victim, References: 1,
				Bundle: box.ManifestPart{Name: "repositories/0001/bundle", Parts: 1, Bytes: int64(len(text)), SHA256: sumOf([]byte(text))},
			}}
		},
	}
	plain := b.tar(t)
	_, _, err := taking(t, root).Restore(t.Context(), sumOf(plain), int64(len(plain)), bytes.NewReader(plain))
	now, readErr := os.ReadFile(victim)
	require.NoError(t, readErr)
	require.Equal(t, "precious", string(now))
	require.Equal(t, box.ClassUnknown, box.ClassOf(err), err)
}
