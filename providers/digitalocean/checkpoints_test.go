package digitalocean_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
)

const checkpointsAt = "GET " + sessionsAt + "/sess-1/checkpoints"

// sizeOfOne is what the fake says of each checkpoint.
const sizeOfOne = 734003200

func TestASuspendCountsTheCheckpoints(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		status int
		body   string
		bytes  int64
		says   string
	}{
		"none":                     {200, `{"checkpoints":[]}`, 0, ""},
		"one":                      {200, `{"checkpoints":[{"session_id":"sess-1","status":"READY","size_bytes":7}]}`, 7, "with 1 checkpoint"},
		"two, in a page of two":    {200, `{"checkpoints":[{"status":"READY","size_bytes":7},{"status":"READY","size_bytes":3000000000}],"next_page_token":""}`, 3000000007, "with 2 checkpoints"},
		"one that is made":         {200, `{"checkpoints":[{"status":"PENDING"},{"status":"READY","size_bytes":7}]}`, 7, "with 2 checkpoints"},
		"one that failed":          {200, `{"checkpoints":[{"status":"FAILED","size_bytes":9}]}`, 0, ""},
		"one without a size":       {200, `{"checkpoints":[{"status":"READY"},{"status":"READY","size_bytes":7}]}`, 0, "with 2 checkpoints"},
		"one with null as a size":  {200, `{"checkpoints":[{"status":"READY","size_bytes":null}]}`, 0, "with 1 checkpoint"},
		"a size that is none":      {200, `{"checkpoints":[{"status":"READY","size_bytes":-1}]}`, 0, "with 1 checkpoint"},
		"more than can be counted": {200, `{"checkpoints":[{"status":"READY","size_bytes":9223372036854775807},{"status":"READY","size_bytes":1}]}`, 0, "with 2 checkpoints"},
		"a word as a size":         {200, `{"checkpoints":[{"status":"READY","size_bytes":"7"}]}`, 0, ""},
		"of another session":       {200, `{"checkpoints":[{"session_id":"sess-2","status":"READY","size_bytes":7}]}`, 0, ""},
		"pages in a circle":        {200, `{"checkpoints":[{"status":"READY","size_bytes":7}],"next_page_token":"a"}`, 0, ""},
		"no list":                  {200, `{}`, 0, ""},
		"a page":                   {200, `<html>`, 0, ""},
		"not for this team":        {403, `{"error":{"code":403,"message":"no"}}`, 0, ""},
		"not there":                {404, `{}`, 0, ""},
		"a bad moment":             {503, `{}`, 0, ""},
	} {
		for _, first := range []string{"READY", "PAUSED"} {
			s := newScript(t)
			then(s, first, "PAUSED")
			s.on(pauseAt, http.StatusNoContent, "")
			s.on(checkpointsAt, row.status, row.body)
			seen, err := s.driver(t).Suspend(t.Context(), refOf("sess-1", "w"))
			require.NoError(t, err, what)
			require.Equal(t, box.PhaseSuspended, seen.Phase, what)
			require.Equal(t, row.bytes, seen.StoredBytes, what)
			if row.says == "" {
				require.NotContains(t, seen.Evidence, "checkpoint", what)
			} else {
				require.Contains(t, seen.Evidence, row.says, what)
			}
		}
	}
}

func TestNoCountIsMadeOfWhatIsOnlyLookedAt(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	_, _, err := p.client(t).HostedAgents.CreateCheckpoint(t.Context(), ref.ID, &godo.HostedAgentCheckpointCreateRequest{Label: "by hand"})
	require.NoError(t, err)
	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, int64(sizeOfOne), seen.StoredBytes)
	seen, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, int64(sizeOfOne), seen.StoredBytes, "the same when it is asked again")
	asked := p.service.Count(fake.OpCheckpointList)
	require.Equal(t, 2, asked)
	seen, err = d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Zero(t, seen.StoredBytes)
	_, err = d.List(t.Context(), installation)
	require.NoError(t, err)
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	require.Equal(t, asked, p.service.Count(fake.OpCheckpointList))
}

// TestACheckpointThatIsBeingMade holds the session against a suspend and a deletion,
// and goes with it.
func TestACheckpointThatIsBeingMade(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{Tick: time.Millisecond, Saving: 27 * time.Second})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	client := p.client(t)
	saved := make(chan error, 1)
	save := func() {
		go func() {
			_, _, err := client.HostedAgents.CreateCheckpoint(t.Context(), ref.ID, &godo.HostedAgentCheckpointCreateRequest{})
			saved <- err
		}()
		require.Eventually(t, func() bool {
			all, _, err := client.HostedAgents.ListCheckpoints(t.Context(), ref.ID, nil)
			return err == nil && len(all.Checkpoints) > 0 && all.Checkpoints[0].Status == godo.HostedAgentCheckpointStatusPending
		}, 10*time.Second, time.Millisecond)
	}
	save()
	_, err := d.Suspend(t.Context(), ref)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	require.Equal(t, "READY", p.statement(t, ref.ID).Status)
	_, err = d.Delete(t.Context(), ref)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	require.True(t, p.statement(t, ref.ID).Alive())

	p.service.Advance(30 * time.Second)
	require.NoError(t, <-saved)
	seen, err := d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, int64(sizeOfOne), seen.StoredBytes)
	require.Contains(t, seen.Evidence, "with 1 checkpoint")

	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	save()
	_, err = d.Delete(t.Context(), ref)
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	p.service.Advance(30 * time.Second)
	require.NoError(t, <-saved)
	seen, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, seen.Phase)
	require.Zero(t, seen.StoredBytes)
	all, _, err := client.HostedAgents.ListCheckpoints(t.Context(), ref.ID, nil)
	require.True(t, err != nil || len(all.Checkpoints) == 0, "none of them is left")
}
