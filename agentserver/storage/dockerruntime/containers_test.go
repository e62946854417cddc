package dockerruntime_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
)

// dockerVariable names a Docker engine that a test may run containers with, such
// as unix:///var/run/docker.sock.
const dockerVariable = "BOXKEEPER_TEST_DOCKER"

const sleeper = `package main

import "time"

func main() { time.Sleep(time.Hour) }
`

func TestAContainerOfARealEngineKeepsItsConversation(t *testing.T) {
	t.Parallel()
	host := os.Getenv(dockerVariable)
	if host == "" {
		t.Skip("needs a Docker engine: set " + dockerVariable + " to its address, such as unix:///var/run/docker.sock")
	}
	command := []string{"docker", "--host", host}
	docker := func(input []byte, args ...string) string {
		t.Helper()
		run := exec.CommandContext(t.Context(), command[0], append(command[1:], args...)...)
		run.Stdin = bytes.NewReader(input)
		text, err := run.CombinedOutput()
		require.NoError(t, err, string(text))
		return strings.TrimSpace(string(text))
	}
	build := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(build, "main.go"), []byte(sleeper), 0o600))
	compile := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(build, "sleeper"), filepath.Join(build, "main.go"))
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := compile.CombinedOutput()
	require.NoError(t, err, string(text))
	tarball, err := exec.CommandContext(t.Context(), "tar", "-C", build, "-c", "sleeper").Output()
	require.NoError(t, err)
	image := docker(tarball, "import", "-")
	var made []string
	t.Cleanup(func() {
		for _, args := range append([][]string{append([]string{"rm", "--force"}, made...)}, []string{"rmi", image}) {
			_ = exec.Command(command[0], append(command[1:], args...)...).Run() //nolint:noctx // the test's context has ended
		}
	})

	root := newBox(t)
	runtime := makeRuntime(t, root, id, time.Now())
	manifest(t, root, id, filepath.Join(root, runtime, "workspace"))
	other := strings.Repeat("f", 32)
	makeRuntime(t, root, other, time.Now())
	layout := dockerruntime.New(root, storagetest.Writer(root), dockerruntime.Options{Containers: dockerruntime.Containers(command...)})
	hold := func(conversation string) (busy string) {
		t.Helper()
		release, busy, err := layout.Hold(t.Context(), conversation)
		require.NoError(t, err)
		if busy == "" {
			release()
		}
		return busy
	}
	require.Empty(t, hold(id))
	uuid := id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
	owner := "ai.openhands.runtime-owner=0123456789abcdef01234567"
	mounts := []string{"--volume", filepath.Join(root, runtime, "persistence") + ":/var/openhands/.openhands", "--volume", filepath.Join(root, runtime, "workspace") + ":/workspace"}
	for name, args := range map[string][]string{
		"one that runs, by its directories": append([]string{"run", "--detach", "--label", owner}, mounts...),
		"one that was only made":            append([]string{"create", "--label", owner}, mounts...),
		"one that runs, by its label":       {"run", "--detach", "--label", owner, "--label", "ai.openhands.conversation-id=" + uuid},
		"one that runs, by its name":        {"run", "--detach", "--name", "agent-server-conversation-" + uuid},
	} {
		container := docker(nil, append(append(args, "--network", "none"), image, "/sleeper")...)
		made = append(made, container)
		require.Contains(t, hold(id), "in use by container", name)
		require.Empty(t, hold(other), "%s is not the other's", name)
		docker(nil, "rm", "--force", container)
		require.Empty(t, hold(id), name)
	}
	nameless := docker(nil, "run", "--detach", "--label", owner, "--network", "none", image, "/sleeper")
	made = append(made, nameless)
	require.Contains(t, hold(other), "nothing says whose it is")
	docker(nil, "rm", "--force", nameless)
	require.Empty(t, hold(other))
}

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

func containerOf(ctx context.Context, conversation string, command ...string) (string, error) {
	list, err := dockerruntime.Containers(command...)(ctx)
	if err != nil {
		return "", err
	}
	return list(conversation)
}
