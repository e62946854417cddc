package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/box"
)

func TestStoppingARuntimeRemovesIt(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	k := &kept{root: root}
	for _, dir := range []string{"conversations", "workspace/app", "workspace/other", "persistence"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	var r *reclaim.Reclaimer
	write := func(name string, content []byte) error { return r.WriteFile(name, content) }
	layouts := []reclaim.Layout{sharedworkspace.New(root, write, sharedworkspace.Options{})}
	saved := func(context.Context, string) (string, error) { return "", nil }
	r, err = reclaim.Open(root, reclaim.Options{Layouts: layouts, Unsaved: saved})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	real := httptest.NewServer(http.HandlerFunc(k.play))
	t.Cleanup(real.Close)
	k.up = &behind{}
	k.up.base, err = k.up.base.Parse(real.URL)
	require.NoError(t, err)
	k.rules = retention.NewRules(root, r.WriteFile)
	opts := retention.Options{Layouts: layouts, Unsaved: saved, Take: func(ctx context.Context, id string) error {
		_, err := r.Do(ctx, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{id}})
		return err
	}}
	keeper := retention.New(root, k.rules, opts)
	web := httptest.NewServer(server.New(server.Options{
		Root: root, Key: key, Reclaim: r, Upstream: k.up,
		Keeping: &server.Keeping{Rules: k.rules, Keeper: keeper},
	}))
	t.Cleanup(web.Close)
	for id, dir := range map[string]string{liveID: "app", archivedID: "other"} {
		_, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{
			ID: id, WorkingDir: filepath.Join(root, "workspace", dir), Events: []agentservertest.Event{{Text: "hello", At: time.Now()}},
		})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(root, "workspace", dir, "x"), []byte("x"), 0o600))
	}
	status, _, _ := ask(t, http.MethodPut, web.URL+"/api/conversations/"+liveID+"/retention", `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusOK, status)
	status, _, _ = ask(t, http.MethodDelete, web.URL+"/api/conversations/"+liveID+"/runtime", "")
	require.Equal(t, http.StatusNoContent, status)
	await(t, "the runtime to go", func() bool { _, err := os.Lstat(filepath.Join(root, "workspace/app")); return err != nil })
	require.FileExists(t, filepath.Join(root, "workspace/other/x"))
	status, _, _ = ask(t, http.MethodPost, web.URL+"/api/conversations/"+liveID+"/run", "")
	require.Equal(t, http.StatusGone, status)
	var told box.StorageStatus
	get(t, web.URL+"/api/storage", &told)
	states := map[string]string{}
	for _, one := range told.Conversations {
		states[one.ID] = one.State
	}
	require.Equal(t, "archived", states[liveID])
	require.NotEqual(t, "archived", states[archivedID])
}
