package dockerruntime_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/box"
)

// dockerVariable names a Docker engine that a test may run containers with, as
// scripts/docker.sh sets it. Tests that need one have RealDocker in their names,
// by which .ci/run finds them.
const dockerVariable = "BOXKEEPER_TEST_DOCKER"

// The labels of an agent-server's containers.
const (
	ownerLabel        = "ai.openhands.runtime-owner"
	conversationLabel = "ai.openhands.conversation-id"
)

// engine is a real Docker engine, and an image in it for containers that stay.
type engine struct {
	host  string
	image string
}

func realEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{host: os.Getenv(dockerVariable)}
	if e.host == "" {
		t.Skip("needs a Docker engine: scripts/docker.sh go test ... starts one")
	}
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: elsewhere an engine has other files than we have")
	}
	program, err := conversationProgram()
	require.NoError(t, err)
	var image bytes.Buffer
	packed := tar.NewWriter(&image)
	require.NoError(t, packed.WriteHeader(&tar.Header{Name: "conversation", Mode: 0o755, Size: int64(len(program))}))
	_, err = packed.Write(program)
	require.NoError(t, err)
	require.NoError(t, packed.Close())
	e.image = e.docker(t, &image, "import", "--change", `ENTRYPOINT ["/conversation"]`, "-")
	t.Cleanup(func() { e.clean("rmi", "--force", e.image) })
	return e
}

// conversationProgram builds what runs in the containers, once for all tests.
var conversationProgram = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "conversation-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "conversation")
	build := exec.Command("go", "build", "-o", program, "./testdata/conversation")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // nothing else is in the image
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return os.ReadFile(program)
})

func (e *engine) command() []string { return []string{"docker", "--host", e.host} }

// containers lets a busy machine take its time.
func (e *engine) containers() func(context.Context) (dockerruntime.Listed, error) {
	return dockerruntime.ContainersWithin(time.Hour, e.command()...)
}

func (e *engine) docker(t *testing.T, input *bytes.Buffer, args ...string) string {
	t.Helper()
	run := exec.CommandContext(t.Context(), "docker", append(e.command()[1:], args...)...)
	if input != nil {
		run.Stdin = input
	}
	var faults bytes.Buffer
	run.Stderr = &faults
	text, err := run.Output()
	require.NoError(t, err, "docker %s: %s", strings.Join(args, " "), faults.String())
	return strings.TrimSpace(string(text))
}

// clean is for the end of a test, whose context has ended.
func (e *engine) clean(args ...string) (answer string) {
	text, _ := exec.Command("docker", append(e.command()[1:], args...)...).Output() //nolint:noctx // as above
	return strings.TrimSpace(string(text))
}

// start makes a container by the arguments, "run --detach" or "create" first.
// It has no network, and goes at the end of the test.
func (e *engine) start(t *testing.T, args ...string) (container string) {
	t.Helper()
	container = e.docker(t, nil, append(args, "--network", "none", e.image)...)
	t.Cleanup(func() { e.clean("rm", "--force", container) })
	return container
}

// await looks until the engine has done what it does by itself.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "waited in vain for %s", what)
	}
}

// room is a box with one idle conversation of Docker mode, seen through an engine.
type room struct {
	root, id, runtime string
	layout            *dockerruntime.Layout
}

// newRoom makes a conversation whose id repeats digits. They are of one test
// alone, since the engine is the same for all.
func newRoom(t *testing.T, e *engine, digits string) *room {
	t.Helper()
	r := &room{root: newBox(t), id: strings.Repeat(digits, 32/len(digits))}
	require.NoError(t, os.Chmod(r.root, 0o700))
	r.runtime = makeRuntime(t, r.root, r.id, time.Now().Add(-time.Hour))
	manifest(t, r.root, r.id, filepath.Join(r.root, r.runtime, "workspace"))
	r.layout = dockerruntime.New(r.root, storagetest.Writer(r.root), dockerruntime.Options{
		Containers: e.containers(),
	})
	return r
}

// hold says why the conversation can't be held, empty when it was.
func (r *room) hold(t *testing.T) (busy string) {
	t.Helper()
	release, busy, err := r.layout.Hold(t.Context(), r.id)
	require.NoError(t, err)
	if busy == "" {
		release()
	}
	return busy
}

// planned says why a plan leaves the conversation alone.
func (r *room) planned(t *testing.T) (busy string) {
	t.Helper()
	places, err := r.layout.Places(t.Context())
	require.NoError(t, err)
	require.Len(t, places, 1)
	return places[0].Busy
}

func (r *room) mounts() []string {
	return []string{
		"--volume", filepath.Join(r.root, "conversations", r.id) + ":/var/openhands/conversations/" + r.id,
		"--volume", filepath.Join(r.root, r.runtime, "persistence") + ":/var/openhands/.openhands",
		"--volume", filepath.Join(r.root, r.runtime, "workspace") + ":/workspace",
	}
}

func TestScenario87ARealDockerContainerKeepsItsConversation(t *testing.T) {
	t.Parallel()
	e := realEngine(t)
	owner := []string{"--label", ownerLabel + "=0123456789abcdef01234567"}
	run := []string{"run", "--detach"}
	digits := "123456789abcdef"
	for name, row := range map[string]struct {
		args func(r *room) []string
		then string // a command of docker on the container
	}{
		"one that runs, by its directories":                    {args: func(r *room) []string { return append(append(run, owner...), r.mounts()...) }},
		"one that was only made":                               {args: func(r *room) []string { return append(append([]string{"create"}, owner...), r.mounts()...) }},
		"one that is frozen":                                   {args: func(r *room) []string { return append(append(run, owner...), r.mounts()...) }, then: "pause"},
		"one that ended and is there, since it may be started": {args: func(r *room) []string { return append(append(run, owner...), r.mounts()...) }, then: "stop"},
		"one that runs, by its label": {args: func(r *room) []string {
			return append(append(run, owner...), "--label", conversationLabel+"="+storage.Dashed(r.id))
		}},
		"one that runs, by its name": {args: func(r *room) []string {
			return append(run, "--name", "agent-server-conversation-"+storage.Dashed(r.id))
		}},
		"one that has the history alone": {args: func(r *room) []string { return append(run, r.mounts()[:2]...) }},
		"a stranger's, with a directory of the workspace": {args: func(r *room) []string {
			return append(run, "--volume", filepath.Join(r.root, r.runtime, "workspace", "repo")+":/repo:ro")
		}},
	} {
		digit := digits[:1]
		digits = digits[1:]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, other := newRoom(t, e, digit), newRoom(t, e, "0")
			require.NoError(t, os.Mkdir(filepath.Join(r.root, r.runtime, "workspace", "repo"), 0o700))
			require.Empty(t, r.hold(t))
			container := e.start(t, row.args(r)...)
			if row.then != "" {
				e.docker(t, nil, row.then, container)
			}
			require.Contains(t, r.hold(t), "in use by container")
			require.Equal(t, r.hold(t), r.planned(t))
			require.Equal(t, box.ClassConflict, box.ClassOf(r.layout.Archive(t.Context(), r.id)))
			require.Empty(t, other.hold(t), "it is not the other's")
			e.docker(t, nil, "rm", "--force", container)
			require.Empty(t, r.hold(t))
			require.Empty(t, r.planned(t))
		})
	}
}

func TestARealDockerContainerOfWhichNothingSaysWhoseItIsKeepsAll(t *testing.T) { //nolint:paralleltest // it keeps the conversations of the other tests too
	e := realEngine(t)
	r := newRoom(t, e, "1")
	nameless := e.start(t, "run", "--detach", "--label", ownerLabel+"=0123456789abcdef01234567")
	require.Contains(t, r.hold(t), "nothing says whose it is")
	e.docker(t, nil, "rm", "--force", nameless)
	require.Empty(t, r.hold(t))
}

func TestScenario87ARealDockerContainerKeepsItsRuntimeFromAPass(t *testing.T) {
	t.Parallel()
	e := realEngine(t)
	r := newRoom(t, e, "a0")
	pass, err := reclaim.Open(r.root, reclaim.Options{
		Layouts: []reclaim.Layout{r.layout},
		Unsaved: func(context.Context, string) (string, error) { return "", nil },
	})
	require.NoError(t, err)
	defer pass.Close()
	whole := func() (planned string) {
		t.Helper()
		plan, err := pass.Do(t.Context(), box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{r.id}})
		require.NoError(t, err)
		require.Len(t, plan.Items, 1)
		require.Equal(t, r.runtime, plan.Items[0].Path)
		require.Empty(t, plan.Items[0].Skipped)
		return plan.PlanID
	}
	apply := func(plan string) (skipped string) {
		t.Helper()
		report, err := pass.Do(t.Context(), box.ReclaimRequest{PlanID: plan})
		require.NoError(t, err)
		require.Len(t, report.Items, 1)
		return report.Items[0].Skipped
	}
	kept := func() {
		t.Helper()
		require.FileExists(t, filepath.Join(r.root, r.runtime, "work"))
		archived, _, err := archivedIn(r.root, r.id)
		require.NoError(t, err)
		require.False(t, archived)
	}
	plan := whole()
	// As an agent-server starts one: what stops is gone.
	container := e.start(t, append([]string{"run", "--detach", "--rm"}, r.mounts()...)...)
	require.Contains(t, apply(plan), "in use by container")
	kept()
	e.docker(t, nil, "stop", container)
	await(t, "the engine to remove what was stopped", func() bool { return r.hold(t) == "" })

	// One that no list tells from others: it has all of the box, and works inside.
	plan = whole()
	container = e.start(t, "run", "--detach", "--volume", r.root+":/box", "--workdir", "/box/"+r.runtime+"/workspace")
	require.Regexp(t, `^in use by process \d+`, apply(plan))
	kept()
	e.docker(t, nil, "rm", "--force", container)

	require.Empty(t, apply(whole()))
	require.NoDirExists(t, filepath.Join(r.root, r.runtime))
	archived, _, err := archivedIn(r.root, r.id)
	require.NoError(t, err)
	require.True(t, archived)
}

func archivedIn(root, conversation string) (bool, time.Time, error) {
	below, err := os.OpenRoot(root)
	if err != nil {
		return false, time.Time{}, err
	}
	defer below.Close()
	return storage.Archived(below, conversation)
}
