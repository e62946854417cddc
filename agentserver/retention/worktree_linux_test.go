package retention_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/agentserver/storage/worktree"
	"github.com/openhands/boxkeeper/box"
)

// newWorktreeSetting is a setting whose conversation works in a git worktree.
func newWorktreeSetting(t *testing.T) (s *setting, tree string) {
	t.Helper()
	s = newSetting(t)
	require.NoError(t, os.MkdirAll(filepath.Join(s.root, reclaim.TrashDir), 0o700))
	tree = filepath.Join(s.root, storagetest.Worktree(t, s.root, s.id, s.used))
	s.made = true
	program, err := repo.New(repo.Options{Timeout: time.Minute, Scratch: []string{t.TempDir()}})
	require.NoError(t, err)
	layout, err := worktree.New(s.root, storagetest.Writer(s.root), worktree.Options{Git: program, Rescue: filepath.Join(s.root, "rescue")})
	require.NoError(t, err)
	s.opts.Layouts = []reclaim.Layout{layout}
	return s, tree
}

// The metadata is written a moment after the state when a conversation ends. A
// layout that reads less than the whole history shows it as used in between.
func TestAConversationInAWorktreeIsArchived(t *testing.T) {
	t.Parallel()
	s, _ := newWorktreeSetting(t)
	k := s.keeper(t)
	before := s.used.Add(-time.Second)
	events, err := filepath.Glob(filepath.Join(s.root, "conversations", s.id, "events/*"))
	require.NoError(t, err)
	for _, file := range append(events, filepath.Join(s.root, "conversations", s.id, "base_state.json")) {
		require.NoError(t, os.Chtimes(file, before, before))
	}
	out, err := k.Pass(t.Context())
	require.NoError(t, err)
	require.Len(t, out, 1)
	require.True(t, out[0].Archived, out[0].Reason)
	require.True(t, s.archived())
}

// A worktree has no runtime directory: it goes by the rule of its layout.
func TestTheWorktreeOfAnArchivedConversationGoes(t *testing.T) {
	t.Parallel()
	s, tree := newWorktreeSetting(t)
	reclaimer, err := reclaim.Open(s.root, reclaim.Options{Layouts: s.opts.Layouts})
	require.NoError(t, err)
	t.Cleanup(reclaimer.Close)
	killed := true
	s.opts.Take = func(ctx context.Context, conversation string) error {
		s.taken = append(s.taken, conversation)
		if killed {
			return errors.New("killed")
		}
		_, err := reclaimer.Do(ctx, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversation}})
		return err
	}
	k := s.keeper(t)
	pass := func() {
		t.Helper()
		_, err := k.Pass(t.Context())
		require.NoError(t, err)
	}
	pass()
	require.True(t, s.archived(), "the marker comes first")
	require.Equal(t, []string{s.id}, s.taken)
	require.DirExists(t, tree)
	killed = false
	pass()
	require.NoDirExists(t, tree, "what was cut off is finished")
	pass()
	require.Len(t, s.taken, 2, "what is gone is not taken again")
}
