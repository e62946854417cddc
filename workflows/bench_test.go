package workflows_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workflows"
)

// BenchmarkReplay replays one whole life: what a worker pays when it meets a
// workflow that it does not hold in memory.
func BenchmarkReplay(b *testing.B) {
	quiet := log.NewStructuredLogger(slog.New(slog.DiscardHandler))
	for b.Loop() {
		r := worker.NewWorkflowReplayer()
		r.RegisterWorkflowWithOptions(workflows.Box, workflow.RegisterOptions{Name: box.WorkflowType})
		if err := r.ReplayWorkflowHistoryFromJSONFile(quiet, filepath.Join("testdata", "histories", "whole-life.json")); err != nil {
			b.Fatal(err)
		}
	}
}
