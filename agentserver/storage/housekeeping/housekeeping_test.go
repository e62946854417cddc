package housekeeping_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/storage/housekeeping"
	"github.com/openhands/boxkeeper/box"
)

const id = "0123456789abcdef0123456789abcdef"

func nobody(context.Context, []string) (string, error) { return "", nil }

func newBox(t *testing.T) string {
	t.Helper()
	// Short, since sockets have short names.
	root, err := os.MkdirTemp("", "hk-") //nolint:usetesting // sockets need a short path
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	root, err = filepath.EvalSymlinks(root)
	require.NoError(t, err)
	for _, dir := range []string{"conversations", "bash_events", "tmp", "worktrees"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o700))
	}
	return root
}

// put writes a file of an age.
func put(t *testing.T, place string, age time.Duration) {
	t.Helper()
	require.NoError(t, os.WriteFile(place, []byte(strings.Repeat("x", 5000)), 0o600))
	at := time.Now().Add(-age)
	require.NoError(t, os.Chtimes(place, at, at))
}

// both checks that a look and a removal agree, and returns the items by path.
func both(t *testing.T, k *housekeeping.Keeper) map[string]box.ReclaimItem {
	t.Helper()
	seen, err := k.Items(t.Context())
	require.NoError(t, err)
	again, err := k.Items(t.Context())
	require.NoError(t, err)
	require.Equal(t, seen, again, "a look changes nothing")
	taken, err := k.Take(t.Context())
	require.NoError(t, err)
	require.Equal(t, seen, taken, "what was shown is what is done")
	out := map[string]box.ReclaimItem{}
	for _, item := range taken {
		require.NotContains(t, out, item.Path)
		out[item.Path] = item
	}
	return out
}

// blocks is what a file occupies.
func blocks(t *testing.T, place string) int64 {
	t.Helper()
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(place, &st))
	return st.Blocks * 512
}

func stamp(age time.Duration) string {
	return time.Now().Add(-age).UTC().Format("20060102150405") + "123456"
}

func TestOldRecordsOfBashCommandsGo(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	root := newBox(t)
	hex := func(n int) string { return fmt.Sprintf("%032x", n) }
	at := func(name string) string { return filepath.Join(root, "bash_events", name) }
	old := []string{stamp(10*day) + "_BashCommand_" + hex(1), stamp(10*day) + "_BashOutput_" + hex(1) + "_" + hex(2)}
	young := []string{
		stamp(day) + "_BashCommand_" + hex(3),
		// A command that runs for long has young outputs.
		stamp(20*day) + "_BashCommand_" + hex(4), stamp(9*day) + "_BashOutput_" + hex(4) + "_" + hex(5), stamp(time.Hour) + "_BashOutput_" + hex(4) + "_" + hex(6),
	}
	foreign := []string{"notes.txt", "20260101000000000000_BashCommand_x", stamp(10*day) + "_BashCommand_" + hex(7) + ".bak", "a\nb"}
	for _, name := range append(append(old, young[1], young[2]), foreign...) {
		put(t, at(name), 9*day)
	}
	put(t, at(young[0]), day)
	put(t, at(young[3]), time.Hour)
	copied, renamed := stamp(10*day)+"_BashCommand_"+hex(8), stamp(time.Hour)+"_BashCommand_"+hex(9)
	put(t, at(copied), 0)
	put(t, at(renamed), 10*day)
	outside := filepath.Join(t.TempDir(), "precious")
	put(t, outside, 100*day)
	link := stamp(10*day) + "_BashCommand_" + hex(10)
	require.NoError(t, os.Symlink(outside, at(link)))

	items := both(t, housekeeping.New(root, housekeeping.Options{Users: nobody}))
	require.Contains(t, items["bash_events"].Skipped, "no age is set")
	want := blocks(t, at(old[0])) + blocks(t, at(old[1]))
	items = both(t, housekeeping.New(root, housekeeping.Options{Users: nobody, BashEvents: 7 * day}))
	require.Empty(t, items["bash_events"].Skipped)
	require.Equal(t, want, items["bash_events"].Bytes)
	require.Contains(t, items["bash_events"].Evidence, "2 records")
	for _, name := range old {
		require.NoFileExists(t, at(name))
	}
	for _, name := range append(append(young, copied, renamed), foreign...) {
		require.FileExists(t, at(name), name)
	}
	require.FileExists(t, outside)
	_, err := os.Lstat(at(link))
	require.NoError(t, err, "a link is no record")
	require.Empty(t, both(t, housekeeping.New(root, housekeeping.Options{Users: nobody, BashEvents: 7 * day}))["bash_events"])
}

func TestPackedHistoriesThatNobodyReadsGo(t *testing.T) {
	t.Parallel()
	root := newBox(t)
	_, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{ID: id})
	require.NoError(t, err)
	at := filepath.Join(root, "conversations", id+".zip")
	name := "conversations/" + id + ".zip"
	keep := func(users func(context.Context, []string) (string, error), part string) {
		t.Helper()
		items := both(t, housekeeping.New(root, housekeeping.Options{Users: users}))
		require.Contains(t, items[name].Skipped, part)
		require.FileExists(t, at)
	}
	put(t, at, 59*time.Minute)
	keep(nobody, "may be in the making")
	put(t, at, 2*time.Hour)
	keep(func(context.Context, []string) (string, error) { return "process 7", nil }, "in use by process 7")
	keep(func(context.Context, []string) (string, error) { return "", errors.New("no list") }, "cannot tell")
	if runtime.GOOS == "linux" {
		// A download that goes on for hours has the file open.
		reader := exec.CommandContext(t.Context(), "tail", "-f", at)
		require.NoError(t, reader.Start())
		open := func() bool {
			links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", reader.Process.Pid))
			for _, link := range links {
				if to, err := os.Readlink(link); err == nil && to == at {
					return true
				}
			}
			return false
		}
		for deadline := time.Now().Add(30 * time.Second); !open(); runtime.Gosched() {
			require.True(t, time.Now().Before(deadline))
		}
		keep(nil, fmt.Sprintf("in use by process %d", reader.Process.Pid))
		require.NoError(t, reader.Process.Kill())
		_ = reader.Wait() // it was killed
	}
	for _, other := range []string{"x.zip", strings.Repeat("f", 32) + ".zip", strings.ToUpper(id) + ".zip"} {
		put(t, filepath.Join(root, "conversations", other), 100*time.Hour)
	}
	want := blocks(t, at)
	items := both(t, housekeeping.New(root, housekeeping.Options{Users: nobody}))
	require.Empty(t, items[name].Skipped)
	require.Equal(t, want, items[name].Bytes)
	require.NoFileExists(t, at)
	require.Contains(t, items["conversations/"+strings.Repeat("f", 32)+".zip"].Skipped, "not there any more", "it may be the last of it")
	require.FileExists(t, filepath.Join(root, "conversations/x.zip"))
	require.DirExists(t, filepath.Join(root, "conversations", id))
}

func TestSocketDirectoriesOfDeadServersGo(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: only /proc shows who listens on a socket")
	}
	root := newBox(t)
	ended := exec.CommandContext(t.Context(), "true")
	require.NoError(t, ended.Run())
	dead := ended.Process.Pid
	age := func(place string) {
		at := time.Now().Add(-2 * time.Hour)
		require.NoError(t, os.Chtimes(place, at, at))
	}
	server := func(pid int) (place string) {
		place = filepath.Join(root, "tmp", fmt.Sprintf("openhands-agent-server-%d", pid))
		require.NoError(t, os.MkdirAll(filepath.Join(place, "tmux-0"), 0o700))
		return place
	}
	listen := func(place string) net.Listener {
		l, err := net.Listen("unix", filepath.Join(place, "tmux-0/openhands")) //nolint:noctx // local and instant
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false) //nolint:forcetypeassert,errcheck // made above
		return l
	}
	k := housekeeping.New(root, housekeeping.Options{})
	own := server(os.Getpid())
	age(own)
	place := server(dead)
	name, err := filepath.Rel(root, place)
	require.NoError(t, err)
	require.Contains(t, both(t, k)[name].Skipped, "less than an hour ago")
	listener := listen(place)
	age(place)
	require.Contains(t, both(t, k)[name].Skipped, "a process listens")
	require.NoError(t, listener.Close())
	// What another test starts at this moment has the socket until it runs.
	for deadline := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		table, err := os.ReadFile("/proc/net/unix")
		require.NoError(t, err)
		if !strings.Contains(string(table), place) {
			break
		}
		require.True(t, time.Now().Before(deadline))
	}
	require.NoError(t, os.WriteFile(filepath.Join(place, "tmux-0/notes"), nil, 0o600))
	require.Contains(t, both(t, k)[name].Skipped, "no socket", "somebody's file")
	require.FileExists(t, filepath.Join(place, "tmux-0/notes"))
	require.NoError(t, os.Remove(filepath.Join(place, "tmux-0/notes")))
	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(place, "tmux-1")))
	age(place)
	require.Contains(t, both(t, k)[name].Skipped, "no socket")
	require.NoError(t, os.Remove(filepath.Join(place, "tmux-1")))
	age(place)
	items := both(t, k)
	require.Empty(t, items[name].Skipped)
	require.NoDirExists(t, place)
	require.DirExists(t, own)
	require.DirExists(t, outside)
	own, err = filepath.Rel(root, own)
	require.NoError(t, err)
	require.Contains(t, items[own].Skipped, "lives")
}

// A server whose paths in the box are too long for a socket makes its directory
// in the system's own, and leaves its lock in it.
func TestSocketDirectoriesOutsideOfTheBoxGoToo(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: only /proc shows who listens on a socket")
	}
	temp := newBox(t)
	ended := exec.CommandContext(t.Context(), "true")
	require.NoError(t, ended.Run())
	server := func(pid int) (place string) {
		place = filepath.Join(temp, fmt.Sprintf("openhands-agent-server-%d", pid))
		require.NoError(t, os.MkdirAll(filepath.Join(place, "tmux-0"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(place, "tmux-0/.openhands-socket-creation.lock"), nil, 0o644))
		at := time.Now().Add(-2 * time.Hour)
		require.NoError(t, os.Chtimes(place, at, at))
		return place
	}
	dead, live := server(ended.Process.Pid), server(os.Getpid())
	k := housekeeping.New(newBox(t), housekeeping.Options{Temp: []string{temp, filepath.Join(temp, "none")}, Users: nobody})
	lock := filepath.Join(dead, "tmux-0/.openhands-socket-creation.lock")
	require.NoError(t, os.WriteFile(lock, []byte("x"), 0o600))
	require.Contains(t, both(t, k)[dead].Skipped, "no socket", "what says something is somebody's")
	require.NoError(t, os.Truncate(lock, 0))
	items := both(t, k)
	require.Empty(t, items[dead].Skipped)
	require.NoDirExists(t, dead)
	require.DirExists(t, live)
	require.NotContains(t, items, live, "nor is it any box's to tell of")
}

func TestWorktreesWithoutAConversationAreListedAndStay(t *testing.T) {
	t.Parallel()
	root := newBox(t)
	_, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{ID: id})
	require.NoError(t, err)
	orphan := agentservertest.Dashed(strings.Repeat("f", 32))
	for _, name := range []string{agentservertest.Dashed(id), orphan, "mine"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "worktrees", name, "repo"), 0o700))
	}
	items := both(t, housekeeping.New(root, housekeeping.Options{Users: nobody}))
	require.Len(t, items, 2)
	require.Contains(t, items["worktrees/"+orphan].Skipped, "not there any more")
	require.Contains(t, items["worktrees/mine"].Skipped, "no conversation's")
	require.DirExists(t, filepath.Join(root, "worktrees", orphan, "repo"))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "worktrees")))
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(root, "worktrees")))
	require.Empty(t, both(t, housekeeping.New(root, housekeeping.Options{Users: nobody})))
}

// Newer agent-servers keep the records of a conversation's commands with it: they
// are its history, and the answer says so.
func TestRecordsInAConversationAreItsHistoryAndStay(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	root := newBox(t)
	_, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{ID: id})
	require.NoError(t, err)
	other := strings.Repeat("e", 32)
	_, err = agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{ID: other})
	require.NoError(t, err)
	require.Empty(t, both(t, housekeeping.New(root, housekeeping.Options{Users: nobody, BashEvents: day})))
	scoped := "conversations/" + id + "/bash_events"
	record := filepath.Join(root, scoped, stamp(100*day)+"_BashCommand_"+strings.Repeat("1", 32))
	require.NoError(t, os.Mkdir(filepath.Join(root, scoped), 0o700))
	put(t, record, 100*day)
	// A link is nobody's records.
	require.NoError(t, os.Symlink(filepath.Join(root, scoped), filepath.Join(root, "conversations", other, "bash_events")))
	for _, age := range []time.Duration{0, day} {
		items := both(t, housekeeping.New(root, housekeeping.Options{Users: nobody, BashEvents: age}))
		require.Len(t, items, 1)
		require.Equal(t, id, items[scoped].ConversationID)
		require.Contains(t, items[scoped].Skipped, "history")
		require.FileExists(t, record)
	}
}
