package e2e_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
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

// update records the histories of this run that are not there as golden ones.
// They are never edited, and never deleted while a workflow of that age may live:
// a change that does not replay them needs a version in the workflow.
var update = flag.Bool("update", false, "record the histories of this run that workflows/testdata/histories does not have")

// golden replays the history of a workspace with the code as it is, and records
// it under a name when asked to and none of that name is there.
func golden(t *testing.T, address, ws, name string) {
	t.Helper()
	history := historyOf(t, address, ws)
	data, err := protojson.Marshal(history) // before the replay, which writes into the events it is given
	require.NoError(t, err)
	r := worker.NewWorkflowReplayer()
	workers.Register(r)
	require.NoError(t, r.ReplayWorkflowHistory(nil, history), "%s does not replay", name)
	if !*update {
		return
	}
	path := filepath.Join("..", "..", "workflows", "testdata", "histories", name+".json")
	recorded, err := record(path, append(scrub(data), '\n'))
	require.NoError(t, err)
	t.Logf("%s: %d events, recorded: %v", path, len(history.Events), recorded)
}

// historyOf reads the history of a workspace's workflow.
func historyOf(t *testing.T, address, ws string) *historypb.History {
	t.Helper()
	c, err := client.DialContext(t.Context(), client.Options{HostPort: address})
	require.NoError(t, err)
	defer c.Close()
	history := &historypb.History{}
	it := c.GetWorkflowHistory(t.Context(), box.WorkflowID(ws), "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for it.HasNext() {
		event, err := it.Next()
		require.NoError(t, err)
		history.Events = append(history.Events, event)
	}
	return history
}

// record writes a history unless one is there, which stays: it tells what an
// older release did, and a run of today's cannot tell that again.
func record(path string, data []byte) (recorded bool, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = file.Write(data)
	return true, errors.Join(err, file.Close())
}

// TestAGoldenHistoryIsNotRecordedOver keeps an old one as it is.
func TestAGoldenHistoryIsNotRecordedOver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "histories", "life.json")
	recorded, err := record(path, []byte("old"))
	require.NoError(t, err)
	require.True(t, recorded)
	recorded, err = record(path, []byte("new, and longer"))
	require.NoError(t, err)
	require.False(t, recorded)
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(kept))
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
