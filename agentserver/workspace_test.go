package agentserver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// withWork is a box with one plain file in its workspace, or a skip where no
// system call keeps a look inside it.
func withWork(t *testing.T) (*agentservertest.Server, *agentserver.Client) {
	t.Helper()
	fake, c := start(t, agentservertest.Options{})
	info, err := c.Info(t.Context())
	require.NoError(t, err)
	if !info.Has(agentserver.CapabilityUnsaved) || !info.Has(agentserver.CapabilityExport) {
		t.Skip("this system cannot look into a workspace")
	}
	require.NoError(t, os.MkdirAll(filepath.Join(fake.Root, "workspace"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(fake.Root, "workspace/plan.md"), []byte("four"), 0o600))
	return fake, c
}

func TestUnsavedWorkIsToldAndNeverTakenOnTrust(t *testing.T) {
	t.Parallel()
	fake, c := withWork(t)
	got, err := c.Unsaved(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, got.PlainFiles)
	require.EqualValues(t, 4, got.PlainBytes)
	require.False(t, got.Clean)

	saved := box.UnsavedRepository{Path: "workspace/project", Kind: box.RepositoryClone}
	saved.Judge()
	require.True(t, saved.Saved)
	fake.Break(agentservertest.Faults{Unsaved: &box.Unsaved{Repositories: []box.UnsavedRepository{saved}, Clean: true}})
	got, err = c.Unsaved(t.Context())
	require.NoError(t, err)
	require.True(t, got.Clean)

	lie := saved
	lie.Unknown = "git did not answer"
	for name, answer := range map[string]box.Unsaved{
		"clean with a repository that is unknown": {Repositories: []box.UnsavedRepository{lie}, Clean: true},
		"clean with files outside":                {Repositories: []box.UnsavedRepository{saved}, PlainFiles: 1, Clean: true},
		"clean with something that was not seen":  {Repositories: []box.UnsavedRepository{}, Unknown: []string{"x"}, Clean: true},
		"no list":                                 {Clean: true},
	} {
		fake.Break(agentservertest.Faults{Unsaved: &answer})
		_, err = c.Unsaved(t.Context())
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), name)
	}
}

func TestAWorkspaceIsExportedAndVerified(t *testing.T) {
	t.Parallel()
	fake, c := withWork(t)
	manifest, err := verified(t.Context(), c)
	require.NoError(t, err)
	require.EqualValues(t, 1, manifest.Files)

	fake.Break(agentservertest.Faults{CutExport: true})
	_, err = verified(t.Context(), c)
	require.Equal(t, box.ClassUnknown, box.ClassOf(err))
	fake.Break(agentservertest.Faults{Page: true})
	_, err = verified(t.Context(), c)
	require.Equal(t, box.ClassUnknown, box.ClassOf(err))
}

// verified downloads the archive and reads all of it.
func verified(ctx context.Context, c *agentserver.Client) (box.Manifest, error) {
	body, err := c.DownloadWorkspace(ctx)
	if err != nil {
		return box.Manifest{}, err
	}
	defer body.Close()
	return agentserver.VerifyWorkspace(body)
}

func TestWithoutBoxdThereIsNoWorkspace(t *testing.T) {
	t.Parallel()
	_, c := start(t, agentservertest.Options{Plain: true})
	_, err := c.Unsaved(t.Context())
	require.Equal(t, box.ClassUnsupported, box.ClassOf(err))
	_, err = verified(t.Context(), c)
	require.Equal(t, box.ClassNotFound, box.ClassOf(err))
}

func TestLookingAtTheWorkspaceIsNotUse(t *testing.T) {
	t.Parallel()
	_, c := withWork(t)
	before, err := c.Use(t.Context())
	require.NoError(t, err)
	_, err = c.Unsaved(t.Context())
	require.NoError(t, err)
	_, err = verified(t.Context(), c)
	require.NoError(t, err)
	after, err := c.Use(t.Context())
	require.NoError(t, err)
	require.Greater(t, after.IdleFor, before.IdleFor)
	require.Equal(t, before.Digest, after.Digest)
}
