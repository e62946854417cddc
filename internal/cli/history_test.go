package cli_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

const talk = "0123456789abcdef0123456789abcdef"

// source serves one conversation.
type source struct{ zip []byte }

func (source) Conversations(context.Context) ([]box.ConversationMark, error) {
	return []box.ConversationMark{{ID: talk, Events: 2}}, nil
}

func (s source) Download(context.Context, string) (io.ReadCloser, int64, error) {
	return io.NopCloser(bytes.NewReader(s.zip)), int64(len(s.zip)), nil
}

// packedTalk is the zip of a conversation in which the texts were said.
func packedTalk(t *testing.T, said ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for i, text := range said {
		w, err := z.Create(fmt.Sprintf("%s/events/event-%05d-e%d.json", talk, i, i))
		require.NoError(t, err)
		body, err := json.Marshal(map[string]any{
			"id": fmt.Sprintf("e%d", i), "kind": "MessageEvent", "source": "user", "timestamp": "2026-05-01T10:00:00",
			"llm_message": map[string]any{"role": "user", "content": []map[string]any{{"type": "text", "text": text}}},
		})
		require.NoError(t, err)
		_, err = w.Write(body)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return buf.Bytes()
}

// exported makes a data directory whose store holds one conversation.
func exported(t *testing.T) string {
	t.Helper()
	data := t.TempDir()
	store, err := exports.Open(t.Context(), "file://"+filepath.Join(data, "exports"))
	require.NoError(t, err)
	_, err = store.Export(t.Context(), exports.Request{Workspace: "mine", Epoch: 1, Attempt: "a1"}, source{packedTalk(t, "hello there", "evil \x1b[2J\u009b text")}, func(exports.Progress) {})
	require.NoError(t, err)
	_, err = store.AppendLedger(t.Context(), "mine", exports.Entry{ID: "c", Kind: exports.KindCreateIntent, Epoch: 1, At: now})
	require.NoError(t, err)
	require.NoError(t, store.Close())
	return data
}

func TestHistoryIsReadWithNoEngineUp(t *testing.T) {
	t.Parallel()
	data := exported(t)
	got := runIn(t, nil, data, "", "box", "history", "mine")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, talk)
	assert.Contains(t, got.stdout, "1 conversation, 2 events")
	assert.NotContains(t, got.stdout, "checked")

	verified := runIn(t, nil, data, "", "box", "history", "mine", "--verify", "-o", "json")
	require.Equal(t, 0, verified.code, verified.stderr)
	var list struct {
		Verified      bool
		Events        int
		Conversations []exports.ConversationEntry
	}
	require.NoError(t, json.Unmarshal([]byte(verified.stdout), &list))
	assert.True(t, list.Verified)
	assert.Equal(t, 2, list.Events)

	dashed := strings.ToUpper(talk[:8]) + "-" + talk[8:12] + "-" + talk[12:16] + "-" + talk[16:20] + "-" + talk[20:]
	text := runIn(t, nil, data, "", "box", "history", "mine", dashed)
	require.Equal(t, 0, text.code, text.stderr)
	assert.Contains(t, text.stdout, "hello there")
	assert.NotContains(t, text.stdout, "\x1b")

	lines := runIn(t, nil, data, "", "box", "history", "mine", talk, "-o", "json")
	require.Equal(t, 0, lines.code, lines.stderr)
	assert.NotContains(t, lines.stdout, "\u009b")
	rows := strings.Split(strings.TrimSpace(lines.stdout), "\n")
	require.Len(t, rows, 2)
	var second struct {
		Index int
		Event struct {
			Message struct{ Content []struct{ Text string } } `json:"llm_message"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(rows[1]), &second))
	assert.Equal(t, 1, second.Index)
	assert.Equal(t, "evil \x1b[2J\u009b text", second.Event.Message.Content[0].Text, "what is escaped reads back as it was")
}

func TestHistorySaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	data := exported(t)
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "other").code)
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "exports", "list", "other").code)
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "mine", strings.Repeat("f", 32)).code)
	assert.Equal(t, 2, runIn(t, nil, data, "", "box", "history", "mine", "talk").code)
	assert.Equal(t, 2, runIn(t, nil, data, "", "box", "history", "mine", talk, "--verify").code)
	assert.Equal(t, 2, runIn(t, nil, data, "", "box", "history", "Not_One").code)
	empty := t.TempDir()
	got := runIn(t, nil, empty, "", "box", "history", "mine")
	assert.Equal(t, 3, got.code)
	assert.Contains(t, got.stderr, "BOXKEEPER_EXPORTS")
	assert.NoDirExists(t, filepath.Join(empty, "exports"), "reading makes no store")
}

func TestAWorkspaceWithoutExportsIsNotUnknown(t *testing.T) {
	t.Parallel()
	data := exported(t)
	store, err := exports.Open(t.Context(), "file://"+filepath.Join(data, "exports"))
	require.NoError(t, err)
	_, err = store.AppendLedger(t.Context(), "bare", exports.Entry{ID: "c", Kind: exports.KindCreateIntent, Epoch: 1, At: now})
	require.NoError(t, err)
	got := runIn(t, nil, data, "", "box", "history", "bare")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "No conversation was exported.")
	_, err = store.AppendLedger(t.Context(), "bare", exports.Entry{ID: "d", Kind: exports.KindDeleted, Epoch: 1, At: now})
	require.NoError(t, err)
	require.NoError(t, store.Close())
	got = runIn(t, nil, data, "", "box", "history", "bare")
	assert.Contains(t, got.stdout, "Workspace bare was closed 2026-05-01 12:00:00Z (now).")
}

func TestDamageIsNeverVerified(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, data string){
		"a lost object": func(t *testing.T, data string) {
			t.Helper()
			require.NoError(t, os.Remove(one(t, data, "exports/exports/mine/*/*/conversations/*.zip")))
		},
		"a truncated object": func(t *testing.T, data string) {
			t.Helper()
			require.NoError(t, os.Truncate(one(t, data, "exports/exports/mine/*/*/conversations/*.zip"), 40))
		},
		"an altered ledger": func(t *testing.T, data string) {
			t.Helper()
			require.NoError(t, os.WriteFile(one(t, data, "exports/ledger/mine/*.json"), []byte(`{"version":1}`), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := exported(t)
			harm(t, data)
			got := runIn(t, nil, data, "", "box", "history", "mine", "--verify", "-o", "json")
			assert.Equal(t, 1, got.code, got.stdout)
			assert.Contains(t, got.stdout, `"verified": false`)
			assert.Contains(t, got.stderr, "damaged")
		})
	}
}

func one(t *testing.T, data, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(data, pattern))
	require.NoError(t, err)
	require.Len(t, found, 1, pattern)
	return found[0]
}
