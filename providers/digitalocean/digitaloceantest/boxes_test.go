package digitaloceantest_test

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
	dot "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

// TestABoxBehindASession puts the server that runs in our boxes behind a
// session, and reads a history through the public URL.
func TestABoxBehindASession(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	reclaimer, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	t.Cleanup(reclaimer.Close)
	s, c := begin(t, dot.Options{AgentServer: func(ses dot.Session) http.Handler {
		return server.New(server.Options{Root: root, Reclaim: reclaimer, Key: box.Secret(ses.Env["OPENHANDS_LLM_API_KEY"])})
	}})
	require.NoError(t, os.Mkdir(root+"/conversations", 0o700))
	_, err = agentservertest.WriteConversation(root+"/conversations", agentservertest.Conversation{Title: "a talk", Events: []agentservertest.Event{{Source: "user"}}})
	require.NoError(t, err)
	id := running(t, s, c, "oh-one")
	in, err := publish(t, c, id)
	require.NoError(t, err)
	transport := s.Transport()
	t.Cleanup(transport.CloseIdleConnections)
	inside, err := agentserver.New(agentserver.Options{
		URL: in.URL, SessionKey: "sk-very-secret", HTTP: &http.Client{Transport: transport},
		Header: map[string]box.Secret{"Authorization": "Bearer " + dot.DefaultToken},
	})
	require.NoError(t, err)
	require.NoError(t, inside.Ready(t.Context()))
	talks, err := inside.Conversations(t.Context())
	require.NoError(t, err)
	require.Len(t, talks, 1)
	assert.Equal(t, "a talk", talks[0].Title)

	s.ClosePort(id, 20*time.Second)
	require.Error(t, inside.Ready(t.Context()), "READY, and nothing listens")
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, id))
	s.Advance(20 * time.Second)
	require.NoError(t, inside.Ready(t.Context()))
	s.PauseNow(id, "idle")
	err = inside.Ready(t.Context())
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "sk-very-secret")
}
