package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestSecretsOfAnExportAreListedFromTheStoreAlone(t *testing.T) {
	t.Parallel()
	value := "ghp" + "_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8" // so that no file here holds one
	data := exported(t)
	none := runIn(t, nil, data, "", "box", "exports", "secrets", "mine")
	require.Equal(t, 0, none.code, none.stderr)
	assert.Contains(t, none.stdout, "exports/mine/0001/a1/manifest.json: 0 possible secrets; the policy is keep.")

	store, err := exports.OpenWith(t.Context(), "file://"+filepath.Join(data, "exports"), exports.Options{Now: func() time.Time { return now.AddDate(50, 0, 0) }})
	require.NoError(t, err)
	src := source{packedTalk(t, "hello", "my token: "+value)}
	request := exports.Request{Workspace: "mine", Epoch: 1, Attempt: "a2"}
	receipt, err := store.Export(t.Context(), request, src, nil)
	require.NoError(t, err)
	require.Equal(t, 1, receipt.Secrets.Found)
	request.Attempt, request.Secrets = "a3", box.SecretsBlock
	_, err = store.Export(t.Context(), request, src, nil)
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	require.NoError(t, store.Close())

	shown := runIn(t, nil, data, "", "box", "exports", "secrets", "mine")
	require.Equal(t, 0, shown.code, shown.stderr)
	assert.Contains(t, shown.stdout, "github-pat")
	assert.Contains(t, shown.stdout, "events/event-00001-e1.json")
	assert.Contains(t, shown.stdout, "as it is")
	assert.Contains(t, shown.stdout, "exports/mine/0001/a2/manifest.json: 1 possible secret; the policy is keep.")
	assert.NotContains(t, shown.stdout, value)

	asked := runIn(t, nil, data, "", "box", "exports", "secrets", "mine", "exports/mine/0001/a2/manifest.json", "-o", "json")
	require.Equal(t, 0, asked.code, asked.stderr)
	var out struct {
		Export string
		Report exports.SecretsReport
	}
	require.NoError(t, json.Unmarshal([]byte(asked.stdout), &out))
	assert.Equal(t, "exports/mine/0001/a2/manifest.json", out.Export)
	assert.Equal(t, 1, out.Report.Findings)
	assert.NotContains(t, asked.stdout, value)

	// Of the one that was refused there is only the report.
	refused := runIn(t, nil, data, "", "box", "exports", "secrets", "mine", "exports/mine/0001/a3/secrets.json")
	require.Equal(t, 0, refused.code, refused.stderr)
	assert.Contains(t, refused.stdout, "the policy is block.")
	assert.Contains(t, refused.stdout, "no\n")

	listed := runIn(t, nil, data, "", "box", "exports", "list", "mine")
	assert.Contains(t, listed.stdout, "SECRETS")
	for name, row := range map[string]struct {
		args []string
		code int
	}{
		"of another workspace":   {[]string{"mine", "exports/other/0001/a1/manifest.json"}, 2},
		"that is no export":      {[]string{"mine", "exports/mine/0001/a1/conversations/x"}, 2},
		"that is not there":      {[]string{"mine", "exports/mine/0001/a9/manifest.json"}, 3},
		"no report there":        {[]string{"mine", "exports/mine/0001/a9/secrets.json"}, 3},
		"no export at all":       {[]string{"other"}, 3},
		"a workspace no one has": {[]string{"No_Such"}, 2},
	} {
		got := runIn(t, nil, data, "", append([]string{"box", "exports", "secrets"}, row.args...)...)
		assert.Equal(t, row.code, got.code, "%s: %s", name, got.stderr)
	}
	report := filepath.Join(data, "exports", "exports", "mine", "0001", "a2", "secrets.json")
	require.NoError(t, os.Chmod(report, 0o600))
	require.NoError(t, os.WriteFile(report, []byte("{}"), 0o600))
	lost := runIn(t, nil, data, "", "box", "exports", "secrets", "mine")
	assert.Equal(t, 1, lost.code)
	assert.Contains(t, lost.stderr, "lost or altered")
}
