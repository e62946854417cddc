package exports_test

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

// TestScenario97OrdinaryLinksAndOddEntriesAreNoFault exports what package
// managers leave in a workspace, links of both kinds, and what cannot be kept:
// that is noted with its reason, and the export is whole all the same.
func TestScenario97OrdinaryLinksAndOddEntriesAreNoFault(t *testing.T) {
	t.Parallel()
	server, err := agentservertest.Start(agentservertest.Options{Root: filepath.Join(t.TempDir(), "box")})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	work := filepath.Join(server.Root, "workspace")
	lay(t, filepath.Join(work, "node_modules/tool/cli.js"), "#!/usr/bin/env node\n")
	lay(t, filepath.Join(work, "venv/lib/a.py"), "import b\n")
	lay(t, filepath.Join(work, "venv/cache/x"), "a wheel\n")
	require.NoError(t, os.MkdirAll(filepath.Join(work, "node_modules/.bin"), 0o755))
	for link, target := range map[string]string{
		"node_modules/.bin/tool": "../tool/cli.js", "venv/python": "/usr/bin/python3", "dangling": "nowhere", "loop": "loop",
		"out": "../../..", "everything": ".",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(work, link)))
	}
	require.NoError(t, os.Link(filepath.Join(work, "venv/cache/x"), filepath.Join(work, "venv/lib/wheel")))
	require.NoError(t, os.Link(filepath.Join(work, "venv/cache/x"), filepath.Join(work, "venv/lib/wheel-2")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(work, "pipe"), 0o600))
	require.NoError(t, syscall.Mknod(filepath.Join(work, "socket"), syscall.S_IFSOCK|0o600, 0))

	client, err := agentserver.New(agentserver.Options{URL: server.URL})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s, _ := directoryStore(t)
	receipt, err := s.Export(t.Context(), request("a"), agentserver.History{Client: client}, nil)
	require.NoError(t, err)
	require.Zero(t, receipt.Archive.Missing, "nothing that cannot be made again is missing")
	report, err := s.Verify(t.Context(), "ws", receipt)
	require.NoError(t, err)
	require.EqualValues(t, 2, report.Archive.LeftOut)
	r, err := s.Workspace(t.Context(), "ws", receipt)
	require.NoError(t, err)
	kind := func(name string) (of, target, why string) {
		t.Helper()
		e, err := r.Find(t.Context(), "files/workspace/"+name)
		require.NoError(t, err)
		return e.Type, e.Target, e.Why
	}
	for link, target := range map[string]string{
		"node_modules/.bin/tool": "../tool/cli.js", "venv/python": "/usr/bin/python3", "dangling": "nowhere", "loop": "loop",
		"out": "../../..", "everything": ".",
	} {
		of, to, _ := kind(link)
		require.Equal(t, "link", of, link)
		require.Equal(t, target, to, link)
	}
	for _, name := range []string{"venv/lib/wheel", "venv/lib/wheel-2"} {
		of, to, _ := kind(name)
		require.Equal(t, "hardlink", of)
		require.Equal(t, "workspace/venv/cache/x", to)
		f, err := r.Open(t.Context(), "files/workspace/"+name)
		require.NoError(t, err)
		content, err := io.ReadAll(f)
		require.NoError(t, err)
		require.Equal(t, "a wheel\n", string(content))
	}
	for _, name := range []string{"pipe", "socket"} {
		of, _, why := kind(name)
		require.Equal(t, "left-out", of)
		require.NotEmpty(t, why)
	}
}
