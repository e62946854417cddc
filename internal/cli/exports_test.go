package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// ended makes a data directory whose workspace "mine" has an export and was
// deleted so long ago.
func ended(t *testing.T, ago time.Duration) (data, export string) {
	t.Helper()
	data = exported(t)
	store, err := exports.OpenWith(t.Context(), "file://"+filepath.Join(data, "exports"), exports.Options{Now: func() time.Time { return now.Add(-ago) }})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	raw, err := json.Marshal(box.LedgerCreate{Spec: box.Spec{Version: box.WireVersion, Workspace: "mine", Owner: "o", Provider: "local"}})
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(data, "exports", "ledger", "mine", "00000001.json")))
	for kind, data := range map[exports.Kind]string{exports.KindCreateIntent: string(raw)} {
		_, err = store.AppendLedger(t.Context(), "mine", exports.Entry{ID: "c", Kind: kind, Epoch: 1, Data: json.RawMessage(data)})
		require.NoError(t, err)
	}
	_, err = store.AppendLedger(t.Context(), "mine", exports.Entry{ID: "d", Kind: exports.KindDeleted, Epoch: 1, Data: json.RawMessage(`{"by":"ann"}`)})
	require.NoError(t, err)
	return data, "exports/mine/0001/a1/manifest.json"
}

func TestAnExportIsDeletedInTwoSteps(t *testing.T) {
	t.Parallel()
	data, export := ended(t, time.Hour)
	manifest := filepath.Join(data, "exports", export)
	list := runIn(t, nil, data, "", "box", "exports", "list", "mine")
	require.Equal(t, 0, list.code, list.stderr)
	assert.Contains(t, list.stdout, export)

	asked := runIn(t, nil, data, "", "box", "exports", "delete", "mine", export)
	require.Equal(t, 0, asked.code, asked.stderr)
	assert.Contains(t, asked.stdout, "Nothing was deleted.")
	assert.Contains(t, asked.stdout, "1 conversation for good: "+talk)
	assert.FileExists(t, manifest)
	assert.Equal(t, 2, runIn(t, nil, data, "", "box", "exports", "delete", "mine", export, "--token", "!").code)
	assert.Equal(t, 4, runIn(t, nil, data, "", "box", "exports", "delete", "mine", export, "--token", "yes").code)
	assert.Equal(t, 2, runIn(t, nil, data, "", "box", "exports", "delete", "other", export).code)
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "exports", "delete", "mine", strings.Replace(export, "a1", "a2", 1)).code)
	assert.FileExists(t, manifest)

	_, command, found := strings.Cut(asked.stdout, "  boxkeeper ")
	require.True(t, found, asked.stdout)
	done := runIn(t, nil, data, "", strings.Fields(command)...)
	require.Equal(t, 0, done.code, done.stderr)
	assert.Contains(t, done.stdout, "Deleted "+export)
	assert.NoFileExists(t, manifest)
	assert.Contains(t, runIn(t, nil, data, "", "box", "exports", "list", "mine").stdout, "has no export")
	// The workspace stays closed, and its ledger can be read.
	history := runIn(t, nil, data, "", "box", "history", "mine", "--verify")
	require.Equal(t, 0, history.code, history.stderr)
	assert.Contains(t, history.stdout, "was closed")
}

func TestSweepListsBeforeItDeletes(t *testing.T) {
	t.Parallel()
	data, export := ended(t, 91*24*time.Hour)
	manifest := filepath.Join(data, "exports", export)
	dry := runIn(t, nil, data, "", "fleet", "sweep", "--dry-run")
	require.Equal(t, 0, dry.code, dry.stderr)
	assert.Contains(t, dry.stdout, "due")
	assert.FileExists(t, manifest)

	done := runIn(t, nil, data, "", "fleet", "sweep", "-o", "json")
	require.Equal(t, 0, done.code, done.stderr)
	var out struct{ Workspaces []exports.Swept }
	require.NoError(t, json.Unmarshal([]byte(done.stdout), &out))
	require.Len(t, out.Workspaces, 1)
	assert.Equal(t, exports.SweepDeleted, out.Workspaces[0].Result)
	assert.NoFileExists(t, manifest)
	again := runIn(t, nil, data, "", "fleet", "sweep")
	require.Equal(t, 0, again.code, again.stderr)
	assert.Contains(t, again.stdout, "There are no exports")

	early, _ := ended(t, 89*24*time.Hour)
	kept := runIn(t, nil, early, "", "fleet", "sweep")
	require.Equal(t, 0, kept.code, kept.stderr)
	assert.Contains(t, kept.stdout, "kept")
	require.NoError(t, os.WriteFile(filepath.Join(early, "exports", "ledger", "mine", "00000001.json"), []byte("{"), 0o600))
	damaged := runIn(t, nil, early, "", "fleet", "sweep")
	assert.Equal(t, 1, damaged.code)
	assert.Contains(t, damaged.stderr, "mine")
	assert.FileExists(t, filepath.Join(early, "exports", export))
}

func TestHistoriesAreReadWithTheKeyOfTheConfiguration(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	id, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(data, "credentials"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(data, "exports"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "credentials", "age"), []byte("# created: today\n"+id.String()+"\n"), 0o600))
	settings := filepath.Join(data, "boxkeeper.toml")
	write := func(identities string) {
		t.Helper()
		require.NoError(t, os.WriteFile(settings, []byte("[encryption]\nrecipients = [\""+id.Recipient().String()+"\"]\nidentities = ["+identities+"]\n"), 0o600))
	}
	write(`"credential:age"`)
	keys, err := exports.ParseKeys([]string{id.Recipient().String()}, []box.Secret{box.Secret(id.String())})
	require.NoError(t, err)
	store, err := exports.OpenWith(t.Context(), "file://"+filepath.Join(data, "exports"), exports.Options{Keys: keys})
	require.NoError(t, err)
	_, err = store.AppendLedger(t.Context(), "mine", exports.Entry{ID: "d", Kind: exports.KindDeleted, Epoch: 1, At: now})
	require.NoError(t, err)
	require.NoError(t, store.Close())

	got := runIn(t, nil, data, "", "box", "history", "mine")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "was closed")
	checked := runIn(t, nil, data, "", "check")
	assert.Contains(t, checked.stdout, "encrypted for 1 recipient")
	shown := runIn(t, nil, data, "", "config")
	assert.Contains(t, shown.stdout, "credential:age")

	require.NoError(t, os.WriteFile(settings, nil, 0o600))
	none := runIn(t, nil, data, "", "box", "history", "mine")
	assert.Equal(t, 1, none.code)
	assert.Contains(t, none.stderr, "not lost")
	assert.NotContains(t, none.stderr, "damaged")
	assert.Empty(t, none.stdout, "nothing can be said of what cannot be read")
	assert.NotContains(t, runIn(t, nil, data, "", "box", "history", "mine", "--verify").stderr, "damaged")
	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(data, "credentials", "other"), []byte(other.String()), 0o600))
	write(`"credential:other"`)
	wrong := runIn(t, nil, data, "", "box", "history", "mine")
	assert.Equal(t, 2, wrong.code)
	assert.Contains(t, wrong.stderr, "encryption.identities")
	for _, out := range []outcome{got, checked, shown, none, wrong} {
		assert.NotContains(t, out.stdout+out.stderr, "AGE-SECRET-KEY-")
	}
}
