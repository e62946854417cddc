package retention_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/box"
)

const day = 24 * time.Hour

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// setting is one box with one conversation, 40 days unused, on a machine that
// has been up for 100.
type setting struct {
	root, id string
	clock    *retention.Clock
	rules    *retention.Rules
	opts     retention.Options
	rule     box.Retention
	taken    []string
	used     time.Time
	before   func(k *retention.Keeper)
	boot     string
	made     bool // the conversation is there already
}

const id = "0123456789abcdef0123456789abcdef"

func newSetting(t *testing.T) *setting {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, dir := range []string{"conversations", "workspace/app", "persistence", "run"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	s := &setting{root: root, id: id, clock: &retention.Clock{Wall: now.Add(-100 * day)}, used: now.Add(-40 * day), boot: "b"}
	s.rule = box.Retention{Mode: box.RetentionDays, Days: 30}
	// Without waiting for the disk, since tests make hundreds of passes.
	s.rules = retention.NewRules(root, func(name string, content []byte) error {
		draft := filepath.Join(root, name+".new")
		return errors.Join(os.WriteFile(draft, content, 0o600), os.Rename(draft, filepath.Join(root, name)))
	})
	s.opts = retention.Options{
		Layouts: []reclaim.Layout{s.layout()},
		Unsaved: func(context.Context, string) (string, error) { return "", nil },
		Take: func(_ context.Context, conversation string) error {
			s.taken = append(s.taken, conversation)
			return nil
		},
	}
	return s
}

func (s *setting) layout() reclaim.Layout {
	lock := idlelock.New(idlelock.Options{Users: func(context.Context, []string) (string, error) { return "", nil }})
	return sharedworkspace.New(s.root, storagetest.Writer(s.root), sharedworkspace.Options{Lock: lock})
}

func (s *setting) converse(t *testing.T) {
	t.Helper()
	_, err := agentservertest.WriteConversation(filepath.Join(s.root, "conversations"), agentservertest.Conversation{
		ID: s.id, WorkingDir: filepath.Join(s.root, "workspace/app"), CreatedAt: s.used,
	})
	require.NoError(t, err)
	s.touch(t, s.used)
}

func (s *setting) touch(t *testing.T, at time.Time) {
	t.Helper()
	require.NoError(t, os.Chtimes(filepath.Join(s.root, "conversations", s.id, "base_state.json"), at, at))
}

func (s *setting) archived() bool {
	_, err := os.Lstat(filepath.Join(s.root, "persistence/runtime-control", s.id+".archived.json"))
	return err == nil
}

// keeper begins 100 days ago and lives until now.
func (s *setting) keeper(t *testing.T) *retention.Keeper {
	t.Helper()
	if !s.made {
		s.converse(t)
	}
	if s.rule.Mode != "" {
		require.NoError(t, s.rules.Set(s.id, s.rule))
	}
	k := retention.WithClock(s.root, s.rules, s.opts, s.clock, s.boot)
	s.clock.Pass(now.Sub(s.clock.Wall))
	if s.before != nil {
		s.before(k)
	}
	return k
}

func TestWhichConversationIsDue(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change   func(*setting)
		archived bool
		reason   string // of one that is due and left
	}{
		"one that is unused for longer than its rule says":  {func(*setting) {}, true, ""},
		"exactly as long as its rule says counts":           {func(s *setting) { s.used = now.Add(-30 * day) }, true, ""},
		"a moment less does not":                            {func(s *setting) { s.used = now.Add(-30*day + time.Second) }, false, ""},
		"half a day is a rule too":                          {func(s *setting) { s.rule.Days, s.used = 0.5, now.Add(-13*time.Hour) }, true, ""},
		"without a rule and a default none is":              {func(s *setting) { s.rule = box.Retention{} }, false, ""},
		"the default is for those without a rule":           {func(s *setting) { s.rule, s.opts.DefaultDays = box.Retention{}, 30 }, true, ""},
		"a rule of its own comes before the default":        {func(s *setting) { s.rule.Days, s.opts.DefaultDays = 50, 10 }, false, ""},
		"a use in the future is no old use":                 {func(s *setting) { s.used = now.Add(400 * day) }, false, ""},
		"a box whose provider suspends it archives nothing": {func(s *setting) { s.opts.Off = "its provider suspends it" }, false, ""},
		"one that is stopped, when its rule says so":        {func(s *setting) { s.rule = box.Retention{Mode: box.RetentionOnStop} }, true, ""},
		"one that was used minutes ago is not stopped":      {func(s *setting) { s.rule, s.used = box.Retention{Mode: box.RetentionOnStop}, now.Add(-9*time.Minute) }, false, ""},
		"unsaved work keeps it": {func(s *setting) {
			s.opts.Unsaved = func(_ context.Context, dir string) (string, error) {
				return "2 commits in " + filepath.Base(dir), nil
			}
		}, false, "holds unsaved work: 2 commits in app"},
		"work that cannot be judged keeps it": {func(s *setting) {
			s.opts.Unsaved = func(context.Context, string) (string, error) { return "", errors.New("no git") }
		}, false, "cannot tell whether it holds unsaved work"},
		"a workspace that another cannot do without keeps it": {func(s *setting) {
			s.opts.Needs = func(context.Context) (func(string) string, error) {
				return func(dir string) string { return filepath.Base(dir) + " lends objects" }, nil
			}
		}, false, "is needed: app lends objects"},
		"nobody can tell what another needs": {func(s *setting) {
			s.opts.Needs = func(context.Context) (func(string) string, error) { return nil, errors.New("not read") }
		}, false, "cannot tell whether something else in the box needs it: not read"},
		"nothing else needs it": {func(s *setting) {
			s.opts.Needs = func(context.Context) (func(string) string, error) { return func(string) string { return "" }, nil }
		}, true, ""},
		"work that nobody judges keeps it": {func(s *setting) { s.opts.Unsaved = nil }, false, "nothing tells whether it holds unsaved work"},
		"one that is used while its work is judged stays": {func(s *setting) {
			s.opts.Unsaved = func(context.Context, string) (string, error) {
				at := now.Add(-time.Second)
				return "", os.Chtimes(filepath.Join(s.root, "conversations", s.id, "base_state.json"), at, at)
			}
		}, false, "was used meanwhile"},
		"a box that is frozen while its work is judged archives nothing": {func(s *setting) {
			s.opts.Unsaved = func(context.Context, string) (string, error) {
				s.clock.Suspend(2 * time.Hour)
				return "", nil
			}
		}, false, "the box was resumed meanwhile"},
		"one that is loaded stays": {func(s *setting) {
			s.before = func(*retention.Keeper) {
				lease := fmt.Sprintf(`{"owner_instance_id":"i","generation":1,"expires_at":%d}`, time.Now().Add(time.Hour).Unix())
				_ = os.WriteFile(filepath.Join(s.root, "conversations", s.id, "owner_lease.json"), []byte(lease), 0o600)
			}
		}, false, "loaded by"},
		"a rule that does not read keeps it, whatever the default": {func(s *setting) {
			s.opts.DefaultDays = 1
			s.before = func(*retention.Keeper) {
				_ = os.WriteFile(filepath.Join(s.root, "run/retention", s.id+".json"), []byte(`{"mode":"days"`), 0o600)
			}
		}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetting(t)
			row.change(s)
			k := s.keeper(t)
			out, err := k.Pass(t.Context())
			require.NoError(t, err)
			require.Equal(t, row.archived, s.archived())
			switch {
			case row.archived:
				require.Len(t, out, 1)
				require.True(t, out[0].Archived)
				require.Equal(t, []string{s.id}, s.taken)
			case row.reason == "":
				require.Empty(t, out)
				require.Empty(t, s.taken)
			default:
				require.Len(t, out, 1)
				require.Contains(t, out[0].Reason, row.reason)
				require.Empty(t, s.taken)
			}
		})
	}
}

func TestNothingIsArchivedRightAfterAResume(t *testing.T) {
	t.Parallel()
	for name, resume := range map[string]func(*setting, *retention.Keeper) *retention.Keeper{
		"suspended with its clocks stopped": func(s *setting, k *retention.Keeper) *retention.Keeper {
			s.clock.Suspend(60 * day)
			return k
		},
		"frozen, with the wall clock put right": func(s *setting, k *retention.Keeper) *retention.Keeper {
			s.clock.Wall = s.clock.Wall.Add(60 * day)
			return k
		},
		"frozen, with all clocks going on": func(s *setting, k *retention.Keeper) *retention.Keeper {
			s.clock.Pass(60 * day)
			return k
		},
		"suspended for a short while": func(s *setting, k *retention.Keeper) *retention.Keeper {
			s.clock.Suspend(2 * time.Minute)
			s.clock.Pass(40 * day)
			return k
		},
		"a start of boxd": func(s *setting, _ *retention.Keeper) *retention.Keeper {
			s.clock.Pass(60 * day)
			return retention.WithClock(s.root, s.rules, s.opts, s.clock, s.boot)
		},
		"a start of the machine": func(s *setting, _ *retention.Keeper) *retention.Keeper {
			s.clock.Pass(3 * time.Minute)
			s.touch(t, s.clock.Wall.Add(-60*day))
			return retention.WithClock(s.root, s.rules, s.opts, s.clock, "another")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetting(t)
			s.used = now.Add(-time.Hour)
			k := s.keeper(t)
			s.rule.Days = 0.5
			require.NoError(t, s.rules.Set(s.id, s.rule))
			_, err := k.Pass(t.Context())
			require.NoError(t, err)
			require.False(t, s.archived())
			k = resume(s, k)
			for passed := time.Duration(0); passed < retention.Rest; passed += retention.Interval {
				_, err = k.Pass(t.Context())
				require.NoError(t, err)
				require.False(t, s.archived(), "%s after the resume", passed)
				s.clock.Pass(retention.Interval)
			}
			_, err = k.Pass(t.Context())
			require.NoError(t, err)
			require.True(t, s.archived())
		})
	}
}

func TestDaysCountFromTheResume(t *testing.T) {
	t.Parallel()
	s := newSetting(t)
	s.rule.Days = 2
	k := s.keeper(t)
	s.clock.Suspend(60 * day)
	for range 2*day/retention.Interval - 1 {
		_, err := k.Pass(t.Context())
		require.NoError(t, err)
		s.clock.Pass(retention.Interval)
	}
	require.False(t, s.archived())
	for range 2 {
		_, err := k.Pass(t.Context())
		require.NoError(t, err)
		s.clock.Pass(retention.Interval)
	}
	require.True(t, s.archived())
}

func TestARestartOfBoxdAloneIsNoResume(t *testing.T) {
	t.Parallel()
	s := newSetting(t)
	s.rule.Days = 41
	k := s.keeper(t)
	_, err := k.Pass(t.Context())
	require.NoError(t, err)
	require.False(t, s.archived())
	s.clock.Pass(time.Minute)
	s.rule.Days = 40
	require.NoError(t, s.rules.Set(s.id, s.rule))
	k = retention.WithClock(s.root, s.rules, s.opts, s.clock, s.boot)
	_, err = k.Pass(t.Context())
	require.NoError(t, err)
	require.True(t, s.archived(), "it goes on where the other one ended")
}

func TestARuntimeThatACrashLeftIsFinished(t *testing.T) {
	t.Parallel()
	s := newSetting(t)
	take := s.opts.Take
	s.opts.Take = func(context.Context, string) error { return errors.New("killed") }
	k := s.keeper(t)
	_, err := k.Pass(t.Context())
	require.NoError(t, err)
	require.True(t, s.archived(), "the marker comes first")
	// Also in a box that archives nothing any more.
	s.opts.Take, s.opts.Off = take, "its provider suspends it"
	k = retention.WithClock(s.root, s.rules, s.opts, s.clock, "another")
	out, err := k.Pass(t.Context())
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, []string{s.id}, s.taken)
	require.NoError(t, os.RemoveAll(filepath.Join(s.root, "workspace/app")))
	_, err = k.Pass(t.Context())
	require.NoError(t, err)
	require.Len(t, s.taken, 1, "what is gone is not taken again")
}

// Scenario 63: an on-stop rule releases within seconds, not at a limit.
func TestStoppedConversationsAreArchivedAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("Scenario 63: a runtime that is stopped is archived at once when its rule says so", func(t *testing.T) {
		t.Parallel()
		s := newSetting(t)
		s.rule, s.used = box.Retention{Mode: box.RetentionOnStop}, now
		k := s.keeper(t)
		out, due, err := k.Stopped(t.Context(), s.id)
		require.NoError(t, err)
		require.True(t, due)
		require.True(t, out.Archived, out.Reason)
		require.True(t, s.archived())
		require.Equal(t, []string{s.id}, s.taken)
		_, due, err = k.Stopped(t.Context(), s.id)
		require.NoError(t, err)
		require.False(t, due, "once")
	})
	for name, change := range map[string]func(*setting){
		"a rule of days says nothing of it": func(*setting) {},
		"nor does no rule":                  func(s *setting) { s.rule = box.Retention{} },
		"off is off":                        func(s *setting) { s.rule, s.opts.Off = box.Retention{Mode: box.RetentionOnStop}, "suspended" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetting(t)
			change(s)
			_, due, err := s.keeper(t).Stopped(t.Context(), s.id)
			require.NoError(t, err)
			require.False(t, due)
			require.False(t, s.archived())
		})
	}
	t.Run("unsaved work keeps it", func(t *testing.T) {
		t.Parallel()
		s := newSetting(t)
		s.rule, s.opts.Unsaved = box.Retention{Mode: box.RetentionOnStop}, nil
		out, due, err := s.keeper(t).Stopped(t.Context(), s.id)
		require.NoError(t, err)
		require.True(t, due)
		require.False(t, out.Archived)
		require.Contains(t, out.Reason, "unsaved")
		require.False(t, s.archived())
	})
}
