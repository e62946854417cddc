package dockerruntime_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
)

func TestAnEngineThatDoesNotAnswerKeepsEverything(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"a command that is not there":      {"/nowhere/docker"},
		"a command that fails":             {"false"},
		"a command that says other things": {"echo", "a\tb"},
		"no command":                       nil,
	} {
		_, err := containerOf(t.Context(), id, command...)
		require.Error(t, err, name)
	}
	none, err := containerOf(t.Context(), id, "true")
	require.NoError(t, err)
	require.Empty(t, none, "an empty list is an answer")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = containerOf(ended, id, "true")
	require.Error(t, err)
}

func TestACommandThatHangsIsSaidToHang(t *testing.T) {
	t.Parallel()
	_, err := dockerruntime.ContainersWithin(50*time.Millisecond, "sh", "-c", "exec sleep 300")(t.Context())
	require.ErrorContains(t, err, "list the containers: no answer within 50ms")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = dockerruntime.ContainersWithin(time.Hour, "sh", "-c", "exec sleep 300")(ended)
	require.ErrorIs(t, err, context.Canceled, "that is the caller's")
}

func containerOf(ctx context.Context, conversation string, command ...string) (string, error) {
	list, err := dockerruntime.Containers(command...)(ctx)
	if err != nil {
		return "", err
	}
	return list(conversation)
}

// The engine is a false one, and the command that asks it is the real one.
func TestARealDockerCommandWithABrokenEngineKeepsEverything(t *testing.T) {
	t.Parallel()
	if os.Getenv(dockerVariable) == "" {
		t.Skip("needs the command docker: scripts/docker.sh go test ... brings it")
	}
	list := func(answer http.HandlerFunc) http.Handler {
		routes := http.NewServeMux()
		routes.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.41") })
		routes.HandleFunc("GET /{version}/containers/json", answer)
		return routes
	}
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	const one = `{"Id":"0123456789abcdef","Names":["/agent-server-conversation-` + id + `"],"Image":"i","State":"running","Labels":{},"Mounts":[]}`
	for name, row := range map[string]struct {
		engine http.Handler // nil is none at all
		bound  time.Duration
		says   string
	}{
		"nobody listens": {nil, time.Hour, "cannot tell whether a container runs for it: list the containers: exit status 1: "},
		"it answers 500": {list(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"message":"the list is locked"}`)
		}), time.Hour, "the list is locked"},
		"it hangs at once":                   {http.HandlerFunc(hang), time.Second, "no answer within 1s"},
		"it hangs when it is asked for them": {list(hang), time.Second, "no answer within 1s"},
		"it ends in the middle": {list(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "["+one+",")
			panic(http.ErrAbortHandler)
		}), time.Hour, "list the containers: exit status 1: "},
		"it answers with a page": {list(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<!doctype html>")
		}), time.Hour, "list the containers: exit status 1: "},
		"it is whole, so that this test sees something": {list(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "["+one+"]")
		}), time.Hour, "in use by container agent-server-conversation-" + id + " (running)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := serve(t, row.engine)
			root := newBox(t)
			runtime := makeRuntime(t, root, id, time.Now())
			manifest(t, root, id, filepath.Join(root, runtime, "workspace"))
			layout := dockerruntime.New(root, storagetest.Writer(root), dockerruntime.Options{
				Containers: dockerruntime.ContainersWithin(row.bound, "docker", "--host", host),
			})
			release, busy, err := layout.Hold(t.Context(), id)
			require.NoError(t, err)
			require.Nil(t, release)
			require.Contains(t, busy, row.says)
			require.NotRegexp(t, `[:\s]$`, busy, "the reason is whole")
			require.NotContains(t, busy, "\n")
			places, err := layout.Places(t.Context())
			require.NoError(t, err)
			require.Equal(t, busy, places[0].Busy, "a plan says so beforehand")
			require.ErrorContains(t, layout.Archive(t.Context(), id), row.says)
			require.NoFileExists(t, filepath.Join(root, "persistence/runtime-control", id+".archived.json"))
		})
	}
}

// serve returns the address of an engine of the test's, whose socket has a short
// path. Without a handler nobody listens there.
func serve(t *testing.T, engine http.Handler) (host string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "e") //nolint:usetesting // paths of sockets have a limit
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	if engine != nil {
		listener, err := net.Listen("unix", socket) //nolint:noctx // local and instant
		require.NoError(t, err)
		web := &http.Server{Handler: engine, ReadHeaderTimeout: time.Minute}
		go func() { _ = web.Serve(listener) }() // ends with Close
		t.Cleanup(func() { web.Close() })
	}
	return "unix://" + socket
}
