package retention_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
)

// second is a layout that knows the conversation besides the first one.
type second struct {
	place    reclaim.Place
	busy     string // when held
	held     int
	archived int
}

func (l *second) Places(context.Context) ([]reclaim.Place, error) {
	return []reclaim.Place{l.place}, nil
}

func (l *second) Hold(context.Context, string) (func(), string, error) {
	if l.busy != "" {
		return nil, l.busy, nil
	}
	l.held++
	return func() { l.held-- }, "", nil
}

func (l *second) Archive(context.Context, string) error { l.archived++; return nil }

// A conversation is archived as a whole, so that what one layout knows of it
// keeps it in all.
func TestAConversationIsJudgedInEveryLayout(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change   func(*second)
		archived bool
		reason   string
	}{
		"nothing speaks against it there":  {func(*second) {}, true, "unused for 30 days"},
		"unsaved work there keeps it":      {func(l *second) { l.place.Workspaces = []string{"worktrees/a/repo"} }, false, "holds unsaved work: 1 commit"},
		"use there keeps it":               {func(l *second) { l.place.Busy = "in use by cc" }, false, "in use by cc"},
		"use in the last moment keeps it":  {func(l *second) { l.busy = "in use by ld" }, false, "in use by ld"},
		"a newer use there keeps it":       {func(l *second) { l.place.LastActive = now.Add(-day) }, false, ""},
		"a use that is not known keeps it": {func(l *second) { l.place = reclaim.Place{Conversation: id} }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetting(t)
			other := &second{place: reclaim.Place{Conversation: id, LastActive: s.used}}
			row.change(other)
			s.opts.Layouts = append(s.opts.Layouts, other)
			s.opts.Unsaved = func(_ context.Context, dir string) (string, error) {
				if dir == s.root+"/worktrees/a/repo" {
					return "1 commit", nil
				}
				return "", nil
			}
			out, err := s.keeper(t).Pass(t.Context())
			require.NoError(t, err)
			require.Equal(t, row.archived, s.archived())
			require.Zero(t, other.held)
			if row.reason == "" {
				require.Empty(t, out)
				return
			}
			require.Len(t, out, 1)
			require.Equal(t, row.reason, out[0].Reason)
			require.Equal(t, row.archived, other.archived == 1)
		})
	}
}
