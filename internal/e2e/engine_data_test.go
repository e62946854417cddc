package e2e_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine"
)

func TestEngineMigratesAnOlderFile(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	e := startEngine(t, engine.Options{DataDir: dataDir, NoUI: true})
	c := dialEngine(t, e)
	stopWorker := startWorker(t, c)
	startWorkflow(t, c, "box/old", sleeper, 3*time.Second, "from an older release")
	inTimer(t, c, "box/old")
	stopWorker()
	c.Close()
	e.Stop()

	// The newest step (0.11) added this one table, so the file without it is
	// what a release before it left.
	editFile(t, dataDir, "DROP TABLE current_chasm_executions; PRAGMA user_version = 100001")
	e = startEngine(t, engine.Options{DataDir: dataDir, NoUI: true})

	backups, err := filepath.Glob(filepath.Join(dataDir, "backups", "before-migration-0.10+0.1-*.db"))
	require.NoError(t, err)
	require.Len(t, backups, 1)
	require.Equal(t, 0, tableCount(t, backups[0], "current_chasm_executions"), "the backup is from before the migration")
	c = dialEngine(t, e)
	startWorker(t, c)
	require.Equal(t, "from an older release", result(t, c, "box/old"))
	// Standalone activities live in the added table; on an unmigrated file
	// this call hangs.
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err = c.ExecuteActivity(ctx, client.StartActivityOptions{
		ID: "alone", TaskQueue: engineQueue, StartToCloseTimeout: time.Minute,
	}, "not-run")
	require.NoError(t, err)
	c.Close()
	e.Stop()

	editFile(t, dataDir, "PRAGMA user_version = 120001")
	_, err = engine.Start(t.Context(), engine.Options{DataDir: dataDir})
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	require.ErrorContains(t, err, "made by a newer release")
}

func editFile(t *testing.T, dataDir, script string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dataDir, "engine", "temporal.db"))
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), script)
	require.NoError(t, err)
	require.NoError(t, db.Close())
}

func tableCount(t *testing.T, path, table string) int {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", table).Scan(&n))
	return n
}

func TestEngineBackupIsTakenWhileItRunsAndRestored(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	backup := filepath.Join(t.TempDir(), "engine.db")
	require.Equal(t, box.ClassNotFound, box.ClassOf(engine.Backup(t.Context(), dataDir, backup)), "nothing is there yet")

	e := startEngine(t, engine.Options{DataDir: dataDir, NoUI: true})
	c := dialEngine(t, e)
	stopWorker := startWorker(t, c)
	startWorkflow(t, c, "box/kept", sleeper, 5*time.Second, "in the backup")
	inTimer(t, c, "box/kept")
	require.NoError(t, engine.Backup(t.Context(), dataDir, backup))
	require.Equal(t, box.ClassAlreadyExists, box.ClassOf(engine.Backup(t.Context(), dataDir, backup)))
	startWorkflow(t, c, "box/later", sleeper, time.Millisecond, "not in the backup")
	require.Equal(t, "not in the backup", result(t, c, "box/later"))
	stopWorker()
	c.Close()
	e.Stop()

	require.NoError(t, engine.Restore(t.Context(), backup, dataDir))
	replaced, err := filepath.Glob(filepath.Join(dataDir, "backups", "replaced-*", "temporal.db"))
	require.NoError(t, err)
	require.Len(t, replaced, 1, "the replaced file is kept")
	e = startEngine(t, engine.Options{DataDir: dataDir, NoUI: true})
	c = dialEngine(t, e)
	startWorker(t, c)
	require.Equal(t, "in the backup", result(t, c, "box/kept"))
	_, err = c.DescribeWorkflowExecution(t.Context(), "box/later", "")
	require.Error(t, err, "a workflow from after the backup must not be there")
	require.NoError(t, engine.IntegrityCheck(t.Context(), dataDir), "while the engine runs")
}

// engineChild is this test binary as a program that runs an engine with a
// worker and workflows that write all the time, until it is killed.
const engineChild = "engine-child"

func runEngineChild(args []string) int {
	ctx := context.Background()
	e, err := engine.Start(ctx, engine.Options{DataDir: args[0], NoUI: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c, err := client.DialContext(ctx, client.Options{
		HostPort: e.Address(), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := newWorker(c)
	if err := w.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s/%d", args[1], i)
		_, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: engineQueue},
			sleeper, time.Second, id)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(id) // accepted: from here on it must not be lost
	}
}

func TestEngineLosesNothingToKill9(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	var accepted []string
	// The points of death: amid the writes of the first start, and of a later
	// one on the recovered file.
	for round, after := range []int{1, 12} {
		accepted = append(accepted, killEngine(t, dataDir, fmt.Sprintf("round%d", round), after)...)
		require.NoError(t, engine.IntegrityCheck(t.Context(), dataDir))
	}
	e := startEngine(t, engine.Options{DataDir: dataDir, NoUI: true})
	c := dialEngine(t, e)
	startWorker(t, c)
	for _, id := range accepted {
		require.Equal(t, id, result(t, c, id))
	}
}

// killEngine runs an engine in a child process, kills it after it accepted
// some workflows, and returns their ids.
func killEngine(t *testing.T, dataDir, prefix string, after int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], engineChild, dataDir, prefix)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var accepted []string
	lines := bufio.NewScanner(out)
	for len(accepted) < after && lines.Scan() {
		accepted = append(accepted, lines.Text())
	}
	require.NoError(t, child.Process.Kill())
	for lines.Scan() { // what it accepted until it died
		accepted = append(accepted, lines.Text())
	}
	require.Error(t, child.Wait(), "a killed process does not end well")
	require.GreaterOrEqual(t, len(accepted), after)
	return accepted
}
