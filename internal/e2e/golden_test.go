package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workers"
)

// update records the histories of this run as golden ones. They are never
// edited, and never deleted while a workflow of that age may live: a change that
// does not replay them needs a version in the workflow.
var update = flag.Bool("update", false, "record the histories of this run in workflows/testdata/histories")

// golden replays the history of a workspace with the code as it is, and records
// it under a name when asked to.
func golden(t *testing.T, address, ws, name string) {
	t.Helper()
	c, err := client.DialContext(t.Context(), client.Options{HostPort: address})
	require.NoError(t, err)
	defer c.Close()
	var history historypb.History
	it := c.GetWorkflowHistory(t.Context(), box.WorkflowID(ws), "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for it.HasNext() {
		event, err := it.Next()
		require.NoError(t, err)
		history.Events = append(history.Events, event)
	}
	data, err := protojson.Marshal(&history) // before the replay, which writes into the events it is given
	require.NoError(t, err)
	r := worker.NewWorkflowReplayer()
	workers.Register(r)
	require.NoError(t, r.ReplayWorkflowHistory(nil, &history), "%s does not replay", name)
	if !*update {
		return
	}
	data = scrub(data)
	path := filepath.Join("..", "..", "workflows", "testdata", "histories", name+".json")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, append(data, '\n'), 0o644))
	t.Logf("recorded %s: %d events", path, len(history.Events))
}

// scrub takes the names of this machine out of a history.
func scrub(history []byte) []byte {
	identity := regexp.MustCompile(`"(identity|binaryChecksum|buildId)":\s*"[^"]*"`)
	return identity.ReplaceAll(history, []byte(`"$1":"recorded"`))
}

func (i *installation) golden(ws, name string) {
	i.t.Helper()
	golden(i.t, fmt.Sprintf("127.0.0.1:%d", i.port), ws, name)
}
