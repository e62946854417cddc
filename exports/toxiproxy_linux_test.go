package exports_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

// badNetwork is one thing at random that is wrong with the network.
func badNetwork(r *rand.Rand, size int) agentservertest.Toxic {
	one := agentservertest.Toxic{Toxicity: 0.2 + 0.8*r.Float64()}
	switch r.IntN(5) {
	case 0, 1:
		one.Type, one.Attributes = "limit_data", map[string]int{"bytes": r.IntN(size)}
	case 2:
		one.Type, one.Attributes = "reset_peer", map[string]int{"timeout": 1 + r.IntN(60)}
	case 3:
		// Slow enough to be felt, and quick enough to end.
		one.Type, one.Attributes = "bandwidth", map[string]int{"rate": 8_000 + r.IntN(8_000)}
	default:
		one.Type, one.Attributes = "slicer", map[string]int{"average_size": 4_000, "size_variation": 3_000, "delay": 50}
	}
	return one
}

// TestScenario95CutConnectionsOfARealNetwork exports a box with boxd through a
// proxy that cuts connections at random offsets, resets them, slows them down
// and slices them. No receipt is false, and when the network is well again the
// same attempt ends with one.
func TestScenario95CutConnectionsOfARealNetwork(t *testing.T) {
	t.Parallel()
	program := os.Getenv("BOXKEEPER_TEST_TOXIPROXY")
	if program == "" {
		t.Skip("BOXKEEPER_TEST_TOXIPROXY names no toxiproxy; CONTRIBUTING.md says how to build it")
	}
	runs := 24 / min(race.Slowness, 4)
	if atFullSize(t) {
		runs = 300
	}
	server, err := agentservertest.Start(agentservertest.Options{Root: filepath.Join(t.TempDir(), "box")})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	said := map[string][]string{}
	for i := range 4 {
		c := agentservertest.Conversation{ID: hex32(i + 1)}
		for n := range 5 * i {
			text := fmt.Sprintf("%x", noise(100*i+n, 3_000))
			c.Events = append(c.Events, agentservertest.Event{Text: text})
			said[c.ID] = append(said[c.ID], text)
		}
		_, err := agentservertest.WriteConversation(server.Conversations(), c)
		require.NoError(t, err)
	}
	lay(t, filepath.Join(server.Root, "workspace/a.bin"), noise(1, 300_000))
	lay(t, filepath.Join(server.Root, "workspace/b/c.txt"), "text\n")
	behind, err := url.Parse(server.URL)
	require.NoError(t, err)
	network, err := agentservertest.StartToxiproxy(t.Context(), program, behind.Host)
	require.NoError(t, err)
	t.Cleanup(network.Close)
	client, err := agentserver.New(agentserver.Options{URL: network.URL})
	require.NoError(t, err)
	t.Cleanup(client.Close)

	random := rand.New(rand.NewPCG(*faultSeed, 95))
	whole, refused := map[string]int{}, map[string]int{}
	for run := range runs {
		s, dir := directoryStore(t)
		prove := func(receipt box.Receipt) {
			t.Helper()
			report, err := s.Verify(t.Context(), "ws", receipt)
			require.NoError(t, err)
			require.Len(t, report.Conversations, len(said)+1)
			require.EqualValues(t, 2, receipt.Archive.Files)
			for id, want := range said {
				n := 0
				for e, err := range s.Events(t.Context(), "ws", id) {
					require.NoError(t, err)
					require.Less(t, n, len(want))
					require.Contains(t, string(e.Raw), want[n])
					n++
				}
				require.Len(t, want, n)
			}
		}
		toxics := []agentservertest.Toxic{badNetwork(random, 60_000)}
		if random.IntN(3) == 0 {
			if second := badNetwork(random, 60_000); second.Type != toxics[0].Type {
				toxics = append(toxics, second)
			}
		}
		var names []string
		for _, one := range toxics {
			names = append(names, one.Type)
		}
		what := strings.Join(names, " and ")
		require.NoError(t, network.Set(t.Context(), toxics...))
		receipt, err := s.Export(t.Context(), request("a"), agentserver.History{Client: client}, nil)
		if err == nil {
			whole[what]++
			prove(receipt)
		} else {
			refused[what]++
			require.True(t, receipt.IsZero(), "run %d, %s", run, what)
			require.Contains(t, []box.Class{box.ClassUnavailable, box.ClassUnknown, box.ClassDeadlineExceeded}, box.ClassOf(err), "run %d, %s: %v", run, what, err)
			all, err := s.Histories(t.Context(), "ws")
			require.NoError(t, err)
			require.Empty(t, all)
			require.NoError(t, network.Set(t.Context()))
			receipt, err = s.Export(t.Context(), request("a"), agentserver.History{Client: client}, nil)
			require.NoError(t, err, "run %d, after %s", run, what)
			prove(receipt)
		}
		require.NoError(t, os.RemoveAll(dir))
	}
	var kinds []string
	for what := range whole {
		kinds = append(kinds, what)
	}
	for what := range refused {
		kinds = append(kinds, what)
	}
	slices.Sort(kinds)
	n := 0
	for _, what := range slices.Compact(kinds) {
		t.Logf("%3d receipts, all of them true, and %3d refusals, mended by the same attempt, with %s", whole[what], refused[what], what)
		n += refused[what]
	}
	require.Positive(t, n, "nothing was ever cut")
}

var _ exports.WorkspaceSource = agentserver.History{}
