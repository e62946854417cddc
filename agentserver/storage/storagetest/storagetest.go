// Package storagetest is the contract of reclaim.Layout and reclaim.Remover as a
// suite, which every layout's tests run. It makes real conversations in a directory
// of the test and is called by tests only.
package storagetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
)

// Harness makes boxes of one layout.
type Harness struct {
	// New returns the layout of the box at root.
	New func(root string, write storage.Writer) reclaim.Layout
	// Make makes a conversation that nobody uses, with a runtime that holds the
	// file "work", and returns the runtime below root. used is the time of its last
	// use.
	Make func(t testing.TB, root, id string, used time.Time) (runtime string)
	// OwnRule says that runtimes go by the layout's own rule: it is a
	// [reclaim.Remover], and names them as workspaces.
	OwnRule bool
	// Orphans lists what has no place; nil when the layout has no such list.
	Orphans func(ctx context.Context, l reclaim.Layout) ([]storage.Orphan, error)
}

// Ids of conversations in the order in which they are made.
var ids = []string{ //nolint:gochecknoglobals // a constant table
	strings.Repeat("c", 32), strings.Repeat("a", 32), strings.Repeat("b", 32),
}

// archiveVariable makes a test binary archive one conversation over and over.
const archiveVariable = "STORAGETEST_ARCHIVE"

// Main is the TestMain of a layout's tests.
func Main(m *testing.M, h Harness) {
	if root := os.Getenv(archiveVariable); root != "" { //nolint:forbidigo // a process of the suite itself
		below, err := os.OpenRoot(root)
		if err != nil {
			os.Exit(2)
		}
		layout := h.New(root, Writer(root))
		for {
			if layout.Archive(context.Background(), ids[0]) != nil || storage.Unarchive(below, ids[0]) != nil { //nolint:forbidigo // it runs until it is killed
				os.Exit(3)
			}
		}
	}
	os.Exit(m.Run())
}

// Writer returns a writer like that of a reclaimer, without its reserve.
func Writer(root string) storage.Writer {
	return func(name string, content []byte) error {
		place := filepath.Join(root, name)
		file, err := os.CreateTemp(filepath.Dir(place), ".new-*")
		if err != nil {
			return err
		}
		_, err = file.Write(content)
		if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
			return err
		}
		return os.Rename(file.Name(), place) //nolint:gosec // of the suite
	}
}

// clause is one promise of a layout.
type clause struct {
	name string
	own  bool // of a layout with a rule of its own alone
	test func(*suite, testing.TB)
}

func clauses() []clause {
	return []clause{
		{name: "places come longest unused first", test: (*suite).order},
		{name: "the last use is the one that the whole history shows", test: (*suite).lastUse},
		{name: "Scenario 100: a link in place of a directory is never a place", test: (*suite).links},
		{name: "what cannot be read is listed as busy", test: (*suite).unreadable},
		{name: "a hold is exclusive, and over when it is released", test: (*suite).exclusive},
		{name: "a conversation that is loaded, running or locked is busy", test: (*suite).used},
		{name: "Scenario 87: a process that works inside keeps a conversation", test: (*suite).process},
		{name: "an archived conversation is marked first, once, and stays a place", test: (*suite).archive},
		{name: "a marker is whole or not there, whenever its writer was killed", test: (*suite).killed},
		{name: "an id that is unknown, or none, is not found", test: (*suite).unknown},
		{name: "names that are no ids are left alone, and listed where there is one", test: (*suite).foreign},
		{name: "an empty box has no places", test: (*suite).empty},
		{name: "a runtime goes into the trash, and nothing else does", own: true, test: (*suite).removed},
		{name: "a runtime that is used, or holds work of its own, stays", own: true, test: (*suite).kept},
	}
}

func (c *clause) run(t testing.TB, h Harness) {
	t.Helper()
	c.test(newSuite(t, h), t)
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, one := range clauses() {
		if one.own && !h.OwnRule {
			continue
		}
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			one.run(t, h)
		})
	}
}

type suite struct {
	Harness
	root   string
	layout reclaim.Layout
	dirs   map[string]string // below root, by conversation
}

func newSuite(t testing.TB, h Harness) *suite {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	root = filepath.Join(root, "box")
	for _, dir := range []string{
		storage.ConversationsDir, "persistence", storage.WorkspaceDir, storage.WorktreesDir, reclaim.TrashDir, "outside",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	layout := h.New(root, Writer(root))
	_, own := layout.(reclaim.Remover)
	require.Equal(t, h.OwnRule, own, "the harness says what the layout is")
	return &suite{Harness: h, root: root, layout: layout, dirs: map[string]string{}}
}

func (s *suite) make(t testing.TB, id string, used time.Time) string {
	t.Helper()
	dir := s.Make(t, s.root, id, used)
	require.FileExists(t, filepath.Join(s.root, dir, "work"))
	s.dirs[id] = dir
	return dir
}

func (s *suite) places(t testing.TB) map[string]reclaim.Place {
	t.Helper()
	list, err := s.layout.Places(t.Context())
	require.NoError(t, err)
	out := map[string]reclaim.Place{}
	for _, place := range list {
		require.NotContains(t, out, place.Conversation, "a conversation has one place")
		out[place.Conversation] = place
		for _, dir := range append([]string{place.Home, place.Runtime}, place.Workspaces...) {
			if dir != "" {
				s.within(t, dir)
			}
		}
	}
	return out
}

// within checks that a path of a place lies in the box and leads over no link.
func (s *suite) within(t testing.TB, dir string) {
	t.Helper()
	require.True(t, filepath.IsLocal(dir), dir)
	real, err := filepath.EvalSymlinks(filepath.Join(s.root, dir))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(s.root, dir), real, "no link on the way")
}

func (s *suite) order(t testing.TB) {
	t.Helper()
	day := time.Now().Add(-100 * 24 * time.Hour).Truncate(time.Second)
	for i, id := range ids {
		s.make(t, id, day.Add(time.Duration(i)*24*time.Hour))
	}
	list, err := s.layout.Places(t.Context())
	require.NoError(t, err)
	require.Len(t, list, len(ids))
	for i, place := range list {
		require.Equal(t, ids[i], place.Conversation)
		require.WithinDuration(t, day.Add(time.Duration(i)*24*time.Hour), place.LastActive, time.Second)
		require.NotEmpty(t, place.LastActiveFrom)
		require.Empty(t, place.Busy)
		s.goes(t, &place, s.dirs[place.Conversation])
		require.False(t, place.Archived)
	}
	// A time that nothing tells is unknown: not old, and last in the list.
	history := filepath.Join(s.root, storage.ConversationsDir, ids[0])
	require.NoError(t, os.RemoveAll(filepath.Join(history, "events")))
	require.NoError(t, os.Remove(filepath.Join(history, "base_state.json")))
	require.NoError(t, os.WriteFile(filepath.Join(history, "meta.json"), []byte("{}"), 0o600))
	list, err = s.layout.Places(t.Context())
	require.NoError(t, err)
	require.Equal(t, ids[0], list[len(list)-1].Conversation)
	require.True(t, list[len(list)-1].LastActive.IsZero())
}

// goes checks that tier runtime takes dir with its place: as it is, or by the
// layout's own rule.
func (s *suite) goes(t testing.TB, place *reclaim.Place, dir string) {
	t.Helper()
	if s.OwnRule {
		require.Empty(t, place.Runtime, "it does not go as it is")
		require.Contains(t, place.Workspaces, dir)
		return
	}
	require.Equal(t, dir, place.Runtime)
}

// Whoever archives by age reads the history once more while the conversation is
// held: where two readings differ it counts as used in between, for ever.
func (s *suite) lastUse(t testing.TB) {
	t.Helper()
	day := time.Now().Add(-50 * 24 * time.Hour).Truncate(time.Second)
	s.make(t, ids[0], day)
	below, err := os.OpenRoot(s.root)
	require.NoError(t, err)
	defer below.Close()
	history := filepath.Join(s.root, storage.ConversationsDir, ids[0])
	events, err := filepath.Glob(filepath.Join(history, "events", "*"))
	require.NoError(t, err)
	require.Len(t, events, 1)
	for hours, use := range []func(at time.Time) error{
		func(at time.Time) error { return os.Chtimes(filepath.Join(history, "base_state.json"), at, at) },
		func(at time.Time) error { return os.Chtimes(events[0], at, at) },
		func(at time.Time) error {
			return os.WriteFile(filepath.Join(history, "meta.json"), fmt.Appendf(nil, `{"updated_at":%q,"workspace":{"working_dir":%q}}`,
				at.UTC().Format(time.RFC3339Nano), filepath.Join(s.root, s.dirs[ids[0]])), 0o600)
		},
	} {
		at := day.Add(time.Duration(1+hours) * time.Hour)
		require.NoError(t, use(at))
		want, from, err := storage.LastActive(below, ids[0])
		require.NoError(t, err)
		require.True(t, at.Equal(want), "it is the newest sign of use")
		place := s.places(t)[ids[0]]
		require.True(t, want.Equal(place.LastActive), "%s, not %s, by %s", want, place.LastActive, from)
		require.Equal(t, from, place.LastActiveFrom)
	}
}

func (s *suite) links(t testing.TB) {
	t.Helper()
	dir := s.make(t, ids[0], time.Now())
	precious := filepath.Join(filepath.Dir(s.root), "precious")
	require.NoError(t, os.MkdirAll(filepath.Join(precious, "persistence"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(precious, "work"), []byte("dear"), 0o600))
	for _, target := range []string{precious, filepath.Join(s.root, "outside"), filepath.Join(s.root, "gone")} {
		require.NoError(t, os.RemoveAll(filepath.Join(s.root, dir)))
		require.NoError(t, os.Symlink(target, filepath.Join(s.root, dir)))
		place := s.places(t)[ids[0]]
		require.Empty(t, place.Runtime)
		require.Empty(t, place.Home)
		require.Empty(t, place.Workspaces)
		require.NoError(t, os.Remove(filepath.Join(s.root, dir)))
	}
	// A link above it is one as well, and may be an error.
	for above := filepath.Dir(dir); above != "."; above = filepath.Dir(above) {
		below, err := filepath.Rel(above, dir)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(precious, below), 0o700))
		at := filepath.Join(s.root, above)
		require.NoError(t, os.Rename(at, at+".aside"))
		require.NoError(t, os.Symlink(precious, at))
		list, _ := s.layout.Places(t.Context())
		for _, place := range list {
			require.Empty(t, place.Runtime, above)
			require.Empty(t, place.Home, above)
			require.Empty(t, place.Workspaces, above)
		}
		require.NoError(t, os.Remove(at))
		require.NoError(t, os.Rename(at+".aside", at))
	}
	require.FileExists(t, filepath.Join(precious, "work"))
}

func (s *suite) unreadable(t testing.TB) {
	t.Helper()
	s.make(t, ids[0], time.Now())
	meta := filepath.Join(s.root, storage.ConversationsDir, ids[0], "meta.json")
	require.NoError(t, os.Remove(meta))
	require.NoError(t, unix.Mkfifo(meta, 0o600))
	require.NotEmpty(t, s.places(t)[ids[0]].Busy, "and the list does not hang at a pipe")
}

func (s *suite) exclusive(t testing.TB) {
	t.Helper()
	s.make(t, ids[0], time.Now())
	s.make(t, ids[1], time.Now())
	release, busy, err := s.layout.Hold(t.Context(), ids[0])
	s.needFree(t, busy, err)
	other := s.New(s.root, Writer(s.root))
	none, busy, err := other.Hold(t.Context(), ids[0])
	require.NoError(t, err)
	require.NotEmpty(t, busy)
	require.Nil(t, none)
	beside, busy, err := other.Hold(t.Context(), ids[1])
	s.needFree(t, busy, err)
	beside()
	release()
	release()
	release, busy, err = other.Hold(t.Context(), ids[0])
	s.needFree(t, busy, err)
	release()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	none, _, err = other.Hold(ended, ids[0])
	require.Error(t, err, "with a context that has ended")
	require.Nil(t, none)
}

func (s *suite) needFree(t testing.TB, busy string, err error) {
	t.Helper()
	require.NoError(t, err)
	if runtime.GOOS != "linux" && strings.Contains(busy, "needs Linux") {
		t.Skip("needs Linux: " + busy)
	}
	require.Empty(t, busy)
}

func (s *suite) used(t testing.TB) {
	t.Helper()
	dir := s.make(t, ids[0], time.Now())
	history := filepath.Join(s.root, storage.ConversationsDir, ids[0])
	busy := func(part string) {
		t.Helper()
		release, busy, err := s.layout.Hold(t.Context(), ids[0])
		require.NoError(t, err)
		require.Contains(t, busy, part)
		require.Nil(t, release)
	}
	free := func() {
		t.Helper()
		release, busy, err := s.layout.Hold(t.Context(), ids[0])
		s.needFree(t, busy, err)
		release()
	}
	free()
	lease := filepath.Join(history, "owner_lease.json")
	require.NoError(t, os.WriteFile(lease, fmt.Appendf(nil, `{"owner_instance_id":"i","generation":1,"expires_at":%d,"owner_host":"elsewhere","owner_pid":1}`, time.Now().Add(time.Minute).Unix()), 0o600))
	busy("loaded")
	require.NotEmpty(t, s.places(t)[ids[0]].Busy)
	require.NoError(t, os.Remove(lease))
	free()
	state := filepath.Join(history, "base_state.json")
	before, err := os.ReadFile(state)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(state, []byte(`{"execution_status":"running"}`), 0o600))
	busy("running")
	require.NotEmpty(t, s.places(t)[ids[0]].Busy)
	require.NoError(t, os.WriteFile(state, before, 0o600)) //nolint:gosec // of the suite
	lock, err := os.OpenFile(filepath.Join(history, ".owner_lease.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	busy("lock")
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	free()
	require.FileExists(t, filepath.Join(s.root, dir, "work"))
}

func (s *suite) process(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: only /proc shows where processes work")
	}
	dir := s.make(t, ids[0], time.Now())
	child := exec.CommandContext(t.Context(), "sleep", "300")
	child.Dir = filepath.Join(s.root, dir)
	require.NoError(t, child.Start())
	release, busy, err := s.layout.Hold(t.Context(), ids[0])
	require.NoError(t, err)
	require.Nil(t, release)
	require.Contains(t, busy, fmt.Sprintf("process %d", child.Process.Pid))
	require.NoError(t, child.Process.Kill())
	_ = child.Wait() // it was killed
	release, busy, err = s.layout.Hold(t.Context(), ids[0])
	s.needFree(t, busy, err)
	release()
}
