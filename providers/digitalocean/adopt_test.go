package digitalocean_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// strayed is a service with a session that somebody made, and environments that
// are what was created and not deleted.
type strayed struct {
	*script
	created func() string // the name of the mark that was made
}

func stray(t *testing.T, status string, more map[string]any, marks ...string) strayed {
	t.Helper()
	s := newScript(t)
	if more == nil {
		more = map[string]any{}
	}
	more["config_id"] = "cfg-theirs"
	s.on(getAt, 200, one(sessionJSON("sess-1", "my-canvas-box", status, more)))
	s.on("GET "+sessionsAt, 200, list(""))
	s.on("GET "+configsAt, 200, marksOf(marks...))
	s.on("POST "+configsAt, 201, `{"config":{"id":"mark-1","name":"n","manifest":{}}}`)
	s.on("DELETE "+configsAt+"/mark-1", 204, "")
	return strayed{s, func() string {
		for _, r := range s.requests() {
			var body struct{ Name string }
			if r.Line == "POST "+configsAt && json.Unmarshal([]byte(r.Body), &body) == nil {
				return body.Name
			}
		}
		return ""
	}}
}

func marksOf(names ...string) string {
	var out []string
	for i, name := range names {
		out = append(out, fmt.Sprintf(`{"id":"mark-%d","name":%q,"created_at":"2026-11-13T08:00:0%d.5Z"}`, i+1, name, i))
	}
	return `{"configs":[` + strings.Join(out, ",") + `]}`
}

func TestAdoptMarksASessionBesideIt(t *testing.T) {
	t.Parallel()
	// What the mark is called is learnt from a first try, whose list lags.
	first := stray(t, "PAUSED", nil)
	_, err := first.driver(t).Adopt(t.Context(), "sess-1", identity("w"))
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	mark := first.created()
	require.Regexp(t, `^bka-[0-9a-f]{16}-0a1b2c3d-[0-9a-f]{16}$`, mark)
	for _, line := range first.lines() {
		require.NotContains(t, line, "pause")
		require.NotContains(t, line, "resume")
		require.NotContains(t, line, "ingress")
	}

	s := stray(t, "PAUSED", map[string]any{"resume_on_topoff": true})
	s.on("GET "+configsAt, 200, marksOf(mark))
	s.on("PATCH "+sessionsAt+"/sess-1", 200, one(sessionJSON("sess-1", "my-canvas-box", "PAUSED", nil)))
	d := s.driver(t)
	for range 5 {
		seen, err := d.Adopt(t.Context(), "sess-1", identity("w"))
		require.NoError(t, err)
		want := refOf("sess-1", "w")
		want.Provider = ""
		require.Equal(t, want, seen.Ref)
		require.Equal(t, box.PhaseSuspended, seen.Phase)
		require.NotContains(t, seen.Evidence, "resumed by the service")
	}
	posts := 0
	for _, r := range s.requests() {
		if r.Line == "POST "+configsAt {
			posts++
			require.Contains(t, r.Body, "BOXKEEPER_BOX: bk-0a1b2c3d-w-1")
		}
		if strings.HasPrefix(r.Line, "PATCH") {
			require.JSONEq(t, `{"resume_on_topoff":false}`, r.Body)
		}
	}
	require.Equal(t, 1, posts)
	// From here on it is a box like any other, and nobody else's.
	seen, err := d.Observe(t.Context(), refOf("sess-1", "w"))
	require.NoError(t, err)
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	_, err = d.Observe(t.Context(), refOf("sess-1", "another"))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	_, err = d.Adopt(t.Context(), "sess-1", identity("another"))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))

	s.only("GET "+sessionsAt, 200, list("", sessionJSON("sess-1", "my-canvas-box", "PAUSED", nil)))
	s.on("GET "+sessionsAt+"?SESSION_STATUS_FAILED", 200, list(""))
	s.on("GET "+configsAt+"/mark-1", 200, `{"config":{"id":"mark-1","manifest":{"spec":{"x":["bk-0a1b2c3d-v-1"],"env":[{"n":"BOXKEEPER_BOX","v":"bk-0a1b2c3d-w-1"}]}}}}`)
	found, err := d.List(t.Context(), installation)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, identity("w"), found[0].Identity)
	require.Equal(t, identity("w").Name(), found[0].Observation.Ref.Name)
	// A create of that name finds it.
	made, err := d.Create(t.Context(), createRequest("w"))
	require.NoError(t, err)
	require.Equal(t, found[0].Observation.Ref, made.Ref)
}

func TestAdoptRefusesWhatIsSomebodys(t *testing.T) {
	t.Parallel()
	first := stray(t, "PAUSED", nil)
	_, _ = first.driver(t).Adopt(t.Context(), "sess-1", identity("w"))
	mark := first.created()
	theirs := strings.Replace(mark, installation, "ffffffff", 1)

	s := stray(t, "READY", nil, theirs)
	_, err := s.driver(t).Adopt(t.Context(), "sess-1", identity("w"))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
	require.Empty(t, s.created())

	// Both marked it at once; theirs is older.
	s = stray(t, "READY", nil)
	s.on("GET "+configsAt, 200, marksOf(theirs, mark))
	s.only("POST "+configsAt, 201, `{"config":{"id":"mark-2","name":"n","manifest":{}}}`)
	s.on("DELETE "+configsAt+"/mark-2", 204, "")
	_, err = s.driver(t).Adopt(t.Context(), "sess-1", identity("w"))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
	require.Contains(t, s.lines(), "DELETE "+configsAt+"/mark-2")

	// A mark that went is noticed before anything is destroyed.
	s = stray(t, "READY", nil)
	s.only("GET "+configsAt, 200, marksOf(mark))
	s.on("GET "+configsAt, 200, marksOf(theirs))
	_, err = s.driver(t).Delete(t.Context(), refOf("sess-1", "w"))
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
	for _, line := range s.lines() {
		require.NotContains(t, line, "DELETE")
	}

	for what, row := range map[string]struct {
		session string
		class   box.Class
	}{
		"called like a box of others":  {sessionJSON("sess-1", "bk-ffffffff-w-1", "READY", nil), box.ClassFailedPrecondition},
		"called like another's box":    {sessionJSON("sess-1", "bk-0a1b2c3d-v-1", "READY", nil), box.ClassFailedPrecondition},
		"called like ours, and theirs": {sessionJSON("sess-1", "bk-0a1b2c3d-w-1", "READY", map[string]any{"config_id": ""}), box.ClassFailedPrecondition},
		"destroyed":                    {sessionJSON("sess-1", "x", "DESTROYED", nil), box.ClassNotFound},
	} {
		s := newScript(t)
		s.on(getAt, 200, one(row.session))
		_, err := s.driver(t).Adopt(t.Context(), "sess-1", identity("w"))
		require.Equal(t, row.class, box.ClassOf(err), "%s: %v", what, err)
		require.Len(t, s.lines(), 1)
	}
	for _, id := range []string{"no such", "a/b", ""} {
		_, err := newScript(t).driver(t).Adopt(t.Context(), id, identity("w"))
		require.Equal(t, box.ClassNotFound, box.ClassOf(err), "%v", err)
	}
}
