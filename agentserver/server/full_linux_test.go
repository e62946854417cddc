package server_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/box"
)

// small mounts a filesystem of its own of 2 MiB.
func small(t *testing.T) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	if err := unix.Mount("none", root, "tmpfs", 0, "size=2m"); err != nil {
		t.Skip("needs a filesystem to fill: mounting one: " + err.Error())
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	return root
}

// fill writes until there is no room left.
func fill(t *testing.T, root string) (empty func()) {
	t.Helper()
	place := filepath.Join(root, "full")
	file, err := os.Create(place)
	require.NoError(t, err)
	_, err = io.Copy(file, neverEnding{})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, file.Close())
	return func() { require.NoError(t, os.Remove(place)) }
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) { return len(p), nil }

// Scenario 105: a full disk takes a rule from what is set aside for it, or
// refuses it whole, and a conversation is held and archived all the same.
func TestScenario105RetentionOnAFullDisk(t *testing.T) {
	t.Parallel()
	k := &kept{root: small(t)}
	for _, dir := range []string{"conversations", "workspace/app", "persistence", "run/retention"} {
		require.NoError(t, os.MkdirAll(filepath.Join(k.root, dir), 0o700))
	}
	r, err := reclaim.Open(k.root, reclaim.Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	real := httptest.NewServer(http.HandlerFunc(k.play))
	t.Cleanup(real.Close)
	k.up = &behind{}
	k.up.base, err = k.up.base.Parse(real.URL)
	require.NoError(t, err)
	k.rules = retention.NewRules(k.root, r.WriteFile)
	layout := sharedworkspace.New(k.root, r.WriteFile, sharedworkspace.Options{})
	opts := retention.Options{Layouts: []reclaim.Layout{layout}, Unsaved: func(context.Context, string) (string, error) { return "", nil }}
	web := httptest.NewServer(server.New(server.Options{
		Root: k.root, Key: key, Reclaim: r, Upstream: k.up,
		Keeping: &server.Keeping{Rules: k.rules, Keeper: retention.New(k.root, k.rules, opts)},
	}))
	t.Cleanup(web.Close)
	_, err = agentservertest.WriteConversation(filepath.Join(k.root, "conversations"), agentservertest.Conversation{
		ID: liveID, WorkingDir: filepath.Join(k.root, "workspace/app"),
	})
	require.NoError(t, err)
	at := web.URL + "/api/conversations/" + liveID + "/retention"
	before := box.Retention{Mode: box.RetentionDays, Days: 7}
	require.NoError(t, k.rules.Set(liveID, before))

	empty := fill(t, k.root)
	status, text, _ := ask(t, http.MethodPut, at, `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusOK, status, "from what is set aside: %s", text)
	status, text, _ = ask(t, http.MethodDelete, web.URL+"/api/conversations/"+liveID+"/runtime", "")
	require.Equal(t, http.StatusNoContent, status, text)
	await(t, "the marker", func() bool {
		_, err := os.Lstat(filepath.Join(k.root, "persistence/runtime-control", liveID+".archived.json"))
		return err == nil
	})
	require.NoError(t, os.Remove(filepath.Join(k.root, "persistence/runtime-control", liveID+".archived.json")))

	// And with nothing set aside any more.
	_ = os.Remove(filepath.Join(k.root, "run/reserve")) // it was given up
	more, err := os.OpenFile(filepath.Join(k.root, "full"), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = io.Copy(more, neverEnding{})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, more.Close())
	status, text, _ = ask(t, http.MethodPut, at, `{"mode":"days","days":3}`)
	require.Equal(t, http.StatusInsufficientStorage, status, text)
	require.Contains(t, text, "free room first")
	rule, _, err := k.rules.Of(liveID)
	require.NoError(t, err)
	require.Equal(t, box.Retention{Mode: box.RetentionOnStop}, rule, "nothing changed")
	k.requests()
	status, text, _ = ask(t, http.MethodPost, web.URL+"/api/conversations", `{"retention":{"mode":"on_stop"}}`)
	require.Equal(t, http.StatusInsufficientStorage, status, text)
	require.Empty(t, k.requests(), "no conversation is made whose rule is lost")
	left, err := filepath.Glob(filepath.Join(k.root, "run/retention/*"))
	require.NoError(t, err)
	require.Len(t, left, 1, "no drafts: %s", strings.Join(left, " "))
	release, busy, err := layout.Hold(t.Context(), liveID)
	require.NoError(t, err)
	require.Empty(t, busy, "holding needs no room")
	release()

	empty()
	status, text, _ = ask(t, http.MethodPut, at, `{"mode":"days","days":3}`)
	require.Equal(t, http.StatusOK, status, text)
}
