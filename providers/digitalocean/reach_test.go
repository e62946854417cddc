package digitalocean_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
)

// TestABoxIsReachedThroughItsIngressAndThroughATunnel keeps a box as an engine does,
// with the server of our own boxes behind the session: its key is the one that the
// portable type derives, and comes to it through the environment.
func TestABoxIsReachedThroughItsIngressAndThroughATunnel(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		team   fake.Team
		prefix string
	}{
		"ingress": {fake.Team{}, "http://127.0.0.1:"},
		"tunnel":  {fake.Team{NoIngress: true}, "http://127.0.0.1:"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			reclaimer, err := reclaim.Open(root, reclaim.Options{})
			require.NoError(t, err)
			t.Cleanup(reclaimer.Close)
			require.NoError(t, os.Mkdir(filepath.Join(root, "conversations"), 0o700))
			_, err = agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{Title: "a talk", Events: []agentservertest.Event{{Source: "user"}}})
			require.NoError(t, err)
			service := fake.New(fake.Options{
				Teams: []fake.Team{row.team}, Tick: 100 * time.Millisecond, Loopback: true, PortLag: 20 * time.Second, IngressPolls: 1,
				AgentServer: func(s fake.Session) http.Handler {
					return server.New(server.Options{Root: root, Reclaim: reclaimer, Key: box.Secret(s.Env["OH_SESSION_API_KEYS_0"])})
				},
			})
			t.Cleanup(service.Close)
			d, err := digitalocean.New(installation, digitalocean.Options{Token: poor, BaseURL: service.URL(""), PollEvery: time.Millisecond, TunnelIdle: time.Second})
			require.NoError(t, err)
			keys, err := providers.NewKeySource(box.Secret(strings.Repeat("k", 32)))
			require.NoError(t, err)
			p, err := providers.New("do", d, &providers.Options{Installation: installation, Keys: keys})
			require.NoError(t, err)
			seen, err := p.Create(t.Context(), box.Spec{Version: box.WireVersion, Workspace: "w", Provider: "do"}, 1, driver.Start{SecretEnv: map[string]box.Secret{"OPENHANDS_LLM_API_KEY": "llm"}})
			require.NoError(t, err)
			ref := seen.Ref
			talks := func() error {
				at, err := p.Endpoint(t.Context(), ref)
				if err != nil {
					return err
				}
				require.True(t, strings.HasPrefix(at.URL, row.prefix), at.URL)
				require.Equal(t, what == "ingress", at.Header["Authorization"] != "")
				client, err := agentserver.New(agentserver.Options{URL: at.URL, SessionKey: at.SessionKey, Header: at.Header})
				require.NoError(t, err)
				defer client.Close()
				if err := client.Ready(t.Context()); err != nil {
					return err
				}
				found, err := client.Conversations(t.Context())
				require.NoError(t, err)
				require.Len(t, found, 1)
				require.Equal(t, "a talk", found[0].Title)
				return nil
			}
			ready := func() {
				t.Helper()
				require.Eventually(t, func() bool { return talks() == nil }, 30*time.Second, 5*time.Millisecond)
			}
			ready()
			seen, err = p.Suspend(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, box.PhaseSuspended, seen.Phase)
			require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(talks()))
			_, err = p.Resume(t.Context(), ref, driver.Start{})
			require.NoError(t, err)
			require.Error(t, talks(), "running, and nothing listens on its port yet")
			service.Advance(20 * time.Second)
			ready()
			_, err = p.Delete(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, box.ClassNotFound, box.ClassOf(talks()))
			require.Empty(t, service.Audit().Alive)
			for _, r := range service.Requests() { // what the service was told, and what anybody may read
				require.NotContains(t, r.Path+r.Query, keys.SessionKey("w", 1).Reveal())
			}
			if what == "tunnel" {
				require.Positive(t, service.Count(fake.OpTunnel))
				require.Zero(t, service.Count(fake.OpGuest))
			}
		})
	}
}
