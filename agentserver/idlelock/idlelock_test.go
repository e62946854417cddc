package idlelock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/box"
)

func nobody(context.Context, []string) (string, error) { return "", nil }

func locker() *idlelock.Locker { return idlelock.New(idlelock.Options{Users: nobody}) }

func conversation(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "base_state.json"), []byte(`{"execution_status":"idle"}`), 0o600))
	return dir
}

// deadPID is a process number that nobody has any more.
func deadPID(t *testing.T) int {
	t.Helper()
	child := exec.CommandContext(t.Context(), "true")
	require.NoError(t, child.Run())
	return child.Process.Pid
}

func hold(t *testing.T, l *idlelock.Locker, dir string) (busy string) {
	t.Helper()
	release, busy, err := l.Hold(t.Context(), dir)
	require.NoError(t, err)
	if busy == "" {
		release()
	} else {
		require.Nil(t, release)
	}
	return busy
}

func TestWhoOwnsAConversation(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	require.NoError(t, err)
	soon, past := time.Now().Add(24*time.Hour).Unix(), time.Now().Add(-time.Minute).Unix()
	dead, own := deadPID(t), os.Getpid()
	lease := func(expires int64, host string, pid int) string {
		return fmt.Sprintf(`{"owner_instance_id":"i","generation":3,"expires_at":%d.25,"owner_host":%q,"owner_pid":%d}`, expires, host, pid)
	}
	for name, row := range map[string]struct{ lease, busy string }{
		"no lease":                             {"", ""},
		"a live owner here":                    {lease(soon, host, own), "loaded by the agent-server"},
		"a dead owner here":                    {lease(soon, host, dead), ""},
		"a dead owner here, run out":           {lease(past, host, dead), ""},
		"an owner elsewhere":                   {lease(soon, "elsewhere", dead), "loaded by an agent-server"},
		"an owner elsewhere, run out":          {lease(past, "elsewhere", own), ""},
		"a live owner here, run out":           {lease(past, host, own), "its lease has run out, and its owner"},
		"an older server's":                    {fmt.Sprintf(`{"owner_instance_id":"i","generation":3,"expires_at":%d}`, soon), "loaded by"},
		"an older server's, run out":           {fmt.Sprintf(`{"owner_instance_id":"i","generation":3,"expires_at":%d}`, past), ""},
		"no host but a dead number":            {fmt.Sprintf(`{"owner_instance_id":"i","generation":3,"expires_at":%d,"owner_pid":%d}`, soon, dead), "loaded by"},
		"a host and no number":                 {fmt.Sprintf(`{"owner_instance_id":"i","generation":3,"expires_at":%d,"owner_host":%q,"owner_pid":"x"}`, soon, host), "loaded by"},
		"a number that is none":                {lease(soon, host, 0), "loaded by"},
		"a half written one":                   {lease(past, host, dead)[:40], "its lease cannot be read"},
		"an empty one":                         {" ", "its lease cannot be read"},
		"a list":                               {"[]", "its lease cannot be read"},
		"null":                                 {"null", "its lease cannot be read"},
		"none of its fields":                   {"{}", "its lease cannot be read"},
		"no time":                              {`{"owner_instance_id":"i","generation":1}`, "its lease cannot be read"},
		"a time that is a word":                {`{"owner_instance_id":"i","generation":1,"expires_at":"1"}`, "its lease cannot be read"},
		"a time that is null":                  {`{"owner_instance_id":"i","generation":1,"expires_at":null}`, "its lease cannot be read"},
		"a time that Python alone reads":       {`{"owner_instance_id":"i","generation":1,"expires_at":NaN}`, "its lease cannot be read"},
		"a time out of range":                  {`{"owner_instance_id":"i","generation":1,"expires_at":1e999}`, "its lease cannot be read"},
		"the end of time":                      {`{"owner_instance_id":"i","generation":1,"expires_at":1e300}`, "loaded by"},
		"a generation that is no number":       {`{"owner_instance_id":"i","generation":"1","expires_at":1}`, "its lease cannot be read"},
		"no owner":                             {`{"generation":1,"expires_at":1}`, "its lease cannot be read"},
		"a second time under another spelling": {fmt.Sprintf(`{"owner_instance_id":"i","generation":1,"expires_at":%d,"Expires_At":1}`, soon), "loaded by"},
		"two documents":                        {lease(past, host, dead) + "{}", "its lease cannot be read"},
		"too large a one":                      {lease(past, host, dead) + strings.Repeat(" ", 1<<17), "its lease cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := conversation(t)
			if row.lease != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "owner_lease.json"), []byte(row.lease), 0o600))
			}
			l := locker()
			for _, busy := range []string{l.Peek(dir), hold(t, l, dir), l.Peek(dir)} {
				if row.busy == "" {
					require.Empty(t, busy)
				} else {
					require.Contains(t, busy, row.busy)
				}
			}
			if row.lease != "" {
				after, err := os.ReadFile(filepath.Join(dir, "owner_lease.json"))
				require.NoError(t, err)
				require.Equal(t, row.lease, string(after), "a lease is only read")
			}
		})
	}
}

func TestALeaseThatRanOutIsLeftBehindOnlyWhenItsOwnerLeavesItSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host, err := os.Hostname()
		require.NoError(t, err)
		dir := conversation(t)
		write := func() {
			text := fmt.Sprintf(`{"owner_instance_id":"i","generation":3,"expires_at":%d,"owner_host":%q,"owner_pid":%d}`, time.Now().Add(-time.Hour).Unix(), host, os.Getpid())
			require.NoError(t, os.WriteFile(filepath.Join(dir, "owner_lease.json"), []byte(text), 0o600))
		}
		write()
		l := locker()
		require.NotEmpty(t, hold(t, l, dir))
		time.Sleep(59 * time.Second)
		require.NotEmpty(t, hold(t, l, dir), "as after a box was frozen: its server is about to write it again")
		write()
		time.Sleep(59 * time.Second)
		require.NotEmpty(t, hold(t, l, dir), "it was written again")
		time.Sleep(61 * time.Second)
		require.Empty(t, hold(t, l, dir))
		// The number of another one's process may be its former owner's.
		require.NoError(t, os.Remove(filepath.Join(dir, "owner_lease.json")))
		require.Empty(t, hold(t, l, dir))
		write()
		require.NotEmpty(t, hold(t, l, dir), "a new one is looked at anew")
	})
}

func TestWhatTheStateSays(t *testing.T) {
	t.Parallel()
	twice := `{"execution_status":"running","Execution_Status":"idle"}`
	for state, busy := range map[string]string{
		`{"execution_status":"idle"}`:       "",
		`{"execution_status":"paused"}`:     "",
		`{"execution_status":"a new word"}`: "",
		`{}`:                                "",
		`{"execution_status":"running"}`:    "is running",
		`{"execution_status":"deleting"}`:   "is deleting",
		`{"execution_status":7}`:            "its state cannot be read",
		`{"execution_status":""}`:           "its state cannot be read",
		`{"execution_status":"idle"`:        "its state cannot be read",
		"":                                  "its state cannot be read",
		twice:                               "is running",
	} {
		dir := conversation(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "base_state.json"), []byte(state), 0o600))
		got := hold(t, locker(), dir)
		if busy == "" {
			require.Empty(t, got, state)
		} else {
			require.Contains(t, got, busy, state)
		}
	}
	dir := conversation(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "base_state.json")))
	require.Contains(t, hold(t, locker(), dir), "its state cannot be read")
}

func TestNothingInTheWayIsFollowedOrWaitedFor(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(outside, []byte(`{"execution_status":"idle"}`), 0o600))
	for _, name := range []string{"base_state.json", "owner_lease.json", ".owner_lease.lock"} {
		for kind, put := range map[string]func(string) error{
			"a link":      func(at string) error { return os.Symlink(outside, at) },
			"a pipe":      func(at string) error { return unix.Mkfifo(at, 0o600) },
			"a directory": func(at string) error { return os.Mkdir(at, 0o700) },
		} {
			dir := conversation(t)
			_ = os.Remove(filepath.Join(dir, name)) // it may not be there
			require.NoError(t, put(filepath.Join(dir, name)))
			require.NotEmpty(t, hold(t, locker(), dir), "%s as %s", kind, name)
		}
	}
	content, err := os.ReadFile(outside)
	require.NoError(t, err)
	require.NotEmpty(t, content)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(conversation(t), link))
	require.NotEmpty(t, hold(t, locker(), link), "a link in place of the directory")
	_, busy, err := locker().Hold(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.Empty(t, busy)
	require.Equal(t, box.ClassNotFound, box.ClassOf(err))
}

func TestALockLeavesTheHoldersFileAsItIs(t *testing.T) {
	t.Parallel()
	dir := conversation(t)
	place := filepath.Join(dir, ".owner_lease.lock")
	require.NoError(t, os.WriteFile(place, []byte("mine"), 0o600))
	file, err := os.OpenFile(place, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	require.Contains(t, hold(t, locker(), dir), "is held by another process")
	text, err := os.ReadFile(place)
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))
	// As of a holder that removes its file: ours is made anew, and is another.
	require.NoError(t, os.Remove(place))
	release, busy, err := locker().Hold(t.Context(), dir)
	require.NoError(t, err)
	require.Empty(t, busy)
	require.NotEmpty(t, hold(t, locker(), dir))
	release()
	release()
	require.Empty(t, hold(t, locker(), dir))
}

func TestUsersAreAskedForBeforeTheLockIsTaken(t *testing.T) {
	t.Parallel()
	dir := conversation(t)
	var asked []string
	answer, fail := "", error(nil)
	l := idlelock.New(idlelock.Options{Users: func(_ context.Context, dirs []string) (string, error) {
		asked = dirs
		require.Empty(t, hold(t, locker(), dir), "nobody waits for our look")
		return answer, fail
	}})
	release, busy, err := l.Hold(t.Context(), dir, "/work", "/home")
	require.NoError(t, err)
	require.Empty(t, busy)
	release()
	require.Equal(t, []string{dir, "/work", "/home"}, asked)
	answer = "process 7 vim"
	require.Equal(t, "in use by process 7 vim", hold(t, l, dir))
	answer, fail = "", errors.New("no list")
	require.Contains(t, hold(t, l, dir), "cannot tell whether a process uses it")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = l.Hold(ended, dir)
	require.Equal(t, box.ClassCanceled, box.ClassOf(err))
}

func TestAServerWithoutLeasesTellsNothing(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		env  map[string]string
		file string
		none bool
	}{
		"nothing set":                     {nil, "", false},
		"a time":                          {map[string]string{"OH_LEASE_TTL_SECONDS": "45"}, "", false},
		"zero":                            {map[string]string{"OH_LEASE_TTL_SECONDS": "0"}, "", true},
		"zero with a point":               {map[string]string{"OH_LEASE_TTL_SECONDS": "0.0"}, "", true},
		"no number":                       {map[string]string{"OH_LEASE_TTL_SECONDS": "off"}, "", true},
		"zero in the file":                {nil, `{"lease_ttl_seconds": 0}`, true},
		"a time in the file":              {nil, `{"lease_ttl_seconds": 30.5}`, false},
		"another setting in the file":     {nil, `{"x": 0}`, false},
		"a file that does not read":       {nil, `{`, true},
		"the environment over the file":   {map[string]string{"OH_LEASE_TTL_SECONDS": "45"}, `{"lease_ttl_seconds": 0}`, false},
		"a word in the file":              {nil, `{"lease_ttl_seconds": "0"}`, true},
		"a file of another place":         {map[string]string{"OPENHANDS_AGENT_SERVER_CONFIG_PATH": "workspace/openhands_agent_server_config.json"}, `{"lease_ttl_seconds": 0}`, true},
		"another place that is not there": {map[string]string{"OPENHANDS_AGENT_SERVER_CONFIG_PATH": "none.json"}, `{"lease_ttl_seconds": 0}`, false},
	} {
		root := t.TempDir()
		if row.file != "" {
			require.NoError(t, os.Mkdir(filepath.Join(root, "workspace"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, "workspace/openhands_agent_server_config.json"), []byte(row.file), 0o600))
		}
		why := idlelock.NoLeases(func(name string) string { return row.env[name] }, root)
		require.Equal(t, row.none, why != "", "%s: %s", name, why)
		if row.none {
			l := idlelock.New(idlelock.Options{Users: nobody, NoLeases: why})
			require.Contains(t, hold(t, l, conversation(t)), "nothing tells whether it is loaded")
		}
	}
}

func FuzzParseLease(f *testing.F) {
	for _, seed := range []string{
		`{"owner_instance_id":"i","generation":1,"expires_at":1764460000.5,"owner_host":"h","owner_pid":7}`,
		`{"owner_instance_id":"i","generation":1,"expires_at":1}`, `{}`, `[]`, ``, `null`, `{"expires_at":1e308}`,
		`{"owner_instance_id":"","generation":-1,"expires_at":-1e308,"Owner_Pid":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		found, err := idlelock.ParseLease(text)
		if err != nil {
			require.Zero(t, found)
			return
		}
		require.LessOrEqual(t, found.Expires.Year(), 9999)
		require.GreaterOrEqual(t, found.Expires.Year(), -9999)
		// What reads must carry the three names that every server writes.
		for _, name := range []string{"owner_instance_id", "generation", "expires_at"} {
			if !strings.Contains(string(text), name) && !strings.Contains(string(text), `\u`) {
				t.Fatalf("read without %s: %q", name, text)
			}
		}
	})
}

func TestALockWithoutItsNameIsOpenedAnew(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(place string) error
		again  bool
	}{
		"nothing happened":                        {func(string) error { return nil }, false},
		"its holder removed it as it let go":      {os.Remove, true},
		"it was removed, and another has made it": {replace, true},
		"another was moved over it, and it has a second name": {func(place string) error {
			return errors.Join(os.Link(place, place+".2"), replace(place))
		}, true},
	} {
		dir, err := os.Open(t.TempDir())
		require.NoError(t, err)
		place := filepath.Join(dir.Name(), "x.lock")
		file, err := os.Create(place)
		require.NoError(t, err)
		require.NoError(t, row.change(place))
		again, busy := idlelock.LockOpen(int(dir.Fd()), "x.lock", int(file.Fd()))
		require.Equal(t, row.again, again, name)
		require.Empty(t, busy, name)
		release, busy := idlelock.Flock(int(dir.Fd()), "x.lock")
		if row.again {
			require.Empty(t, busy, name)
			release()
		} else {
			require.Contains(t, busy, "is held", name)
		}
		require.NoError(t, errors.Join(file.Close(), dir.Close()))
	}
}

func replace(place string) error {
	return errors.Join(os.WriteFile(place+".new", nil, 0o600), os.Rename(place+".new", place))
}
