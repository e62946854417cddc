package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// call makes a request to the service as a person does who has the token and no
// boxkeeper.
func (a *managedAgents) call(t *testing.T, path string, body map[string]any, answer any) {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.URL("")+"v2/agents/"+path, bytes.NewReader(text))
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+digitaloceantest.DefaultToken)
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Timeout: within}).Do(request)
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // read to its end
	require.Equal(t, http.StatusCreated, response.StatusCode)
	require.NoError(t, json.NewDecoder(response.Body).Decode(answer))
}

// TestASessionMadeByHandIsAdopted takes over a session that somebody made at
// DigitalOcean with no boxkeeper, and that the service paused days ago: it gets a
// policy and a history, and its environment, which is not ours, stays.
func TestASessionMadeByHandIsAdopted(t *testing.T) {
	t.Parallel()
	a := atDigitalOcean(t, "do-by-hand", digitaloceantest.Options{})
	l, u := a.l, &user{l: a.l, wrote: map[string][]string{}}
	var made struct {
		Config  struct{ ID string }
		Session struct {
			ID string `json:"session_id"`
		}
	}
	a.call(t, "configs", map[string]any{
		"name": "my-environment", "manifest_yaml": "name: mine\nagent: openhands\ntemplate: openhands\nkeep_warm: false\nidle_timeout: 60m\n",
	}, &made)
	a.call(t, "sessions", map[string]any{"name": "my-session", "config_id": made.Config.ID}, &made)
	l.clock.skip(time.Hour)
	l.clock.skip(5 * day)
	mine := func() digitaloceantest.Statement { return a.Bill()[0] }
	require.Equal(t, map[string]int{"idle": 1}, mine().Pauses, "the service paused it")

	l.do("box", "adopt", l.provider.Name(), made.Session.ID, "--workspace", l.ws, "--owner", "ann", "--paused-ttl", "20d")
	s := l.await(box.StateSuspended)
	require.Zero(t, mine().WokenUp(), "the adoption woke it")
	require.Equal(t, made.Session.ID, s.Ref.ID)
	// The service does not tell since when a session is paused, so the whole of the
	// paused TTL is ours to give.
	require.WithinDuration(t, l.now(), s.SuspendedSince, within)
	replyOf[box.SetPolicyAnswer](l, "box", "policy", l.ws, "--paused-ttl", "10d")
	l.passUntil(11*day, box.StateAwaitingConfirm)
	require.Len(t, l.told.all(), 1+remindersOf(l), "one notice")
	require.Zero(t, mine().WokenUp())

	replyOf[box.ConnectAnswer](l, "box", "connect", l.ws, "--holder", "canvas", "--lease", "1h")
	l.await(box.StateRunning)
	u.converse(2)
	replyOf[box.ActionAnswer](l, "box", "release", l.ws, "--holder", "canvas")
	l.do("box", "suspend", l.ws, "--wait")
	loss := replyOf[box.Loss](l, "box", "delete", l.ws)
	require.True(t, loss.Covered)
	l.do("box", "confirm", l.ws, "--token", loss.Token, "--by", "ann", "--wait")
	st := mine()
	require.Equal(t, 1, st.Deletes)
	require.False(t, st.Alive())
	require.Equal(t, 1, a.environments(), "the environment that was there before us, and it alone, is left")
	u.requireKept()

	// It was taken over once: who comes late is told.
	late := a.life(t, "do-by-hand-late", l.clock)
	late.do("box", "adopt", late.provider.Name(), made.Session.ID, "--workspace", late.ws, "--owner", "eve")
	refused := late.await(box.StateCreateFailed)
	require.Contains(t, refused.Reason.Text, "was not taken over")
	t.Log(refused.Reason.Text)
}

// remindersOf counts the reminders that a life has told.
func remindersOf(l *life) (n int) {
	for _, e := range l.told.all() {
		if e.Kind == box.EventReminder {
			n++
		}
	}
	return n
}

// TestARuntimeMadeByHandIsNotAdopted asks for what a runtime-api cannot have: a
// session there cannot be marked. It is refused with what to do, and left alone.
func TestARuntimeMadeByHandIsNotAdopted(t *testing.T) {
	t.Parallel()
	a := atRuntimeAPI(t, "rt-by-hand", runtimeapitest.Options{})
	l := a.l
	theirs := a.Plant("made-by-hand")
	before := len(a.Calls())
	l.do("box", "adopt", l.provider.Name(), theirs.RuntimeID, "--workspace", l.ws, "--owner", "ann")
	s := l.await(box.StateCreateFailed)
	require.Contains(t, s.Reason.Text, fmt.Sprintf("provider %q cannot take over a box that is there", "runtimeapi"))
	require.Contains(t, s.Reason.Text, "create one and copy what you need")
	require.Len(t, a.Calls(), before, "the service was asked for something")
	require.Len(t, a.Living("made-by-hand"), 1)
}
