package docker_test

import (
	"net/http"
	"testing"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/docker/dockertest"
)

// What the engine refuses for good ends the create, and nothing is left of it.
func TestAContainerThatIsRefusedForGood(t *testing.T) {
	t.Parallel()
	ports := map[string]uint16{} // chosen before anything listens, and apart
	for i, name := range []string{"the program cannot run", "the runtime is not known", "the network is not there"} {
		ports[name] = freePorts(t) + uint16(100*i)
	}
	for name, row := range map[string]struct {
		path  string
		fault dockertest.Fault
		want  box.Class
	}{
		"the program cannot run":   {"/start$", dockertest.Fault{Status: http.StatusBadRequest, Message: "OCI runtime create failed: exec: no such file or directory"}, box.ClassInvalid},
		"the runtime is not known": {"/containers/create$", dockertest.Fault{Status: http.StatusBadRequest, Message: "Unknown runtime specified x"}, box.ClassInvalid},
		"the network is not there": {"/start$", dockertest.Fault{Status: http.StatusNotFound, Message: "network boxes not found"}, box.ClassFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFake(t, docker.SuspendStop)
			p.opts.Ports = docker.Ports{First: ports[name], Last: ports[name] + 20}
			d := p.driver(t, installation)
			p.fake.Next(http.MethodPost, row.path, row.fault)
			_, err := d.Create(t.Context(), request("refused"))
			wantClass(t, err, row.want)
			require.ErrorContains(t, err, row.fault.Message)
			ref := box.Ref{ID: "x", Name: request("refused").Identity.Name(), Epoch: 1}
			require.Empty(t, p.left(t, ref), "nothing was done, says the class")
			require.Equal(t, box.PhaseRunning, phase(t, d, made(t, d, "refused")), "it is asked for again when it was mended")
		})
	}
}

// What may pass, what is not in the words of the engine, and what was there before
// this call is tried again, and nothing of it is removed.
func TestARefusalThatIsNotCertain(t *testing.T) {
	t.Parallel()
	bad := dockertest.Fault{Status: http.StatusBadRequest, Message: "OCI runtime create failed: exec: no such file or directory"}
	for name, row := range map[string]struct {
		faults []dockertest.Fault
		also   *dockertest.Fault // of what is asked for while it is undone
		path   string
		left   int
	}{
		"a port is taken":            {faults: []dockertest.Fault{{Status: http.StatusInternalServerError, Message: "port is already allocated"}}, left: 2},
		"a container is missing":     {faults: []dockertest.Fault{{Status: http.StatusNotFound, Message: "No such container: x"}}, left: 2},
		"a page":                     {faults: []dockertest.Fault{{Status: http.StatusBadRequest, Message: "<html>", Header: map[string]string{"Content-Type": "text/html"}}}, left: 2},
		"its container is not gone":  {faults: []dockertest.Fault{bad}, also: &dockertest.Fault{Status: http.StatusInternalServerError}, path: "/containers/", left: 2},
		"its volume is not gone":     {faults: []dockertest.Fault{bad}, also: &dockertest.Fault{Status: http.StatusConflict}, path: "/volumes/", left: 1},
		"the answer of the end lost": {faults: []dockertest.Fault{bad}, also: &dockertest.Fault{Lose: true}, path: "/volumes/", left: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFake(t, docker.SuspendStop)
			d := p.driver(t, installation)
			if row.also != nil {
				p.fake.Next(http.MethodDelete, row.path, *row.also)
			}
			for _, fault := range row.faults {
				p.fake.Next(http.MethodPost, "/start$", fault)
				_, err := d.Create(t.Context(), request("unclear"))
				wantClass(t, err, box.ClassUnavailable)
			}
			ref := box.Ref{ID: "x", Name: request("unclear").Identity.Name(), Epoch: 1}
			require.Len(t, p.left(t, ref), row.left)
			require.Equal(t, box.PhaseRunning, phase(t, d, made(t, d, "unclear")))
		})
	}
}

// The engine takes the container, and says at its start that the network is not there.
func TestANetworkThatIsNotThereRealDocker(t *testing.T) {
	t.Parallel()
	p := realPlace(t, docker.SuspendStop)
	p.opts.Network = "boxkeeper-no-such-network"
	ref := box.Ref{ID: "x", Name: request("refused").Identity.Name(), Epoch: 1}
	refused := func() {
		t.Helper()
		_, err := p.driver(t, installation).Create(t.Context(), request("refused"))
		wantClass(t, err, box.ClassFailedPrecondition)
		require.ErrorContains(t, err, "boxkeeper-no-such-network")
		require.Empty(t, p.left(t, ref))
	}
	refused()
	// With what an earlier create left that did not live to its end.
	_, err := p.api.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: ref.Name, Labels: map[string]string{
		prefix + "installation": installation, prefix + "workspace": "refused", prefix + "epoch": "1", prefix + "role": "data",
	}})
	require.NoError(t, err)
	refused()
	// With work.
	p.opts.Network = ""
	made(t, p.driver(t, installation), "refused")
	dirInVolume(t, p, ref)
	p.removeContainer(t, ref)
	p.opts.Network = "boxkeeper-no-such-network"
	_, err = p.driver(t, installation).Create(t.Context(), request("refused"))
	wantClass(t, err, box.ClassUnavailable)
	require.Contains(t, p.left(t, ref), "volume "+ref.Name)
}
