package digitaloceantest_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	dot "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

func TestCheckpoints(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{Saving: 27 * time.Second, AgentServer: echo})
	ctx := t.Context()
	id := running(t, s, c, "oh-one")
	type result struct {
		cp  *godo.HostedAgentCheckpoint
		err error
	}
	saved, begun := make(chan result), make(chan struct{})
	s.Inject(dot.Fault{Op: dot.OpCheckpoint, Then: func(*dot.Server) { close(begun) }})
	go func() {
		cp, _, err := c.HostedAgents.CreateCheckpoint(ctx, id, &godo.HostedAgentCheckpointCreateRequest{Label: "before"})
		saved <- result{cp, err}
	}()
	<-begun
	pending, _, err := c.HostedAgents.ListCheckpoints(ctx, id, nil)
	require.NoError(t, err)
	require.Len(t, pending.Checkpoints, 1)
	assert.EqualValues(t, "PENDING", pending.Checkpoints[0].Status)
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.DestroySession(ctx, id))), "held by the checkpoint")
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, id))))
	s.Advance(27 * time.Second)
	got := <-saved
	require.NoError(t, got.err)
	assert.EqualValues(t, "READY", got.cp.Status)
	assert.EqualValues(t, "explicit", got.cp.Kind)
	cp, _, err := c.HostedAgents.GetCheckpoint(ctx, id, got.cp.CheckpointID)
	require.NoError(t, err)
	assert.Equal(t, "before", cp.Label)

	s.Inject(dot.Fault{Op: dot.OpRollback, Then: func(s *dot.Server) { s.Advance(time.Minute) }})
	before, _, err := c.HostedAgents.GetSession(ctx, id)
	require.NoError(t, err)
	in, err := publish(t, c, id)
	require.NoError(t, err)
	ses, _, err := c.HostedAgents.RollbackToCheckpoint(ctx, id, cp.CheckpointID)
	require.NoError(t, err)
	assert.Equal(t, id, ses.SessionID)
	assert.NotEqual(t, before.SandboxID, ses.SandboxID, "a new sandbox")
	again, err := publish(t, c, id)
	require.NoError(t, err)
	assert.NotEqual(t, in.URL, again.URL)

	s.Inject(dot.Fault{Op: dot.OpFork, Then: func(s *dot.Server) { s.Advance(time.Minute) }})
	fork, _, err := c.HostedAgents.ForkSession(ctx, id, &godo.HostedAgentForkSessionRequest{Count: 3})
	require.NoError(t, err)
	require.Len(t, fork.Sessions, 3)
	children, _, err := c.HostedAgents.ListSessions(ctx, &godo.HostedAgentSessionListOptions{ParentSessionID: id})
	require.NoError(t, err)
	assert.Len(t, children.Sessions, 3)
	list, _, err := c.HostedAgents.ListCheckpoints(ctx, id, nil)
	require.NoError(t, err)
	require.Len(t, list.Checkpoints, 2)
	assert.EqualValues(t, "implicit", list.Checkpoints[0].Kind, "the newest first")
	for range 2 {
		gone, _, err := c.HostedAgents.DeleteCheckpoint(ctx, id, cp.CheckpointID)
		require.NoError(t, err, "deleting may be repeated")
		assert.True(t, gone.Deleted)
	}
	_, _, err = c.HostedAgents.RollbackToCheckpoint(ctx, id, cp.CheckpointID)
	assert.Equal(t, http.StatusNotFound, code(err))
}

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{Releasing: 30 * time.Second})
	ctx := t.Context()
	make1 := func(size int32, key string) (*godo.HostedAgentWorkspace, int) {
		w, resp, err := c.HostedAgents.CreateWorkspace(ctx, &godo.HostedAgentWorkspaceCreateRequest{SizeLimitGiB: size, IdempotencyKey: key})
		if err != nil {
			return nil, code(err)
		}
		return w, resp.StatusCode
	}
	w, status1 := make1(10, "k")
	assert.Equal(t, http.StatusCreated, status1)
	replay, status1 := make1(10, "k")
	assert.Equal(t, http.StatusOK, status1)
	assert.Equal(t, w.WorkspaceID, replay.WorkspaceID)
	_, status1 = make1(11, "k")
	assert.Equal(t, http.StatusUnprocessableEntity, status1)
	_, status1 = make1(101, "")
	assert.Equal(t, http.StatusBadRequest, status1)

	attach := func(name string) (*godo.HostedAgentSession, error) {
		ses, _, err := c.HostedAgents.CreateSessionFromEnvironment(ctx, &godo.HostedAgentSessionFromEnvironmentRequest{
			Name: name, ConfigID: configure(t, c), WorkspaceID: w.WorkspaceID,
		})
		return ses, err
	}
	ses, err := attach("oh-one")
	require.NoError(t, err)
	assert.Equal(t, w.WorkspaceID, ses.WorkspaceID)
	_, err = attach("oh-two")
	assert.Equal(t, http.StatusConflict, code(err))
	assert.NotContains(t, message(err), "limit of")
	s.Advance(time.Second)
	_, _, err = c.HostedAgents.ForkSession(ctx, ses.SessionID, nil)
	assert.Equal(t, http.StatusConflict, code(err))
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.DeleteWorkspace(ctx, w.WorkspaceID))))
	require.NoError(t, try(c.HostedAgents.DestroySession(ctx, ses.SessionID)))
	list, _, err := c.HostedAgents.ListWorkspaces(ctx, &godo.HostedAgentWorkspaceListOptions{State: "RELEASING"})
	require.NoError(t, err)
	assert.Len(t, list.Workspaces, 1)
	_, err = attach("oh-one")
	assert.Equal(t, http.StatusConflict, code(err), "it is still being released")
	s.Advance(30 * time.Second)
	w, _, err = c.HostedAgents.GetWorkspace(ctx, w.WorkspaceID)
	require.NoError(t, err)
	assert.EqualValues(t, "AVAILABLE", w.State)
	assert.NotNil(t, w.LastSavedAt)
	require.NoError(t, try(c.HostedAgents.DeleteWorkspace(ctx, w.WorkspaceID)))
	assert.Equal(t, http.StatusNotFound, code(try(c.HostedAgents.DeleteWorkspace(ctx, w.WorkspaceID))))
}
