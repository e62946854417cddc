package docker_test

import (
	"testing"

	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/drivertest"
)

// TestConformance runs the suite over engines of several versions, without Docker.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		kind       docker.SuspendKind
		api, least string
		ports      docker.Ports
	}{
		"stop, API 1.41":              {docker.SuspendStop, "1.41", "1.12", docker.Ports{}},
		"pause, API 1.44":             {docker.SuspendPause, "1.44", "1.24", docker.Ports{}},
		"stop, API 1.52 and no older": {docker.SuspendStop, "1.52", "1.44", docker.Ports{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
				t.Helper()
				p := fakeOf(t, of.kind, of.api, of.least)
				p.opts.Ports = of.ports
				return newHarness(p)
			})
		})
	}
}
