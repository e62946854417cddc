package docker_test

import (
	"testing"

	"github.com/openhands/boxkeeper/internal/race"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/drivertest"
)

// TestConformance runs the suite over engines of several versions, without Docker.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		kind       docker.SuspendKind
		api, least string
		wire       bool // one is enough: what a driver makes of a broken line is the same in all
	}{
		"stop, API 1.41":              {docker.SuspendStop, "1.41", "1.12", false},
		"pause, API 1.44":             {docker.SuspendPause, "1.44", "1.24", false},
		"stop, API 1.52 and no older": {docker.SuspendStop, "1.52", "1.44", true},
	} {
		if race.Enabled && of.kind == docker.SuspendStop && of.least != "1.44" {
			continue // what it looks for is in one of them as well as in all
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.RunConformance(t, func(t *testing.T) drivertest.Harness {
				t.Helper()
				p := fakeOf(t, of.kind, of.api, of.least)
				if of.wire && !race.Enabled { // minutes there, and the wire cases of others look for races in the suite
					return newWired(t, p)
				}
				return newHarness(p)
			})
		})
	}
}
