package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	operatorservicepb "go.temporal.io/api/operatorservice/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowservicepb "go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/config"
)

// server is the least of a Temporal that the SDK's own client and workers need.
type server struct {
	workflowservicepb.UnimplementedWorkflowServiceServer
	operatorservicepb.UnimplementedOperatorServiceServer

	address    string
	attributes map[string]enumspb.IndexedValueType
	identities []string        // of workers
	polled     chan string     // queues that workers ask for work
	stop       context.Context //nolint:containedctx // ends every wait for work
	end        context.CancelFunc
}

func (*server) GetSystemInfo(context.Context, *workflowservicepb.GetSystemInfoRequest) (*workflowservicepb.GetSystemInfoResponse, error) {
	return &workflowservicepb.GetSystemInfoResponse{ServerVersion: "1.2.3", Capabilities: &workflowservicepb.GetSystemInfoResponse_Capabilities{}}, nil
}

func (*server) DescribeNamespace(_ context.Context, r *workflowservicepb.DescribeNamespaceRequest) (*workflowservicepb.DescribeNamespaceResponse, error) {
	return &workflowservicepb.DescribeNamespaceResponse{
		NamespaceInfo: &namespacepb.NamespaceInfo{Name: r.GetNamespace()},
		Config:        &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(90 * 24 * time.Hour)},
	}, nil
}

func (s *server) ListSearchAttributes(context.Context, *operatorservicepb.ListSearchAttributesRequest) (*operatorservicepb.ListSearchAttributesResponse, error) {
	return &operatorservicepb.ListSearchAttributesResponse{CustomAttributes: s.attributes}, nil
}

func (s *server) DescribeTaskQueue(_ context.Context, r *workflowservicepb.DescribeTaskQueueRequest) (*workflowservicepb.DescribeTaskQueueResponse, error) {
	out := &workflowservicepb.DescribeTaskQueueResponse{}
	if r.GetTaskQueueType() == enumspb.TASK_QUEUE_TYPE_WORKFLOW {
		out.Pollers = []*taskqueuepb.PollerInfo{{Identity: "w"}}
	}
	for _, id := range s.identities {
		out.Pollers = append(out.Pollers, &taskqueuepb.PollerInfo{Identity: id})
	}
	return out, nil
}

func (s *server) poll(ctx context.Context, queue string) {
	select {
	case s.polled <- queue:
	default:
	}
	select {
	case <-ctx.Done():
	case <-s.stop.Done():
	}
}

func (s *server) PollWorkflowTaskQueue(ctx context.Context, r *workflowservicepb.PollWorkflowTaskQueueRequest) (*workflowservicepb.PollWorkflowTaskQueueResponse, error) {
	s.poll(ctx, r.GetTaskQueue().GetName())
	return &workflowservicepb.PollWorkflowTaskQueueResponse{}, nil
}

func (s *server) PollActivityTaskQueue(ctx context.Context, r *workflowservicepb.PollActivityTaskQueueRequest) (*workflowservicepb.PollActivityTaskQueueResponse, error) {
	s.poll(ctx, r.GetTaskQueue().GetName())
	return &workflowservicepb.PollActivityTaskQueueResponse{}, nil
}

func startServer(t *testing.T, options ...grpc.ServerOption) *server {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{
		address: l.Addr().String(), polled: make(chan string, 100),
		attributes: map[string]enumspb.IndexedValueType{
			"BoxProvider": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "BoxState": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
			"BoxOwner": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "BoxNextActionAt": enumspb.INDEXED_VALUE_TYPE_DATETIME,
			"BoxSuspendedSince": enumspb.INDEXED_VALUE_TYPE_DATETIME, "BoxEpoch": enumspb.INDEXED_VALUE_TYPE_INT,
			"BoxBlocked": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		},
	}
	s.stop, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // ended by the test itself
	g := grpc.NewServer(options...)
	workflowservicepb.RegisterWorkflowServiceServer(g, s)
	operatorservicepb.RegisterOperatorServiceServer(g, s)
	alive := health.NewServer()
	alive.SetServingStatus("temporal.api.workflowservice.v1.WorkflowService", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, alive)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		s.end()
		g.Stop()
		<-done
	})
	return s
}

// locked is a buffer that a process writes while a test reads it.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func program(data, address string, out, errs io.Writer, args ...string) cli.Env {
	return cli.Env{
		Args: args, Stdin: strings.NewReader(""), Stdout: out, Stderr: errs,
		Environ: []string{
			"BOXKEEPER_DATA=" + data, "BOXKEEPER_LISTEN=127.0.0.1:0", "TEMPORAL_CONFIG_FILE=" + data + "/none.toml", "TEMPORAL_ADDRESS=" + address,
		},
	}
}

func TestWorkerServesUntilItIsToldToEnd(t *testing.T) {
	t.Parallel()
	s, data := startServer(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr locked
	code := make(chan int, 1)
	go func() {
		code <- cli.Execute(ctx, cli.Root(program(data, s.address, &stdout, &stderr, "worker")))
	}()
	queues := map[string]bool{}
	limit := time.After(30 * time.Second)
	for !queues["boxkeeper"] || !queues["boxkeeper-local"] {
		select {
		case q := <-s.polled:
			queues[q] = true
		case <-limit:
			t.Fatalf("no worker asked for work; it says:\n%s", stderr.String())
		case got := <-code:
			t.Fatalf("it ended with %d:\n%s", got, stderr.String())
		}
	}
	where := regexp.MustCompile(`"address": "(127\.0\.0\.1:\d+)"`).FindStringSubmatch(stderr.String())
	require.NotNil(t, where, stderr.String())
	assert.Equal(t, http.StatusOK, fetch(t, where[1], "/healthz"))
	assert.Equal(t, http.StatusOK, fetch(t, where[1], "/readyz"))
	assert.Equal(t, http.StatusOK, fetch(t, where[1], "/metrics"))
	cancel()
	s.end()
	select {
	case got := <-code:
		assert.Equal(t, 0, got, stderr.String())
	case <-time.After(40 * time.Second):
		t.Fatal("it does not end")
	}
	assert.Empty(t, stdout.String())
	key, err := os.ReadFile(filepath.Join(data, "installation.key"))
	require.NoError(t, err)
	assert.NotContains(t, stderr.String(), strings.TrimSpace(string(key)))
	l, err := net.Listen("tcp", where[1]) //nolint:noctx // closed at once
	require.NoError(t, err, "the port is free again")
	require.NoError(t, l.Close())
}

func fetch(t *testing.T, address, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	require.NoError(t, err)
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestWorkerSaysWhatKeepsItFromStarting(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	var stdout, stderr locked
	run := func(env cli.Env, extra ...string) int {
		stderr.mu.Lock()
		stderr.buf.Reset()
		stderr.mu.Unlock()
		env.Environ = append(env.Environ, extra...)
		return cli.Execute(t.Context(), cli.Root(env))
	}
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	address := taken.Addr().String()
	assert.Equal(t, 2, run(program(t.TempDir(), s.address, &stdout, &stderr, "worker"), "BOXKEEPER_LISTEN="+address))
	assert.Contains(t, stderr.String(), "listen: cannot listen on "+address)
	assert.Equal(t, 2, run(program(t.TempDir(), s.address, &stdout, &stderr, "worker", "--provider", "cloud")))
	assert.Contains(t, stderr.String(), `no instance "cloud"`)
	assert.Equal(t, 2, run(program(t.TempDir(), s.address, &stdout, &stderr, "worker"), "BOXKEEPER_EXPORTS=mem://"))
	assert.Contains(t, stderr.String(), "forgets every history")
	assert.Equal(t, 2, run(program(t.TempDir(), s.address, &stdout, &stderr, "worker"), "BOXKEEPER_INSTALLATION_SECRET=env:SHORT", "SHORT=x"))
	assert.Contains(t, stderr.String(), "installation_secret")
	require.NoError(t, taken.Close())
	assert.Equal(t, 5, run(program(t.TempDir(), address, &stdout, &stderr, "worker")))
	assert.Contains(t, stderr.String(), "Temporal cannot be reached at "+address)
}

func TestCheckLooksAtEverything(t *testing.T) {
	t.Parallel()
	s, data := startServer(t), t.TempDir()
	check := func() (int, map[string]string, string) {
		var stdout, stderr locked
		code := cli.Execute(t.Context(), cli.Root(program(data, s.address, &stdout, &stderr, "check", "-o", "json")))
		var out struct {
			OK     bool
			Checks []struct{ Check, Result, Text string }
		}
		require.NoError(t, json.Unmarshal([]byte(stdout.String()), &out), stdout.String()+stderr.String())
		assert.Equal(t, code == 0, out.OK)
		results := map[string]string{}
		for _, c := range out.Checks {
			results[c.Check] = c.Result
		}
		return code, results, stdout.String()
	}
	code, results, _ := check()
	assert.Equal(t, 0, code)
	assert.Equal(t, map[string]string{
		"configuration": "ok", "temporal": "ok", "namespace": "ok", "search attributes": "ok", "workers": "ok", "workers of local": "warn",
		"export store": "warn", "installation key": "warn", "providers": "warn", "notices": "ok",
	}, results)
	made, err := os.ReadDir(data)
	require.NoError(t, err)
	assert.Empty(t, made, "looking makes nothing: no key, no directory")

	require.NoError(t, os.Mkdir(filepath.Join(data, "exports"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "installation.key"), []byte(strings.Repeat("a", 64)), 0o600))
	_, results, _ = check()
	assert.Equal(t, "ok", results["installation key"])
	assert.Equal(t, "ok", results["export store"])
	assert.Equal(t, "ok", results["clock"])
	assert.Equal(t, "warn", results["provider local"], "its directory is not there yet")
	assert.NoDirExists(t, filepath.Join(data, "boxes"))
	require.NoError(t, os.MkdirAll(filepath.Join(data, "boxes", "local"), 0o700))
	_, results, text := check()
	assert.Equal(t, "ok", results["provider local"], text)
	assert.NotContains(t, text, strings.Repeat("a", 64))

	program := filepath.Join(t.TempDir(), "agent-server")
	require.NoError(t, os.WriteFile(filepath.Join(data, "boxkeeper.toml"), []byte("[providers.local]\nagent_server = [\""+program+"\"]\n"), 0o600))
	code, results, text = check()
	assert.Equal(t, 4, code)
	assert.Equal(t, "fail", results["agent-server of local"], text)
	assert.Contains(t, text, "providers.local.agent_server")
	cfg, err := config.Load(filepath.Join(data, "boxkeeper.toml"), nil)
	require.NoError(t, err)
	problems := cli.ProgramProblems(cfg)
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0], "providers.local.agent_server", "boxkeeperd says the same when it starts")
	require.NoError(t, os.WriteFile(program, nil, 0o700))
	assert.Empty(t, cli.ProgramProblems(cfg))
	_, results, text = check()
	assert.Equal(t, "ok", results["agent-server of local"], text)

	s.attributes["BoxEpoch"] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
	delete(s.attributes, "BoxOwner")
	require.NoError(t, os.Chmod(filepath.Join(data, "installation.key"), 0o644))
	code, results, text = check()
	assert.Equal(t, 4, code)
	assert.Equal(t, "fail", results["search attributes"])
	assert.Equal(t, "fail", results["installation key"])
	assert.Contains(t, text, "BoxEpoch is Keyword, not Int, BoxOwner (Keyword) is missing")
	entries, err := os.ReadDir(filepath.Join(data, "exports"))
	require.NoError(t, err)
	for _, e := range entries {
		assert.NotContains(t, e.Name(), "clock", "the probe is taken away")
	}
}

func TestCheckTellsOnceOfAnInstanceThatIsOff(t *testing.T) {
	t.Parallel()
	s, data := startServer(t), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(data, "boxkeeper.toml"), []byte("[providers.prod]\ndriver = \"digitalocean\"\n[providers.local]\n"), 0o600))
	run := func(address string) string {
		var stdout, stderr locked
		cli.Execute(t.Context(), cli.Root(program(data, address, &stdout, &stderr, "check")))
		return stdout.String() + stderr.String()
	}
	once := func(when string) {
		t.Helper()
		text := run(s.address)
		told := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !strings.Contains(line, "prod") })
		assert.Len(t, told, 1, when)
		assert.Contains(t, text, "it is off: it has no credentials", when)
	}
	once("before there is a key")
	require.NoError(t, os.WriteFile(filepath.Join(data, "installation.key"), []byte(strings.Repeat("a", 64)), 0o600))
	once("with a key")
}

func TestCheckWithNoTemporalStillLooksAtTheRest(t *testing.T) {
	t.Parallel()
	got := runWith(t, nil, "check")
	assert.Equal(t, 5, got.code)
	assert.Regexp(t, `fail +temporal +Temporal cannot be reached at temporal.test:7233`, got.stdout)
	assert.Regexp(t, `warn +export store +there is no directory`, got.stdout)
}
