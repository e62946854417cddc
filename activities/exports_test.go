package activities_test

import (
	"context"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestSweepReportsWhatItDeletedAndWhatItCouldNot(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	store, err := exports.OpenWith(t.Context(), "mem://", exports.Options{SpoolDir: t.TempDir(), Now: func() time.Time { return now }})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	for _, workspace := range []string{"over", "alive", "strange"} {
		raw, err := json.Marshal(box.LedgerCreate{Spec: box.Spec{
			Version: box.WireVersion, Workspace: workspace, Owner: "o", Provider: "local", Policy: box.Policy{ExportLife: box.Duration(time.Hour)},
		}})
		require.NoError(t, err)
		if workspace == "strange" {
			raw = []byte(`{}`)
		}
		_, err = store.AppendLedger(t.Context(), workspace, exports.Entry{ID: "c", Kind: exports.KindCreateIntent, Epoch: 1, Data: raw})
		require.NoError(t, err)
		_, err = store.Export(t.Context(), exports.Request{Workspace: workspace, Epoch: 1, Attempt: "a"}, noHistory{}, nil)
		require.NoError(t, err)
	}
	for _, workspace := range []string{"over", "strange"} {
		_, err = store.AppendLedger(t.Context(), workspace, exports.Entry{ID: "d", Kind: exports.KindDeleted, Epoch: 1})
		require.NoError(t, err)
	}
	sweep := func(at time.Time) (out activities.SweepReport) {
		t.Helper()
		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestActivityEnvironment()
		a := &activities.Exports{Store: store}
		env.RegisterActivity(a)
		value, err := env.ExecuteActivity(a.Sweep, activities.SweepInput{At: at})
		require.NoError(t, err)
		require.NoError(t, value.Get(&out))
		return out
	}
	failed := activities.SweepReport{Failed: 1, FailedNames: []string{"strange"}}
	assert.Equal(t, failed, sweep(now.Add(time.Hour)), "its own clock has not come so far")
	now = now.Add(time.Hour)
	assert.Equal(t, failed, sweep(now.Add(-1)), "the engine's clock has not come so far")
	done := sweep(now)
	assert.Equal(t, 1, done.Workspaces)
	assert.Equal(t, 1, done.Exports)
	assert.NotZero(t, done.StoredBytes)
	assert.Equal(t, failed, sweep(now), "the second pass has nothing to do")
}

// noHistory is a box without conversations.
type noHistory struct{}

func (noHistory) Conversations(context.Context) ([]box.ConversationMark, error) { return nil, nil }

func (noHistory) Download(context.Context, string) (io.ReadCloser, int64, error) {
	return nil, 0, box.Errorf(box.ClassNotFound, "there is none")
}
