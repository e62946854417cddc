package docker_test

import (
	"net/http/httptest"
	"testing"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/drivertest"
)

// wired is a harness whose drivers reach the engine over a line that breaks. What
// the tests ask goes around it.
type wired struct {
	harness
	line *drivertest.Line
}

func newWired(t *testing.T, p *place) drivertest.Harness {
	t.Helper()
	out := wired{newHarness(p), drivertest.NewLine(p.fake)}
	front := httptest.NewServer(out.line)
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	p.opts.Host = "tcp://" + front.Listener.Addr().String()
	return out
}

func (w wired) Line() *drivertest.Line { return w.line }

// Boxes counts the containers that go by the name, and a volume without one.
func (w wired) Boxes(t *testing.T, name string) int {
	t.Helper()
	found := 0
	containers, err := w.api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	require.NoError(t, err)
	for _, c := range containers.Items {
		if c.Names[0] == "/"+name {
			found++
		}
	}
	volumes, err := w.api.VolumeList(t.Context(), client.VolumeListOptions{})
	require.NoError(t, err)
	for _, v := range volumes.Items {
		if v.Name == name && found == 0 {
			found++
		}
	}
	return found
}

func (w wired) StateFields() []string { return []string{"Status", "State"} }

var _ drivertest.Wire = wired{}
