package e2e_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine"
)

func TestEngineCarriesOnAfterARestart(t *testing.T) {
	t.Parallel()
	// The name holds what would end a path in SQLite's URI form.
	dataDir := filepath.Join(t.TempDir(), "data #1 100%?x=y")
	first := startEngine(t, engine.Options{DataDir: dataDir})
	c := dialEngine(t, first)
	stopWorker := startWorker(t, c)
	startWorkflow(t, c, "box/asleep", sleeper, 4*time.Second, "woke up")
	inTimer(t, c, "box/asleep")
	stopWorker()
	c.Close()
	first.Stop()
	first.Stop() // twice is fine

	require.FileExists(t, filepath.Join(dataDir, "engine", "temporal.db"))
	require.NoFileExists(t, filepath.Join(dataDir, "engine", "temporal.db-wal"), "the log is put into the file at a stop")
	requireFileClosed(t, dataDir)

	second := startEngine(t, engine.Options{DataDir: dataDir})
	require.NotEqual(t, first.Address(), second.Address())
	c = dialEngine(t, second)
	startWorker(t, c)
	require.Equal(t, "woke up", result(t, c, "box/asleep"))
	require.NoError(t, second.Err())
}

// requireFileClosed looks for open descriptors below dataDir.
func requireFileClosed(t *testing.T, dataDir string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Log("open files are looked at on Linux only")
		return
	}
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil {
			continue // closed in between
		}
		rel, err := filepath.Rel(dataDir, target)
		require.False(t, err == nil && filepath.IsLocal(rel), "still open after Stop: %s", target)
	}
}

func TestEngineReconcilesAnExistingFile(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	first := startEngine(t, engine.Options{
		DataDir:          dataDir,
		SearchAttributes: map[string]enumspb.IndexedValueType{"BoxState": enumspb.INDEXED_VALUE_TYPE_KEYWORD},
	})
	require.Equal(t, engine.DefaultRetention, retention(t, dialEngine(t, first)))
	first.Stop()

	second := startEngine(t, engine.Options{
		DataDir:   dataDir,
		Retention: 30 * 24 * time.Hour,
		SearchAttributes: map[string]enumspb.IndexedValueType{
			"BoxState": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
			"BoxEpoch": enumspb.INDEXED_VALUE_TYPE_INT,
		},
	})
	c := dialEngine(t, second)
	require.Equal(t, 30*24*time.Hour, retention(t, c))
	startWorker(t, c)
	// An added attribute counts from the first call on, in the frontend (which
	// takes it here) as in the history service (which takes the upsert).
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: "box/attributed", TaskQueue: engineQueue,
		TypedSearchAttributes: temporal.NewSearchAttributes(
			temporal.NewSearchAttributeKeyKeyword("BoxState").ValueSet("running"),
			temporal.NewSearchAttributeKeyInt64("BoxEpoch").ValueSet(3),
		),
	}, attributed, int64(4))
	require.NoError(t, err)
	require.NoError(t, run.Get(t.Context(), nil))
	require.Eventually(t, func() bool {
		count, err := c.CountWorkflow(t.Context(), &workflowservice.CountWorkflowExecutionsRequest{
			Query: "BoxState = 'running' AND BoxEpoch = 4",
		})
		return err == nil && count.GetCount() == 1
	}, within, 50*time.Millisecond)
	c.Close()
	second.Stop()

	_, err = engine.Start(t.Context(), engine.Options{
		DataDir:          dataDir,
		SearchAttributes: map[string]enumspb.IndexedValueType{"BoxEpoch": enumspb.INDEXED_VALUE_TYPE_KEYWORD},
	})
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "BoxEpoch has the type Int")
}

func retention(t *testing.T, c client.Client) time.Duration {
	t.Helper()
	d, err := c.WorkflowService().DescribeNamespace(t.Context(),
		&workflowservice.DescribeNamespaceRequest{Namespace: engine.DefaultNamespace})
	require.NoError(t, err)
	return d.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
}

func TestEngineNamesThePortThatIsTaken(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	port := taken.Addr().(*net.TCPAddr).Port

	for flag, o := range map[string]engine.Options{
		"--port":    {DataDir: dataDir, GRPCPort: port},
		"--ui-port": {DataDir: dataDir, UIPort: port},
	} {
		_, err := engine.Start(t.Context(), o)
		require.Equal(t, box.ClassInvalid, box.ClassOf(err))
		require.ErrorContains(t, err, fmt.Sprintf("127.0.0.1:%d is taken", port))
		require.ErrorContains(t, err, flag+" ")
	}
	// Neither try made a file, or kept the directory or a port.
	require.NoFileExists(t, filepath.Join(dataDir, "engine", "temporal.db"))
	require.NoError(t, taken.Close())
	e := startEngine(t, engine.Options{DataDir: dataDir, GRPCPort: port})
	require.Equal(t, fmt.Sprintf("127.0.0.1:%d", port), e.Address())
}

func TestEngineHasItsDirectoryToItself(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	startEngine(t, engine.Options{DataDir: dataDir, NoUI: true})
	_, err := engine.Start(t.Context(), engine.Options{DataDir: dataDir})
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "in use by another engine in this process")
	require.ErrorContains(t, err, dataDir)
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(engine.Restore(t.Context(), fakeBackup(t), dataDir)))
}

func fakeBackup(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup.db")
	require.NoError(t, os.WriteFile(path, []byte("not read before the lock is held"), 0o600))
	return path
}

func TestEngineRefusesOptionsThatCannotWork(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*engine.Options)
		field string
	}{
		{"no data directory", func(o *engine.Options) { o.DataDir = "" }, "data"},
		{"a public address", func(o *engine.Options) { o.Host = "0.0.0.0" }, "host"},
		{"a name for an address", func(o *engine.Options) { o.Host = "example.com" }, "host"},
		{"a port beyond the last", func(o *engine.Options) { o.GRPCPort = 65536 }, "port"},
		{"a negative port", func(o *engine.Options) { o.UIPort = -1 }, "ui-port"},
		{"one port for both", func(o *engine.Options) { o.GRPCPort, o.UIPort = 7233, 7233 }, "ui-port"},
		{"retention under an hour", func(o *engine.Options) { o.Retention = time.Minute }, "retention"},
		{"an attribute with no type", func(o *engine.Options) {
			o.SearchAttributes = map[string]enumspb.IndexedValueType{"BoxState": enumspb.INDEXED_VALUE_TYPE_UNSPECIFIED}
		}, "search-attributes"},
		{"more attributes than there is room for", func(o *engine.Options) {
			o.SearchAttributes = map[string]enumspb.IndexedValueType{}
			for i := range 4 {
				o.SearchAttributes[fmt.Sprintf("Time%d", i)] = enumspb.INDEXED_VALUE_TYPE_DATETIME
			}
		}, "search-attributes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := engine.Options{DataDir: t.TempDir(), NoUI: false}
			tt.spoil(&o)
			_, err := engine.Start(t.Context(), o)
			var refused *box.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, box.ClassInvalid, refused.Class)
			require.Equal(t, tt.field, refused.Field)
		})
	}
}

func TestEngineStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := engine.Start(ctx, engine.Options{DataDir: dataDir})
	require.Equal(t, box.ClassCanceled, box.ClassOf(err), "%v", err)
	startEngine(t, engine.Options{DataDir: dataDir}) // and nothing is in the way
}
