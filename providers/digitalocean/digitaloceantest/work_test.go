package digitaloceantest_test

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	dot "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

func TestExec(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{Exec: func(ctx context.Context, ses dot.Session, in dot.ExecRequest) dot.ExecResult {
		_, limited := ctx.Deadline()
		if in.Argv[0] == "flood" {
			return dot.ExecResult{Stdout: strings.Repeat("a", 2<<20), Stderr: strings.Repeat("b", 1<<20)}
		}
		if !limited {
			return dot.ExecResult{ExitCode: 1}
		}
		return dot.ExecResult{ExitCode: 3, Stdout: ses.Name + " in " + in.Workdir}
	}})
	id := running(t, s, c, "oh-one")
	exec := func(in godo.HostedAgentSandboxExecRequest) (*godo.HostedAgentSandboxExecResponse, error) {
		out, _, err := c.HostedAgents.ExecInSandbox(t.Context(), id, &in)
		return out, err
	}
	out, err := exec(godo.HostedAgentSandboxExecRequest{Argv: []string{"pwd"}, Workdir: "/workspace", TimeoutSeconds: 5})
	require.NoError(t, err)
	assert.Equal(t, godo.HostedAgentSandboxExecResponse{ExitCode: 3, Stdout: "oh-one in /workspace"}, *out)
	out, err = exec(godo.HostedAgentSandboxExecRequest{Argv: []string{"flood"}})
	require.NoError(t, err)
	assert.Len(t, out.Stdout, 1<<20)
	assert.Len(t, out.Stderr, 1<<20)
	s.SetBalance(dot.DefaultToken, 0)
	_, err = exec(godo.HostedAgentSandboxExecRequest{Argv: []string{"pwd"}})
	assert.Equal(t, http.StatusConflict, code(err), "no balance paused it")
}

func TestDownloads(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{Files: func(dot.Session) fs.FS {
		return fstest.MapFS{"a.txt": {Data: []byte("hello")}, "dir/b.txt": {Data: []byte("world")}}
	}})
	id := running(t, s, c, "oh-one")
	download := func(in godo.HostedAgentWorkspaceDownloadRequest) (*godo.HostedAgentWorkspaceDownload, int) {
		out, _, err := c.HostedAgents.DownloadWorkspace(t.Context(), id, &in)
		return out, code(err)
	}
	for _, name := range []string{"a.txt", "/workspace/a.txt", "/a.txt"} {
		out, status := download(godo.HostedAgentWorkspaceDownloadRequest{Path: name})
		require.Zero(t, status, name)
		body, err := io.ReadAll(out.Body)
		require.NoError(t, err, "the footer is right")
		require.NoError(t, out.Body.Close())
		assert.Equal(t, "hello", string(body))
		assert.EqualValues(t, 5, out.SizeBytes)
		assert.False(t, out.IsArchive)
	}
	out, status := download(godo.HostedAgentWorkspaceDownloadRequest{Path: "/workspace/dir", AsArchive: true})
	require.Zero(t, status)
	assert.True(t, out.IsArchive)
	header, err := tar.NewReader(out.Body).Next()
	require.NoError(t, err)
	assert.Equal(t, "b.txt", header.Name)
	_, _ = io.Copy(io.Discard, out.Body)
	require.NoError(t, out.Body.Close())
	for name, want := range map[string]int{
		"../etc/passwd": http.StatusForbidden, "/workspace/../x": http.StatusForbidden, "nothing": http.StatusNotFound, "dir": http.StatusBadRequest,
	} {
		_, status := download(godo.HostedAgentWorkspaceDownloadRequest{Path: name})
		assert.Equal(t, want, status, name)
	}

	ctx := t.Context()
	staged, _, err := c.HostedAgents.CreateWorkspaceTransfer(ctx, id, &godo.HostedAgentWorkspaceTransferCreateRequest{Direction: "download", Path: "a.txt"})
	require.NoError(t, err)
	assert.EqualValues(t, "pending", staged.Status)
	for _, want := range []string{"pending", "completed"} {
		staged, _, err = c.HostedAgents.GetWorkspaceTransfer(ctx, id, staged.TransferID)
		require.NoError(t, err)
		assert.EqualValues(t, want, staged.Status)
	}
	sum := sha256.Sum256([]byte("hello"))
	assert.Equal(t, hex.EncodeToString(sum[:]), staged.SHA256)
	got, body, err := ask(t, s, "", staged.DownloadURL)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, got)
	assert.Equal(t, "hello", body, "no footer, and no token")
	got, _, err = ask(t, s, "", strings.Split(staged.DownloadURL, "?")[0])
	require.NoError(t, err)
	assert.Equal(t, http.StatusForbidden, got)
	_, _, err = c.HostedAgents.CreateWorkspaceTransfer(ctx, id, &godo.HostedAgentWorkspaceTransferCreateRequest{Direction: "upload", Path: "a", SizeBytes: 1})
	assert.Equal(t, http.StatusNotImplemented, code(err))

	s.PauseNow(id, "idle")
	_, status = download(godo.HostedAgentWorkspaceDownloadRequest{Path: "a.txt"})
	assert.Equal(t, http.StatusConflict, status)
}

func TestActivity(t *testing.T) {
	t.Parallel()
	options := dot.Options{AgentServer: echo, Exec: func(context.Context, dot.Session, dot.ExecRequest) dot.ExecResult { return dot.ExecResult{} }}
	for name, row := range map[string]struct {
		off dot.NoActivity
		do  func(*testing.T, *dot.Server, *godo.Client, string)
	}{
		"ingress": {dot.NoActivity{Ingress: true}, func(t *testing.T, s *dot.Server, c *godo.Client, id string) {
			in, err := publish(t, c, id)
			require.NoError(t, err)
			_, _, err = ask(t, s, dot.DefaultToken, in.URL)
			require.NoError(t, err)
		}},
		"tunnel": {dot.NoActivity{Tunnel: true}, func(t *testing.T, s *dot.Server, _ *godo.Client, id string) {
			_, _, err := dial(t, s, id, "8000")
			require.NoError(t, err)
		}},
		"exec": {dot.NoActivity{Exec: true}, func(t *testing.T, _ *dot.Server, c *godo.Client, id string) {
			_, _, err := c.HostedAgents.ExecInSandbox(t.Context(), id, &godo.HostedAgentSandboxExecRequest{Argv: []string{"true"}})
			require.NoError(t, err)
		}},
	} {
		for _, off := range []bool{false, true} {
			opts := options
			if off {
				opts.NoActivity = row.off
			}
			s, c := begin(t, opts)
			id := running(t, s, c, "oh-one")
			last, _, err := c.HostedAgents.GetSession(t.Context(), id)
			require.NoError(t, err)
			due := s.IdleAt(id)
			s.Advance(9 * time.Minute)
			row.do(t, s, c, id)
			assert.Equal(t, off, due.Equal(s.IdleAt(id)), "%s, off: %t", name, off)
			now, _, err := c.HostedAgents.GetSession(t.Context(), id)
			require.NoError(t, err)
			assert.Equal(t, last.LastEventAt, now.LastEventAt, "%s is no canonical event", name)
		}
	}
}

func TestReadsAreNoUse(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{Tick: 10 * time.Second, AgentServer: echo})
	id := running(t, s, c, "oh-one")
	due := s.IdleAt(id)
	_, _, err := dial(t, s, id, "8000")
	require.NoError(t, err)
	opened := s.IdleAt(id)
	assert.True(t, opened.After(due))
	for status(t, c, id) == "SESSION_STATUS_READY" {
		named(t, c, "oh-one")
	}
	assert.False(t, s.Now().Before(opened), "an open tunnel that is quiet is no use either")
	assert.Less(t, s.Now().Sub(opened), 30*time.Second, "each request moved the clock by ten seconds")
}

func TestInputAndWork(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{Turn: time.Minute})
	ctx := t.Context()
	id := running(t, s, c, "oh-one")
	s.PauseNow(id, "idle")
	run, _, err := c.HostedAgents.SendInput(ctx, id, &godo.HostedAgentSendInputRequest{Text: "go on"})
	require.NoError(t, err)
	assert.NotEmpty(t, run.RunID)
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, id), "an input wakes")
	started := s.Now()
	_, _, err = c.HostedAgents.CreateCheckpoint(ctx, id, nil)
	assert.Equal(t, http.StatusConflict, code(err), "a turn is active")
	s.Advance(time.Hour)
	ses, _, err := c.HostedAgents.GetSession(ctx, id)
	require.NoError(t, err)
	assert.EqualValues(t, "SESSION_STATUS_PAUSED", ses.Status)
	assert.True(t, started.Add(time.Minute).Equal(ses.LastEventAt.Time), "the run's end was the last event")
	assert.Equal(t, 11*time.Minute+time.Second-dot.DefaultBoot, s.Bill()[0].Running, "ten minutes after the run")
	require.NoError(t, try(c.HostedAgents.ResolveHITL(ctx, id, "r1", &godo.HostedAgentResolveHITLRequest{Outcome: "HITL_OUTCOME_APPROVE"})))
	assert.Equal(t, map[string]int{"input": 1, "hitl": 1}, s.Bill()[0].Wakes)

	s.Work(id, 2*time.Hour)
	s.Advance(2 * time.Hour)
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, id))
	s.Attach(id, false)
	assert.Equal(t, "SESSION_STATUS_DETACHED", status(t, c, id))
	require.NoError(t, try(c.HostedAgents.PauseSession(ctx, id)), "DETACHED can be paused")
	s.DestroyNow(id)
	_, _, err = c.HostedAgents.SendInput(ctx, id, &godo.HostedAgentSendInputRequest{Text: "go on"})
	assert.Equal(t, http.StatusConflict, code(err))
}

func TestBalance(t *testing.T) {
	t.Parallel()
	for _, refused := range []int{http.StatusPaymentRequired, http.StatusForbidden} {
		s, c := begin(t, dot.Options{NoBalance: refused, Turn: time.Minute})
		ctx := t.Context()
		agreed, other, done := running(t, s, c, "oh-agreed"), running(t, s, c, "oh-other"), running(t, s, c, "oh-done")
		for _, id := range []string{agreed, done} {
			ses, _, err := c.HostedAgents.UpdateSession(ctx, id, &godo.HostedAgentSessionUpdateRequest{ResumeOnTopoff: new(true)})
			require.NoError(t, err)
			assert.True(t, ses.ResumeOnTopoff)
		}
		s.Work(agreed, time.Hour)
		s.Work(other, time.Hour)
		s.SetBalance(dot.DefaultToken, 0)
		balance, _, err := c.Prepayment.GetStatus(ctx)
		require.NoError(t, err)
		assert.Equal(t, "0.00", balance.Status.Balance)
		assert.True(t, balance.Status.Blocked)
		for _, id := range []string{agreed, other, done} {
			ses, _, err := c.HostedAgents.GetSession(ctx, id)
			require.NoError(t, err)
			assert.EqualValues(t, "zero_balance", ses.PauseReason)
		}
		assert.Equal(t, refused, code(try(c.HostedAgents.ResumeSession(ctx, other))))
		_, err = create(t, c, configure(t, c), "oh-new")
		assert.Equal(t, refused, code(err))
		_, _, err = c.HostedAgents.SendInput(ctx, other, &godo.HostedAgentSendInputRequest{Text: "go on"})
		assert.Equal(t, refused, code(err))
		s.SetBalance(dot.DefaultToken, 5)
		assert.Equal(t, "SESSION_STATUS_READY", status(t, c, agreed))
		assert.Equal(t, "SESSION_STATUS_PAUSED", status(t, c, other), "it didn't agree")
		assert.Equal(t, "SESSION_STATUS_PAUSED", status(t, c, done), "its run was not cut")
		require.NoError(t, try(c.HostedAgents.DestroySession(ctx, other)))
		s.SetPrepayment(dot.DefaultToken, dot.Prepayment{Balance: "25.00", Blocked: true})
		balance, _, err = c.Prepayment.GetStatus(ctx)
		require.NoError(t, err)
		assert.True(t, balance.Status.Blocked)
	}
}

func TestLiveConfiguration(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{Updating: 5 * time.Second, AgentServer: echo})
	ctx := t.Context()
	id := running(t, s, c, "oh-one")
	change := func(text string) (*godo.HostedAgentSessionConfigUpdateResponse, *godo.Response, error) {
		return c.HostedAgents.UpdateSessionConfig(ctx, id, &godo.HostedAgentSessionConfigUpdateRequest{ManifestYAML: text})
	}
	for text, want := range map[string]int{
		"size: mars-1vcpu-1gb": 422, "permissions: {default: ask}": 501, "env: [a]": 400, "[]": 400, "secrets: {K: {x: y}}": 400,
	} {
		_, _, err := change(text)
		assert.Equal(t, want, code(err), text)
	}
	_, resp, err := change("secrets: {OPENHANDS_LLM_API_KEY: sk-very-secret}")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.StatusCode, "nothing changed")
	out, resp, err := change("secrets: {OPENHANDS_LLM_API_KEY: sk-new-secret}")
	require.NoError(t, err)
	assert.Equal(t, http.StatusAccepted, resp.StatusCode)
	assert.EqualValues(t, "SESSION_STATUS_UPDATING", out.Session.Status)
	assert.EqualValues(t, "APPLYING", out.Session.Update.State)
	_, _, err = change("env: {A: b}")
	assert.Equal(t, http.StatusConflict, code(err))
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, id))))
	s.Advance(5 * time.Second)
	ses, _, err := c.HostedAgents.GetSession(ctx, id)
	require.NoError(t, err)
	assert.EqualValues(t, "APPLIED", ses.Update.State)
	assert.Equal(t, []string{"secrets"}, ses.Update.Sections)
	assert.True(t, ses.ConfigDrifted)
	for _, r := range s.Requests() {
		assert.NotContains(t, r.Body, "sk-new-secret")
	}
}

func TestStrangersAndTriggers(t *testing.T) {
	t.Parallel()
	s, c := begin(t, dot.Options{})
	ctx := t.Context()
	theirs := s.Plant(dot.DefaultToken, dot.DefaultRegion, "a-colleagues")
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, theirs))
	assert.Empty(t, s.Audit().Alive, "they are no concern of ours")
	id := running(t, s, c, "oh-one")
	s.Bind(id, "nightly")
	list, _, err := c.HostedAgentTriggers.List(ctx, &godo.HostedAgentTriggerListOptions{BoundSessionID: id})
	require.NoError(t, err)
	require.Len(t, list.Triggers, 1)
	assert.Equal(t, id, list.Triggers[0].BoundSessionID)
	list, _, err = c.HostedAgentTriggers.List(ctx, &godo.HostedAgentTriggerListOptions{BoundSessionID: theirs})
	require.NoError(t, err)
	assert.Empty(t, list.Triggers)

	require.NoError(t, try(c.HostedAgents.PauseSession(ctx, id)))
	s.ResumeNow(id, "trigger")
	assert.Equal(t, 1, s.Bill()[1].WokenUp())
	require.NoError(t, try(c.HostedAgents.DestroySession(ctx, theirs)))
	audit := s.Audit()
	assert.Equal(t, []string{"a-colleagues"}, audit.ForeignGone)
	assert.Equal(t, []string{"oh-one"}, audit.Alive)
	assert.Len(t, s.Sessions(), 2)
}

func TestClockOfTheCaller(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	s, c := begin(t, dot.Options{Boot: -1, Now: func() time.Time {
		return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(passed.Load()))
	}})
	ses, err := create(t, c, configure(t, c), "oh-one")
	require.NoError(t, err)
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, ses.SessionID), "no boot at all")
	passed.Store(int64(11 * time.Minute))
	assert.Equal(t, 10*time.Minute, s.Bill()[0].Running, "what was due happened at its time, not when it was noticed")
	assert.Panics(t, func() { s.Advance(time.Second) })
}
