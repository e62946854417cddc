package server_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// worked is a box with a repository that nobody pushed, and the tar of its
// workspace.
func worked(t *testing.T) (b *boxd, tar []byte, sum string) {
	t.Helper()
	needLinux(t)
	b = startBoxd(t, t.TempDir())
	project := filepath.Join(b.root, "workspace/project")
	require.NoError(t, os.MkdirAll(project, 0o755))
	agentservertest.Git(t, project, "init", "-q", "-b", "main")
	require.NoError(t, os.WriteFile(filepath.Join(project, "a.txt"), []byte("alpha"), 0o600))
	agentservertest.Git(t, project, "add", "a.txt")
	agentservertest.Git(t, project, "commit", "-q", "-m", "one")
	require.NoError(t, os.WriteFile(filepath.Join(project, "b.txt"), bytes.Repeat([]byte("beta"), 100_000), 0o600))
	agentservertest.Git(t, project, "add", "b.txt")
	body, err := connect(t, b.url).DownloadWorkspace(t.Context())
	require.NoError(t, err)
	defer body.Close()
	plain, err := workspacetar.Decompress(body)
	require.NoError(t, err)
	defer plain.Close()
	tar, err = io.ReadAll(plain)
	require.NoError(t, err)
	digest := sha256.Sum256(tar)
	return b, tar, hex.EncodeToString(digest[:])
}

func unsavedOf(t *testing.T, b *boxd) string {
	t.Helper()
	out, err := connect(t, b.url).Unsaved(t.Context())
	require.NoError(t, err)
	text, err := json.Marshal(out)
	require.NoError(t, err)
	return string(text)
}

func TestAWorkspaceGoesIntoANewBox(t *testing.T) {
	t.Parallel()
	old, tar, sum := worked(t)
	b := startBoxd(t, t.TempDir())
	c := connect(t, b.url)
	info, err := c.Info(t.Context())
	require.NoError(t, err)
	require.True(t, info.Has(agentserver.CapabilityWorkspaceRestore))

	for _, row := range []struct {
		method, path string
		keyless      bool
		status       int
		says         string
	}{
		{"PUT", "/api/boxd/workspace/" + sum, true, http.StatusUnauthorized, "Unauthorized"},
		{"POST", "/api/boxd/workspace/" + sum, false, http.StatusMethodNotAllowed, "Method Not Allowed"},
		{"GET", "/api/boxd/workspace/" + sum, true, http.StatusUnauthorized, "Unauthorized"},
		{"GET", "/api/boxd/workspace/" + sum, false, http.StatusNotFound, "not in the box"},
		{"GET", "/api/boxd/workspace/" + sum + "?bytes=-1", false, http.StatusUnprocessableEntity, "bytes"},
		{"GET", "/api/boxd/workspace/" + sum + "?bytes=1125899906842624", false, http.StatusInsufficientStorage, "are free"},
		{"PUT", "/api/boxd/workspace/nonsense", false, http.StatusUnprocessableEntity, "sha256"},
		{"PUT", "/api/boxd/workspace/" + sum, false, http.StatusUnprocessableEntity, "damaged or cut off"}, // without a body
	} {
		if row.keyless {
			answer, err := keyless(t, row.method, b.url+row.path, strings.NewReader("x"))
			require.NoError(t, err)
			answer.Body.Close()
			require.Equal(t, row.status, answer.StatusCode)
			continue
		}
		status, text, _ := ask(t, row.method, b.url+row.path, "")
		require.Equal(t, row.status, status, text)
		require.Contains(t, text, row.says)
	}

	harmed := bytes.Clone(tar)
	harmed[len(harmed)/2] ^= 1
	_, err = c.RestoreWorkspace(t.Context(), sum, bytes.NewReader(harmed), int64(len(harmed)))
	require.Equal(t, box.ClassInvalid, box.ClassOf(err), err)
	lost := box.Errorf(box.ClassUnknown, "chunk so-and-so is lost")
	_, err = c.RestoreWorkspace(t.Context(), sum, io.MultiReader(bytes.NewReader(tar[:len(tar)/2]), failing{lost}), int64(len(tar)))
	require.ErrorIs(t, err, lost, "what the store says is not hidden")
	_, err = c.RestoreWorkspace(t.Context(), sum, endless{}, 1<<50)
	require.Equal(t, box.ClassExhausted, box.ClassOf(err), err)
	list, err := os.ReadDir(filepath.Join(b.root, "workspace"))
	require.NoError(t, err)
	require.Empty(t, list)

	out, err := c.RestoreWorkspace(t.Context(), sum, bytes.NewReader(tar), int64(len(tar)))
	require.NoError(t, err)
	require.EqualValues(t, 2, out.Files)
	require.Equal(t, 1, out.Repositories)
	require.Empty(t, out.Notes)
	require.Equal(t, unsavedOf(t, old), unsavedOf(t, b))
	require.Equal(t, "A  b.txt", agentservertest.Git(t, filepath.Join(b.root, "workspace/project"), "status", "--porcelain"))
	// A lost answer: the same again, and what is sent is not read.
	again, err := c.RestoreWorkspace(t.Context(), sum, endless{}, 1<<50)
	require.NoError(t, err)
	require.Equal(t, out, again)
	_, err = c.RestoreWorkspace(t.Context(), strings.Repeat("0", 64), bytes.NewReader(tar), int64(len(tar)))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), err)
	require.Equal(t, unsavedOf(t, old), unsavedOf(t, b))
}

// endless can only be sent to somebody who does not read all of it.
type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A boxd that is killed at any part of the stream leaves an empty box, and the
// next one takes it in.
func TestABoxdThatIsKilledWhileItTakesAWorkspaceIn(t *testing.T) {
	t.Parallel()
	old, tar, sum := worked(t)
	root := t.TempDir()
	for _, part := range []int{0, len(tar) / 3, len(tar) * 2 / 3, len(tar) - 1} {
		b := startBoxd(t, root)
		killed := &pausing{data: tar, at: part, then: func() { _ = b.Process.Signal(syscall.SIGKILL) }}
		_, err := connect(t, b.url).RestoreWorkspace(t.Context(), sum, killed, int64(len(tar)))
		require.Error(t, err)
		<-b.ended
		b.ended <- nil // for its cleanup
		for _, dir := range []string{"workspace", "worktrees"} {
			list, err := os.ReadDir(filepath.Join(root, dir))
			require.NoError(t, err)
			require.Empty(t, list, "killed at %d of %d", part, len(tar))
		}
	}
	b := startBoxd(t, root)
	require.NoDirExists(t, filepath.Join(root, "run/restore/staging"), "its start clears what was cut off")
	_, err := connect(t, b.url).RestoreWorkspace(t.Context(), sum, bytes.NewReader(tar), int64(len(tar)))
	require.NoError(t, err)
	require.Equal(t, unsavedOf(t, old), unsavedOf(t, b))
}

// pausing calls then once, when so much was read.
type pausing struct {
	data []byte
	at   int
	then func()
}

func (p *pausing) Read(to []byte) (int, error) {
	if p.at == 0 {
		p.then()
		p.at = -1
	}
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := len(to)
	if p.at > 0 {
		n = min(n, p.at)
	}
	n = copy(to[:n], p.data)
	p.data = p.data[n:]
	if p.at > 0 {
		p.at -= n
	}
	return n, nil
}
