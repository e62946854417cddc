package reclaim_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// A runtime that something else in the box cannot do without stays, whether that
// shows when it is planned or only when it is to go; nobody waits for the look
// while a conversation is held.
func TestWhatSomethingElseNeedsStays(t *testing.T) {
	t.Parallel()
	runtime := filepath.Join(runtimes, conversationID(0))
	for name, row := range map[string]struct {
		when int // the look from which on it shows
		err  error
		want string
	}{
		"it shows in the plan":             {1, nil, "is needed: a clone borrows from " + conversationID(0)},
		"it shows when it is to go":        {2, nil, "is needed: a clone borrows from " + conversationID(0)},
		"nobody can tell":                  {1, errors.New("no answer"), "cannot tell whether something else in the box needs it: no answer"},
		"nobody can tell when it is to go": {2, errors.New("no answer"), "cannot tell whether something else in the box needs it: no answer"},
		"nothing needs it":                 {3, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			places := conversations(t, root, 3)
			looks, held := 0, false
			places.held, places.released = func() { held = true }, func() { held = false }
			r := openWith(t, root, reclaim.Options{
				Layouts: []reclaim.Layout{places}, Unsaved: saved,
				Needs: func(context.Context) (func(string) string, error) {
					require.False(t, held)
					if looks++; looks < row.when {
						return func(string) string { return "" }, nil
					}
					return func(dir string) string {
						if !strings.HasSuffix(dir, conversationID(0)) {
							return ""
						}
						return "a clone borrows from " + filepath.Base(dir)
					}, row.err
				},
			})
			all := []box.Tier{box.TierRuntime}
			plan := do(t, r, box.ReclaimRequest{DryRun: true, Tiers: all})
			require.Equal(t, 1, looks, "one look for all conversations of a plan")
			require.Equal(t, row.when == 1, itemOf(t, plan, runtime).Skipped != "")
			report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			require.Equal(t, row.want, itemOf(t, report, runtime).Skipped)
			if row.want == "" {
				require.NoDirExists(t, filepath.Join(root, runtime))
				return
			}
			require.FileExists(t, filepath.Join(root, runtime, "workspace/repo/main.js"))
			require.NotContains(t, places.archived, conversationID(0), "nor is it marked")
			if row.err == nil {
				require.NoDirExists(t, filepath.Join(root, runtimes, conversationID(1)), "another one goes")
			}
		})
	}
}
