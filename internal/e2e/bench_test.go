package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine"
)

// sleepersChild is the argument that makes this binary a node with sleeping
// boxes, to be measured from outside.
const sleepersChild = "sleepers-child"

// BenchmarkSleeping measures what boxes cost that are suspended and wait for
// their 30 days: memory of the one process that holds engine and workers, and
// bytes in the engine's data file. The boxes are fake, the rest is real.
//
//	go test ./internal/e2e -run '^$' -bench Sleeping -benchtime 1x -timeout 30m
func BenchmarkSleeping(b *testing.B) {
	for _, boxes := range []int{1, 1000} {
		b.Run(strconv.Itoa(boxes), func(b *testing.B) {
			for b.Loop() {
				measureSleepers(b, boxes)
			}
		})
	}
}

func measureSleepers(b *testing.B, boxes int) {
	b.Helper()
	dir := b.TempDir()
	self, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.CommandContext(b.Context(), self, sleepersChild, dir, strconv.Itoa(boxes))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	lines := bufio.NewScanner(out)
	require.True(b, lines.Scan(), "the node ended")
	require.Equal(b, "sleeping", lines.Text())
	b.ReportMetric(float64(residentBytes(b, cmd.Process.Pid))/(1<<20), "MiB-resident")
	require.NoError(b, in.Close()) // it then ends in order, which empties the log of the data file
	require.NoError(b, cmd.Wait())
	file, err := os.Stat(filepath.Join(dir, "engine", "temporal.db"))
	require.NoError(b, err)
	b.ReportMetric(float64(file.Size()), "file-bytes")
	b.ReportMetric(float64(file.Size())/float64(boxes), "file-bytes/box")
}

func residentBytes(b *testing.B, pid int) int64 {
	b.Helper()
	if runtime.GOOS != "linux" {
		b.Skip("reads /proc")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	for line := range strings.Lines(string(status)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	b.Fatal("no resident size")
	return 0
}

// runSleepers is the node: it puts boxes to sleep, says so, and waits for the
// end of its input.
func runSleepers(args []string) int {
	boxes, err := strconv.Atoi(args[1])
	if err == nil {
		err = sleepers(context.Background(), args[0], boxes)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func sleepers(ctx context.Context, dir string, boxes int) error {
	node, err := newFakeNode(ctx, dir, false)
	if err != nil {
		return err
	}
	defer node.stop()
	c := node.client
	for n := range boxes {
		spec := box.Spec{Version: box.WireVersion, Workspace: fmt.Sprintf("sleeper-%d", n), Provider: node.provider.Name(), Policy: box.Policy{Idle: box.Duration(time.Second)}}
		id := box.WorkflowID(spec.Workspace)
		if _, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: box.TaskQueue}, box.WorkflowType, box.Input{Spec: spec}); err != nil {
			return err
		}
	}
	if err := untilAsleep(ctx, c, boxes); err != nil {
		return err
	}
	debug.FreeOSMemory()
	fmt.Println("sleeping")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

func untilAsleep(ctx context.Context, c client.Client, boxes int) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(25 * time.Minute)
	for {
		count, err := c.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: box.SearchState + " = 'suspended'"})
		if err != nil {
			return err
		}
		if count.GetCount() >= int64(boxes) {
			return nil
		}
		select {
		case <-deadline:
			return fmt.Errorf("%d of %d boxes sleep", count.GetCount(), boxes)
		case <-tick.C:
		}
	}
}

// TestSleepers keeps the benchmark alive, with a few boxes.
func TestSleepers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, sleepersChild, dir, "5")
	cmd.Stdin = strings.NewReader("") // it ends as soon as they sleep
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "sleeping")
	require.NoError(t, engine.IntegrityCheck(t.Context(), dir))
}
