package runtimeapi_test

import (
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/runtimeapi/runtimeapitest"
)

// TestABoxWithBoxdInIt reads a box through the address and the key that the
// driver gives, before and after a suspend, in both styles of address.
func TestABoxWithBoxdInIt(t *testing.T) {
	t.Parallel()
	for name, hosts := range map[string]bool{"path": false, "host": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			volumes := t.TempDir()
			var mu sync.Mutex
			p := serve(t, runtimeapitest.Options{HostStyle: hosts, Box: func(life runtimeapitest.Life) http.Handler {
				mu.Lock()
				defer mu.Unlock()
				root := filepath.Join(volumes, life.RuntimeID)
				if err := os.MkdirAll(filepath.Join(root, "conversations"), 0o700); err != nil {
					panic(err)
				}
				reclaimer, err := reclaim.Open(root, reclaim.Options{})
				if err != nil {
					panic(err)
				}
				t.Cleanup(reclaimer.Close)
				return server.New(server.Options{Root: root, Key: box.Secret(life.Key), Reclaim: reclaimer})
			}})
			keys, err := providers.NewKeySource("an installation secret of 32 chars")
			require.NoError(t, err)
			provider, err := providers.New("service", p.open(t), &providers.Options{Installation: installation, Keys: keys})
			require.NoError(t, err)
			dial := func(at driver.Endpoint) *agentserver.Client {
				t.Helper()
				web := p.Client()
				t.Cleanup(web.CloseIdleConnections)
				c, err := agentserver.New(agentserver.Options{URL: at.URL, SessionKey: at.SessionKey, HTTP: web})
				require.NoError(t, err)
				t.Cleanup(c.Close)
				return c
			}

			seen, err := provider.Create(t.Context(), box.Spec{Version: box.WireVersion, Workspace: "real", Provider: "service"}, 1, driver.Start{})
			require.NoError(t, err)
			at, err := provider.Endpoint(t.Context(), seen.Ref)
			require.NoError(t, err)
			require.NotEqual(t, keys.SessionKey("real", 1), at.SessionKey, "the service makes the key")
			old := dial(at)
			p.Inject(runtimeapitest.Fault{Op: runtimeapitest.OpBox, For: 20 * time.Second, Status: http.StatusBadGateway, Header: html, Body: "<html>"})
			err = old.Ready(t.Context())
			require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "running before the ingress answers: %v", err)
			now, err := provider.Observe(t.Context(), seen.Ref)
			require.NoError(t, err)
			require.Equal(t, box.PhaseRunning, now.Phase)
			p.Advance(20 * time.Second)
			require.NoError(t, old.Ready(t.Context()))
			_, err = agentservertest.WriteConversation(filepath.Join(volumes, seen.Ref.ID, "conversations"), agentservertest.Conversation{})
			require.NoError(t, err)
			before, err := old.Conversations(t.Context())
			require.NoError(t, err)
			require.Len(t, before, 1)

			_, err = provider.Suspend(t.Context(), seen.Ref)
			require.NoError(t, err)
			_, err = old.Conversations(t.Context())
			require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "503 while it is paused: %v", err)
			seen, err = provider.Resume(t.Context(), seen.Ref, driver.Start{})
			require.NoError(t, err)
			_, err = old.Conversations(t.Context())
			require.Equal(t, box.ClassUnauthorized, box.ClassOf(err), "an old key: %v", err)
			at, err = provider.Endpoint(t.Context(), seen.Ref)
			require.NoError(t, err)
			after, err := dial(at).Conversations(t.Context())
			require.NoError(t, err)
			require.Equal(t, before, after, "the volume is kept")
			_, err = provider.Delete(t.Context(), seen.Ref)
			require.NoError(t, err)
			require.Equal(t, "stop", p.box(t, seen.Ref.ID).Ended)
		})
	}
}
