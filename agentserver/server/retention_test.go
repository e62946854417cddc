package server_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/box"
)

func TestARetentionIsSetAndTold(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	at := k.address + "/api/conversations/" + agentservertest.Dashed(liveID) + "/retention"
	told := func(want string) {
		t.Helper()
		status, text, _ := ask(t, http.MethodGet, at, "")
		require.Equal(t, http.StatusOK, status, text)
		require.JSONEq(t, want, text)
	}
	told(`{"mode":"default"}`)
	for _, rule := range []string{`{"mode":"days","days":0.5}`, `{"mode":"on_stop"}`, `{"mode":"default"}`, `{"mode":"days","days":30}`} {
		for range 5 {
			status, text, _ := ask(t, http.MethodPut, at, rule)
			require.Equal(t, http.StatusOK, status, text)
			require.JSONEq(t, rule, text)
			told(rule)
		}
	}
	for name, body := range map[string]string{
		"Scenario 34: a word for days":      `{"mode":"days","days":"30 days"}`,
		"Scenario 34: days before now":      `{"mode":"days","days":-1}`,
		"Scenario 34: no days":              `{"mode":"days"}`,
		"Scenario 34: zero days":            `{"mode":"days","days":0}`,
		"Scenario 34: days past all bounds": `{"mode":"days","days":1e300}`,
		"Scenario 34: a mode of none":       `{"mode":"never"}`,
		"Scenario 34: a field of none":      `{"mode":"days","days":3,"hours":1}`,
		"Scenario 34: nothing":              ``,
	} {
		status, text, _ := ask(t, http.MethodPut, at, body)
		require.Equal(t, http.StatusUnprocessableEntity, status, "%s: %s", name, text)
		require.Contains(t, text, `"loc":["body"`, name)
		told(`{"mode":"days","days":30}`)
	}
	status, _, _ := ask(t, http.MethodGet, k.address+"/api/conversations/"+strings.Repeat("f", 32)+"/retention", "")
	require.Equal(t, http.StatusNotFound, status)
	status, _, _ = ask(t, http.MethodPut, k.address+"/api/conversations/"+strings.Repeat("f", 32)+"/retention", `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusNotFound, status)
	status, _, _ = ask(t, http.MethodPut, k.address+"/api/conversations/x/retention", `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusUnprocessableEntity, status)
	status, _, _ = ask(t, http.MethodDelete, at, "")
	require.Equal(t, http.StatusMethodNotAllowed, status)
	response, err := keyless(t, http.MethodPut, at, strings.NewReader(`{"mode":"on_stop"}`))
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	k.archive(t, liveID)
	status, _, _ = ask(t, http.MethodPut, at, `{"mode":"on_stop"}`)
	require.Equal(t, http.StatusGone, status, "there is nothing left to keep")
	told(`{"mode":"days","days":30}`)
	require.Empty(t, k.requests(), "none of it is the agent-server's")
	status, text, _ := ask(t, http.MethodGet, k.address+"/server_info", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, "conversation_retention_v1")
}

func TestABoxThatItsProviderSuspendsArchivesNothing(t *testing.T) {
	t.Parallel()
	k := keep(t, func(opts *retention.Options) { opts.Off = "its provider suspends it" })
	at := k.address + "/api/conversations/" + liveID + "/retention"
	status, text, _ := ask(t, http.MethodPut, at, `{"mode":"days","days":30}`)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, text, "its provider suspends it")
	require.Contains(t, text, "delete the conversation")
	status, _, _ = ask(t, http.MethodPut, at, `{"mode":"default"}`)
	require.Equal(t, http.StatusOK, status)
	status, _, _ = ask(t, http.MethodPost, k.address+"/api/conversations", `{"retention":{"mode":"on_stop"}}`)
	require.Equal(t, http.StatusConflict, status)
	require.Empty(t, k.requests(), "and no conversation is made")
}

func TestARetentionIsGivenWhenAConversationIsMade(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	create := func(body string) (status int, id string) {
		t.Helper()
		status, text, _ := ask(t, http.MethodPost, k.address+"/api/conversations?include_skills=false", body)
		var made struct{ ID string }
		_ = json.Unmarshal([]byte(text), &made) // a refusal has none
		return status, strings.ReplaceAll(made.ID, "-", "")
	}
	ruleOf := func(id string) (box.Retention, bool) {
		t.Helper()
		rule, set, err := k.rules.Of(id)
		require.NoError(t, err)
		return rule, set
	}
	status, id := create(`{"agent":{"a":[1.50,"<&>"]},"retention":{"mode":"days","days":7},"x":null}`)
	require.Equal(t, http.StatusCreated, status)
	rule, _ := ruleOf(id)
	require.Equal(t, box.Retention{Mode: box.RetentionDays, Days: 7}, rule)
	sent := k.requests()
	require.Len(t, sent, 1)
	_, text, _ := strings.Cut(sent[0], "/api/conversations ")
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(text), &fields))
	require.NotContains(t, fields, "retention", "the agent-server does not know it")
	require.JSONEq(t, `{"a":[1.50,"<&>"]}`, string(fields["agent"]))
	require.Contains(t, string(fields["agent"]), "1.50", "numbers stay as they are written")
	require.Equal(t, "null", string(fields["x"]))

	// A second time is the same conversation, which keeps the rule that it has.
	status, again := create(`{"conversation_id":"` + id + `","retention":{"mode":"on_stop"}}`)
	require.Equal(t, http.StatusOK, status)
	require.NotEqual(t, strings.Repeat("0", 32), again)
	rule, _ = ruleOf(id)
	require.Equal(t, box.RetentionDays, rule.Mode)
	status, _ = create(`{"conversation_id":"` + liveID + `","retention":{"mode":"on_stop"}}`)
	require.Equal(t, http.StatusOK, status)
	_, set := ruleOf(liveID)
	require.False(t, set, "one that is there is not changed")
	k.requests()

	// Of one that is not made nothing stays behind.
	unmade := strings.Repeat("9", 32)
	k.fail = http.StatusTooManyRequests
	status, _ = create(`{"conversation_id":"` + unmade + `","retention":{"mode":"on_stop"}}`)
	require.Equal(t, http.StatusTooManyRequests, status)
	await(t, "its rule to go", func() bool { _, set := ruleOf(unmade); return !set })
	k.requests()

	for _, bad := range []string{`7`, `"on_stop"`, `{}`, `{"mode":"days"}`, `{"mode":"days","days":-1}`, `{"mode":"on_stop","days":1}`, `{"mode":"x"}`, `{"mode":"on_stop","y":1}`} {
		status, _ = create(`{"retention":` + bad + `}`)
		require.Equal(t, http.StatusUnprocessableEntity, status, bad)
	}
	require.Empty(t, k.requests(), "and no conversation is made")

	// Without the field, and what is no JSON object, passes as it is.
	for _, body := range []string{"{\"a\" : 1.50 }", "[1,2]", "{", ""} {
		_, _ = create(body)
		require.Equal(t, []string{"POST /api/conversations " + body}, k.requests())
	}
	status, id = create(`{"retention":null}`)
	require.Equal(t, http.StatusCreated, status)
	_, set = ruleOf(id)
	require.False(t, set)
	k.requests()

	// A stranger writes nothing to the disk.
	stranger := strings.Repeat("8", 32)
	response, err := keyless(t, http.MethodPost, k.address+"/api/conversations", strings.NewReader(`{"conversation_id":"`+stranger+`","retention":{"mode":"on_stop"}}`))
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	_, set = ruleOf(stranger)
	require.False(t, set)
}

func TestScenario63StoppingARuntimeArchives(t *testing.T) {
	t.Parallel()
	saved := func(opts *retention.Options) {
		opts.Unsaved = func(context.Context, string) (string, error) { return "", nil }
	}
	t.Run("Scenario 63: stopping the runtime of a conversation whose rule says so archives it at once", func(t *testing.T) {
		t.Parallel()
		k := keep(t, saved)
		for _, id := range []string{liveID, archivedID} {
			require.NoError(t, os.Mkdir(filepath.Join(k.root, "workspace", id), 0o700))
		}
		status, _, _ := ask(t, http.MethodPut, k.address+"/api/conversations/"+liveID+"/retention", `{"mode":"on_stop"}`)
		require.Equal(t, http.StatusOK, status)
		start := time.Now()
		for _, id := range []string{liveID, archivedID} {
			status, _, _ = ask(t, http.MethodDelete, k.address+"/api/conversations/"+agentservertest.Dashed(id)+"/runtime", "")
			require.Equal(t, http.StatusNoContent, status)
		}
		await(t, "the marker", func() bool {
			_, err := os.Lstat(filepath.Join(k.root, "persistence/runtime-control", liveID+".archived.json"))
			return err == nil
		})
		require.Less(t, time.Since(start), time.Minute)
		require.NoFileExists(t, filepath.Join(k.root, "persistence/runtime-control", archivedID+".archived.json"), "its rule does not say so")
		status, _, _ = ask(t, http.MethodPost, k.address+"/api/conversations/"+liveID+"/run", "")
		require.Equal(t, http.StatusGone, status)
	})
	t.Run("a runtime that could not be stopped archives nothing", func(t *testing.T) {
		t.Parallel()
		k := keep(t, saved)
		require.NoError(t, k.rules.Set(liveID, box.Retention{Mode: box.RetentionOnStop}))
		k.fail = http.StatusBadGateway
		status, _, _ := ask(t, http.MethodDelete, k.address+"/api/conversations/"+liveID+"/runtime", "")
		require.Equal(t, http.StatusBadGateway, status)
		require.NoFileExists(t, filepath.Join(k.root, "persistence/runtime-control", liveID+".archived.json"))
	})
}

func TestANewConversationFindsNothingOfADeletedOne(t *testing.T) {
	t.Parallel()
	k := keep(t, nil)
	t.Run("Scenario 114: an id whose former owner's files are still there is refused", func(t *testing.T) {
		t.Parallel()
		id := strings.Repeat("7", 32)
		runtime := filepath.Join(k.root, "persistence/runtime-data", id)
		secret := filepath.Join(runtime, "workspace/theirs.txt")
		require.NoError(t, os.MkdirAll(filepath.Dir(secret), 0o700))
		require.NoError(t, os.WriteFile(secret, []byte("theirs"), 0o600))
		for _, spelled := range []string{id, agentservertest.Dashed(id), strings.ToUpper(id)} {
			status, text, _ := ask(t, http.MethodPost, k.address+"/api/conversations", `{"conversation_id":"`+spelled+`"}`)
			require.Equal(t, http.StatusConflict, status, text)
		}
		for _, one := range k.requests() {
			require.NotContains(t, one, id)
		}
		// One whose manifest is there is the agent-server's to go on with.
		manifest := filepath.Join(k.root, "persistence/runtime-control", id+".json")
		require.NoError(t, os.MkdirAll(filepath.Dir(manifest), 0o700))
		require.NoError(t, os.WriteFile(manifest, []byte("{}"), 0o600))
		status, _, _ := ask(t, http.MethodPost, k.address+"/api/conversations", `{"conversation_id":"`+id+`"}`)
		require.Equal(t, http.StatusCreated, status)
	})
	t.Run("empty directories are nobody's", func(t *testing.T) {
		t.Parallel()
		id := strings.Repeat("6", 32)
		require.NoError(t, os.MkdirAll(filepath.Join(k.root, "persistence/runtime-data", id, "workspace"), 0o700))
		status, text, _ := ask(t, http.MethodPost, k.address+"/api/conversations", `{"conversation_id":"`+id+`"}`)
		require.Equal(t, http.StatusCreated, status, text)
	})
}
