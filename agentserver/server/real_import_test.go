package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// manyEvents take many pages to read. Ten times as many take minutes.
const manyEvents = 2_000

// interrupted is a conversation that ran when it was exported.
const interrupted = "00000000000000000000000000000003"

// oddBox is the export of a box with a conversation of many events and odd file
// names, an empty one, an ordinary one and one that runs; events are what each
// must have.
func oddBox(t *testing.T) (store *exports.Store, receipt box.Receipt, events map[string]int) {
	t.Helper()
	from, conversations := alone(t, 3) // the first and the third are running
	require.NoError(t, os.RemoveAll(filepath.Join(conversations, fmt.Sprintf("%032x", 1))))
	many := make([]agentservertest.Event, manyEvents)
	for i := range many {
		many[i] = agentservertest.Event{ID: fmt.Sprintf("00000000-0000-4000-8000-%012x", i), Text: fmt.Sprintf("message %d \u202e\x1b", i)}
	}
	long, err := agentservertest.WriteConversation(conversations, agentservertest.Conversation{ID: "a1" + fmt.Sprintf("%030x", 1), Title: "a long one", Events: many})
	require.NoError(t, err)
	giveOddNames(t, filepath.Join(conversations, long))
	empty, err := agentservertest.WriteConversation(conversations, agentservertest.Conversation{ID: "b2" + fmt.Sprintf("%030x", 2)})
	require.NoError(t, err)
	store, receipt = exported(t, from)
	return store, receipt, map[string]int{long: manyEvents, empty: 0, fmt.Sprintf("%032x", 2): 2, interrupted: 3}
}

// exportedEvents are the events of a conversation as the export has them, by id.
func exportedEvents(t *testing.T, store *exports.Store, id string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for e, err := range store.Events(t.Context(), "ws", id) {
		require.NoError(t, err)
		out[e.ID] = canonical(t, e.Raw)
	}
	return out
}

// An export goes back into a box in two ways: through boxd, which keeps it
// read-only, and into the directory of conversations of an agent-server that
// is not up. Both serve every event as it was exported.
func TestAnOddExportIsServedByTheRealAgentServer(t *testing.T) { //nolint:paralleltest // two starts of a large program
	needReal(t)
	store, receipt, counts := oddBox(t)
	t.Run("through boxd, read-only", func(t *testing.T) { //nolint:paralleltest // as above
		r := startReal(t)
		require.NoError(t, store.Restore(t.Context(), "ws", receipt, nil, agentserver.History{Client: connect(t, r.url)}, nil))
		for id, n := range counts {
			require.Equal(t, n, served(t, store, r.url, id))
			status, text, _ := ask(t, http.MethodPost, r.url+"/api/conversations/"+id+"/events", `{"role":"user","content":[]}`)
			require.Equal(t, http.StatusGone, status, text)
			status, _, _ = ask(t, http.MethodGet, r.direct+"/api/conversations/"+id, "")
			require.Equal(t, http.StatusNotFound, status, "the agent-server never sees it")
		}
	})
	t.Run("from its directory of conversations", func(t *testing.T) { //nolint:paralleltest // as above
		root := t.TempDir()
		for id := range counts {
			unpackInto(t, store, id, filepath.Join(root, "conversations"))
		}
		r := startRealIn(t, root)
		for id, n := range counts {
			got := served(t, store, r.direct, id)
			if id == interrupted {
				// Asked for its events it loads a conversation, and says of one that ran
				// when it was exported that it was broken off.
				require.GreaterOrEqual(t, got, n)
				continue
			}
			require.Equal(t, n, got)
		}
		var total int
		get(t, r.direct+"/api/conversations/count", &total)
		require.Equal(t, len(counts), total)
	})
}

// served compares what a server answers with the export, event by event, and
// returns how many events it has.
func served(t *testing.T, store *exports.Store, base, id string) (count int) {
	t.Helper()
	var one struct {
		ID string `json:"id"`
	}
	get(t, base+"/api/conversations/"+id, &one)
	require.Equal(t, agentservertest.Dashed(id), one.ID)
	get(t, base+"/api/conversations/"+id+"/events/count", &count)
	got := (&real{}).events(t, base, id)
	require.Len(t, got, count)
	for event, text := range exportedEvents(t, store, id) {
		if !sameEvent(t, text, got[event]) {
			require.Equal(t, text, got[event], "event %s of %s", event, id)
		}
	}
	return count
}

// sameEvent reports whether a server's answer holds all that an event says: it
// may add fields that it knows.
func sameEvent(t *testing.T, exported, served string) bool {
	t.Helper()
	var want, got map[string]any
	require.NoError(t, json.Unmarshal([]byte(exported), &want))
	if json.Unmarshal([]byte(served), &got) != nil {
		return false
	}
	return within(want, got)
}

func within(want, got any) bool {
	switch want := want.(type) {
	case map[string]any:
		other, ok := got.(map[string]any)
		for name, value := range want {
			ok = ok && within(value, other[name])
		}
		return ok
	case []any:
		other, ok := got.([]any)
		ok = ok && len(other) == len(want)
		for i := range want {
			ok = ok && within(want[i], other[i])
		}
		return ok
	}
	return want == got
}

// unpackInto writes the files of an exported conversation where an agent-server
// keeps its conversations.
func unpackInto(t *testing.T, store *exports.Store, id, dir string) {
	t.Helper()
	c, err := store.ProveConversation(t.Context(), "ws", id)
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // only read
	for f, err := range c.Files(t.Context()) {
		require.NoError(t, err)
		to := filepath.Join(dir, f.Name)
		if f.Directory {
			require.NoError(t, os.MkdirAll(to, 0o700))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		r, err := c.OpenFile(t.Context(), f)
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, content, 0o600))
	}
}
