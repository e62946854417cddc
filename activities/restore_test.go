package activities_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

func lay(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
}

// lostWithWork is lostWith for a box in which somebody worked and pushed nothing.
func lostWithWork(t *testing.T) (old, next *rig, receipt box.Receipt) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("a workspace is exported and put back on Linux only")
	}
	old = newRig(t, nil)
	target := old.made("e1-s2")
	old.write(agentservertest.Conversation{Events: events(3)})
	project := filepath.Join(old.server.Root, "workspace/project")
	lay(t, filepath.Join(project, "a.txt"), "one")
	agentservertest.Git(t, project, "init", "-q", "-b", "main")
	agentservertest.Git(t, project, "add", "a.txt")
	agentservertest.Git(t, project, "commit", "-q", "-m", "one")
	lay(t, filepath.Join(project, "a.txt"), "in the stash")
	agentservertest.Git(t, project, "stash")
	agentservertest.Git(t, project, "checkout", "-q", "--detach")
	lay(t, filepath.Join(project, "a.txt"), "on no branch")
	agentservertest.Git(t, project, "commit", "-q", "-am", "on no branch")
	lay(t, filepath.Join(project, "b.txt"), "staged")
	agentservertest.Git(t, project, "add", "b.txt")
	lay(t, filepath.Join(project, "c.txt"), "untracked")
	receipt = do(old, old.boxes.Export, activities.ExportInput{Target: target}).Receipt
	require.True(t, receipt.Archive.Held())
	old.cloud.Vanish(name)
	next = newRig(t, nil)
	next.boxes.Store, next.store = old.store, old.store
	return old, next, receipt
}

func unsaved(t *testing.T, r *rig) string {
	t.Helper()
	c, err := agentserver.New(agentserver.Options{URL: r.server.URL})
	require.NoError(t, err)
	defer c.Close()
	out, err := c.Unsaved(t.Context())
	require.NoError(t, err)
	text, err := json.MarshalIndent(out, "", " ")
	require.NoError(t, err)
	return string(text)
}

func TestScenario80ALostBoxComesBackWithItsWork(t *testing.T) {
	t.Parallel()
	old, r, receipt := lostWithWork(t)
	target := successor(r, receipt)
	in := activities.RestoreInput{Target: target, Receipt: receipt}
	want := unsaved(t, old)
	for range 2 { // the answer of the first was lost
		out := do(r, r.boxes.Restore, in)
		require.Equal(t, receipt.Digest, out.Use.Digest)
		require.Empty(t, out.Notes)
		require.Equal(t, want, unsaved(t, r))
	}
	project := filepath.Join(r.server.Root, "workspace/project")
	require.Equal(t, "A  b.txt\n?? c.txt", agentservertest.Git(t, project, "status", "--porcelain"))
	require.Contains(t, agentservertest.Git(t, project, "stash", "show", "-p"), "+in the stash")
	again := do(r, r.boxes.Export, activities.ExportInput{Target: target, Previous: receipt}).Receipt
	require.Equal(t, receipt.Archive.Files, again.Archive.Files)
	require.Zero(t, again.Archive.Missing)
}

func TestWhatIsNotToldOfARestoreIsCounted(t *testing.T) {
	t.Parallel()
	old := newRig(t, nil)
	target := old.made("e1-s2")
	project := filepath.Join(old.server.Root, "workspace/project")
	lay(t, filepath.Join(project, "a.txt"), "one")
	agentservertest.Git(t, project, "init", "-q", "-b", "main")
	// Each is one that git should not be given, and a note.
	var remotes strings.Builder
	for i := range 130 {
		fmt.Fprintf(&remotes, "[remote \"r%03d\"]\n\turl = ext::sh\n", i)
	}
	lay(t, filepath.Join(project, ".git/config"), "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"+remotes.String())
	receipt := do(old, old.boxes.Export, activities.ExportInput{Target: target}).Receipt
	old.cloud.Vanish(name)
	r := newRig(t, nil)
	r.boxes.Store, r.store = old.store, old.store
	out := do(r, r.boxes.Restore, activities.RestoreInput{Target: successor(r, receipt), Receipt: receipt})
	require.Len(t, out.Notes, 5)
	require.Equal(t, 125, out.MoreNotes)
}

// A worker that is killed, or told to stop, in the middle leaves an empty
// workspace; the next one carries on.
func TestARestoreThatEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	old, r, receipt := lostWithWork(t)
	in := activities.RestoreInput{Target: successor(r, receipt), Receipt: receipt}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := run(ctx, r, r.boxes.Restore, in)
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(r.server.Root, "workspace/project/a.txt"))
	do(r, r.boxes.Restore, in)
	require.Equal(t, unsaved(t, old), unsaved(t, r))
}

func TestAWorkspaceIsNotPutOverWork(t *testing.T) {
	t.Parallel()
	_, r, receipt := lostWithWork(t)
	in := activities.RestoreInput{Target: successor(r, receipt), Receipt: receipt}
	lay(t, filepath.Join(r.server.Root, "workspace/theirs"), "theirs")
	failure := fails(r, box.ClassFailedPrecondition, r.boxes.Restore, in)
	require.Contains(t, failure.Message, "workspace/theirs")
	require.NotContains(t, r.ledger(), "restored/e2-s2-restored")
	_, err := r.store.Verify(t.Context(), workspace, receipt)
	require.NoError(t, err, "the export is as it was")
}
