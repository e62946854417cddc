package workflows_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workflows"
)

// leastHistories is how many lives there are at least.
const leastHistories = 13

// TestGoldenHistoriesReplay replays what real runs recorded: a change that does
// not replay them would break workflows that sleep now.
func TestGoldenHistoriesReplay(t *testing.T) {
	t.Parallel()
	for _, file := range goldenFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			r := worker.NewWorkflowReplayer()
			r.RegisterWorkflowWithOptions(workflows.Box, workflow.RegisterOptions{Name: box.WorkflowType})
			if err := r.ReplayWorkflowHistoryFromJSONFile(nil, file); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The same once more in a process with another zone, one processor, and other
// settings of everything that a worker reads: nothing of that may reach a
// workflow.
func TestGoldenHistoriesReplayWithOtherSettings(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestGoldenHistoriesReplay$", "-test.v", "-test.count", "1")
	cmd.Env = append(os.Environ(),
		"TZ=Asia/Kathmandu", "GOMAXPROCS=1", "LC_ALL=tr_TR.UTF-8",
		"BOXKEEPER_INSTALLATION=ffffffff", "BOXKEEPER_EXPORTS=file:///nowhere", "BOXKEEPER_LISTEN=off", "BOXKEEPER_DATA=/nowhere",
		"TEMPORAL_ADDRESS=nowhere.invalid:1", "TEMPORAL_NAMESPACE=other", "TEMPORAL_DEBUG=true",
	)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "    --- PASS: TestGoldenHistoriesReplay/"); n < leastHistories {
		t.Fatalf("%d histories were replayed\n%s", n, out)
	}
}
