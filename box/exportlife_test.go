package box_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestExportsLiveFromTheEndOfTheBox(t *testing.T) {
	t.Parallel()
	ended := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	ledger := func(policy box.Policy, last box.LedgerKind, data string) []box.LedgerEntry {
		out := []box.LedgerEntry{{Seq: 1, ID: "c", Kind: box.LedgerCreateIntent, Epoch: 1, At: ended.Add(-time.Hour)}}
		spec := box.LedgerCreate{Spec: box.Spec{Version: box.WireVersion, Workspace: "ws", Owner: "o", Provider: "local", Policy: policy}}
		data0, err := json.Marshal(spec)
		require.NoError(t, err)
		out[0].Data = data0
		if last != "" {
			out = append(out, box.LedgerEntry{Seq: 2, ID: "d", Kind: last, Epoch: 1, At: ended, Data: []byte(data)},
				box.LedgerEntry{Seq: 3, ID: "e", Kind: box.LedgerExportsDeleted, At: ended.Add(time.Hour)})
		}
		return out
	}
	for name, row := range map[string]struct {
		entries []box.LedgerEntry
		due     time.Time
		stays   bool
	}{
		"by default 90 days":     {ledger(box.Policy{}, box.LedgerDeleted, `{"by":"o"}`), ended.Add(90 * 24 * time.Hour), false},
		"as the policy says":     {ledger(box.Policy{ExportLife: box.Duration(time.Hour)}, box.LedgerDeleted, `{"by":"o"}`), ended.Add(time.Hour), false},
		"a policy of never":      {ledger(box.Policy{ExportLife: box.Never}, box.LedgerDeleted, `{"by":"o"}`), time.Time{}, true},
		"it was abandoned":       {ledger(box.Policy{ExportLife: box.Duration(time.Hour)}, box.LedgerAbandoned, `{}`), time.Time{}, true},
		"it lives":               {ledger(box.Policy{ExportLife: box.Duration(time.Hour)}, "", ""), time.Time{}, false},
		"it is being deleted":    {ledger(box.Policy{ExportLife: box.Duration(time.Hour)}, box.LedgerDeleteIntent, `{"by":"o"}`), time.Time{}, false},
		"only its end is stored": {[]box.LedgerEntry{{Seq: 1, ID: "d", Kind: box.LedgerDeleted, Epoch: 1, At: ended}}, ended.Add(90 * 24 * time.Hour), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			life, err := box.ExportLifeOf("ws", row.entries)
			require.NoError(t, err)
			assert.Equal(t, row.due, life.Due)
			assert.NotEmpty(t, life.Reason)
			if !row.due.IsZero() {
				assert.Equal(t, ended, life.Ended)
				assert.False(t, life.Over(row.due.Add(-1)))
				assert.True(t, life.Over(row.due), "equal counts as due")
			}
			assert.Equal(t, !row.due.IsZero(), life.Over(ended.AddDate(50, 0, 0)))
			assert.Equal(t, row.stays, life.Stays(ended), "equal counts as closed")
			assert.False(t, life.Stays(ended.Add(-1)))
		})
	}
	whole := ledger(box.Policy{}, box.LedgerDeleted, `{"by":"o"}`)
	for name, entries := range map[string][]box.LedgerEntry{
		"no entry": nil, "its beginning is missing": whole[1:], "of another workspace": ledger(box.Policy{}, "other", `{}`),
	} {
		_, err := box.ExportLifeOf("ws", entries)
		assert.Error(t, err, name)
	}
}

func TestATokenForAnExportIsBoundToWhatWasShown(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	token := box.ExportToken("shown", at)
	life := box.ExportTokenLife.Std()
	require.NoError(t, box.CheckExportToken(token, "shown", at))
	require.NoError(t, box.CheckExportToken(token, "shown", at.Add(life)))
	require.NoError(t, box.CheckExportToken(token, "shown", at.Add(-life)), "two clocks may differ")
	require.NoError(t, box.CheckExportToken(box.ExportToken("shown", time.Unix(0, 0)), "shown", time.Unix(0, 0)))
	for name, row := range map[string]struct {
		token, shown string
		now          time.Time
		class        box.Class
	}{
		"something else is shown": {token, "other", at, box.ClassFailedPrecondition},
		"it is too old":           {token, "shown", at.Add(life + 1), box.ClassFailedPrecondition},
		"it is of the future":     {token, "shown", at.Add(-life - 1), box.ClassFailedPrecondition},
		"its time was changed":    {"1" + token, "shown", at, box.ClassFailedPrecondition},
		"its sum was cut":         {token[:len(token)-1], "shown", at, box.ClassFailedPrecondition},
		"it is empty":             {"", "shown", at, box.ClassInvalid},
		"it is a word":            {"yes-please!", "shown", at, box.ClassFailedPrecondition},
		"it is no number":         {"!-" + strings.Repeat("a", 20), "shown", at, box.ClassInvalid},
		"it is below zero":        {box.ExportToken("shown", time.Unix(-5, 0)), "shown", at, box.ClassInvalid},
	} {
		assert.Equal(t, row.class, box.ClassOf(box.CheckExportToken(row.token, row.shown, row.now)), name)
	}
}
