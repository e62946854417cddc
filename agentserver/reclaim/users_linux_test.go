package reclaim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// user starts "sleep", told as each case needs it, and waits until it runs.
func user(t *testing.T, change func(*exec.Cmd)) {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), "sh", "-c", "echo ready && exec "+sleep+" 600")
	change(command)
	ready(t, command)
}

// copyOf puts a program of its own into the tree.
func copyOf(t *testing.T, program, to string) {
	t.Helper()
	from, err := exec.LookPath(program)
	require.NoError(t, err)
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, content, 0o755))
}

// Scenario 87: a tree in which something works, in whatever way, is put back,
// and the one beside it goes.
func TestScenario87EveryKindOfUserIsSeen(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, root, cache string){
		"its working directory is inside": func(t *testing.T, _, cache string) {
			t.Helper()
			user(t, func(c *exec.Cmd) { c.Dir = filepath.Join(cache, "content-v2/sha512") })
		},
		"a file inside is open": func(t *testing.T, _, cache string) {
			t.Helper()
			file, err := os.Open(filepath.Join(cache, "content-v2/sha512/00/blob"))
			require.NoError(t, err)
			defer file.Close()
			user(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{file} })
		},
		"a file inside is open and deleted": func(t *testing.T, _, cache string) {
			t.Helper()
			file, err := os.Create(filepath.Join(cache, "content-v2/sha512/deleted"))
			require.NoError(t, err)
			defer file.Close()
			require.NoError(t, os.Remove(file.Name()))
			user(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{file} })
		},
		"a directory inside is open": func(t *testing.T, _, cache string) {
			t.Helper()
			file, err := os.Open(filepath.Join(cache, "content-v2"))
			require.NoError(t, err)
			defer file.Close()
			user(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{file} })
		},
		"its program is inside": func(t *testing.T, _, cache string) {
			t.Helper()
			program := filepath.Join(cache, "content-v2/program")
			copyOf(t, "sleep", program)
			command := exec.CommandContext(t.Context(), program)
			command.Args = []string{"sleep", "600"}
			require.NoError(t, command.Start()) // returns when the program runs
			t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
		},
		"a file inside is mapped and closed": func(t *testing.T, _, cache string) {
			t.Helper()
			command := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$")
			command.Env = append(os.Environ(), mapEnv+"="+filepath.Join(cache, "content-v2/sha512/00/blob"))
			in, err := command.StdinPipe()
			require.NoError(t, err)
			t.Cleanup(func() { in.Close() })
			ready(t, command)
		},
		"only the name it was started by is inside, as of an environment": func(t *testing.T, root, cache string) {
			t.Helper()
			require.NoError(t, os.MkdirAll(filepath.Join(cache, "bin"), 0o755))
			sleep, err := exec.LookPath("sleep")
			require.NoError(t, err)
			python := filepath.Join(cache, "bin/python")
			require.NoError(t, os.Symlink(sleep, python))
			command := exec.CommandContext(t.Context(), "sh", "-c", `echo ready && exec "$0" 600`, python)
			command.Dir = root
			ready(t, command)
			became(t, command, python)
		},
		"the name it was started by is relative": func(t *testing.T, root, cache string) {
			t.Helper()
			require.NoError(t, os.MkdirAll(filepath.Join(cache, "bin"), 0o755))
			sleep, err := exec.LookPath("sleep")
			require.NoError(t, err)
			require.NoError(t, os.Symlink(sleep, filepath.Join(cache, "bin/python")))
			command := exec.CommandContext(t.Context(), "sh", "-c", `echo ready && exec _cacache/bin/python 600`)
			command.Dir = filepath.Join(root, "home/.npm")
			ready(t, command)
			became(t, command, "_cacache/bin/python")
		},
		"it runs in an environment by its variable": func(t *testing.T, _, cache string) {
			t.Helper()
			user(t, func(c *exec.Cmd) { c.Env = append(os.Environ(), "VIRTUAL_ENV="+cache) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			cache := filepath.Join(root, npm(t, root, 3))
			put(t, root, "home/.npm/_cacache2/x", "x")
			tagged(t, root, "home/.cache/free")
			use(t, root, cache)
			report := do(t, open(t, root), box.ReclaimRequest{})
			require.Contains(t, itemOf(t, report, "home/.npm/_cacache").Skipped, "in use by process")
			require.FileExists(t, filepath.Join(cache, "content-v2/sha512/00/blob"))
			require.Empty(t, itemOf(t, report, "home/.cache/free").Skipped)
		})
	}
}

// What only looks like a use is none.
func TestScenario87ANameThatOnlyBeginsAlikeIsNoUse(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	npm(t, root, 1)
	put(t, root, "home/.npm/_cacache2/x", "x")
	user(t, func(c *exec.Cmd) {
		c.Dir = filepath.Join(root, "home/.npm/_cacache2")
		c.Env = append(os.Environ(), "VIRTUAL_ENV="+root+"/home/.npm/_cacache2", "OTHER="+root+"/home/.npm/_cacache")
	})
	require.Empty(t, itemOf(t, do(t, open(t, root), box.ReclaimRequest{}), "home/.npm/_cacache").Skipped)
}

// mapEnv makes the test program map a file, close it, and wait.
const mapEnv = "RECLAIM_TEST_MAP"

func mapAndWait(name string) int {
	file, err := os.Open(name)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		fmt.Println(err)
		return 1
	}
	file.Close()
	os.Args = []string{"waits"}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

// A process elsewhere sees the tree under another path, and its links say that
// one.
func TestScenario87AUserInAnotherMountNamespaceIsSeen(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	root, elsewhere := t.TempDir(), t.TempDir()
	place := npm(t, root, 3)
	tagged(t, root, "home/.cache/free")
	// The root is mounted elsewhere, and here it is hidden.
	inNamespace(t, elsewhere+"/"+place+"/content-v2", "mount --bind "+root+" "+elsewhere+" && mount -t tmpfs none "+root)
	found, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	seen := false
	for _, link := range found {
		at, _ := os.Readlink(link)
		seen = seen || at == elsewhere+"/"+place+"/content-v2"
	}
	require.True(t, seen, "the process does not name another path, so this shows nothing")
	report := do(t, open(t, root), box.ReclaimRequest{})
	require.Contains(t, itemOf(t, report, place).Skipped, "in use by process")
	require.Empty(t, itemOf(t, report, "home/.cache/free").Skipped)
}

// What works in a container has the box under another path. It is seen before
// the conversation is marked, since the mark is never taken back.
func TestScenario87WhoWorksInAnotherMountNamespaceKeepsAConversationUnmarked(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	root, elsewhere := t.TempDir(), t.TempDir()
	places := conversations(t, root, 2)
	runtime := filepath.Join(runtimes, conversationID(0))
	inNamespace(t, elsewhere+"/"+runtime+"/workspace", "mount --bind "+root+" "+elsewhere)
	r := openWith(t, root, reclaim.Options{Layouts: []reclaim.Layout{places}, Unsaved: saved})
	both := []string{conversationID(0), conversationID(1)}
	report := do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: both})
	require.Contains(t, itemOf(t, report, runtime).Skipped, "in use by process")
	require.FileExists(t, filepath.Join(root, runtime, "workspace/repo/main.js"))
	require.Equal(t, both[1:], places.archived)
	report = do(t, r, box.ReclaimRequest{Tiers: []box.Tier{box.TierDependencies}, ConversationIDs: both[:1]})
	require.Contains(t, itemOf(t, report, nodeModules(0)).Skipped, "in use by process", "it is enough to work beside them")
}

// An ordinary user can't look into the processes of others. One that may be
// inside keeps everything; one that can't get there does not.
func TestScenario87AProcessThatMayNotBeInspectedIsUnknown(t *testing.T) {
	t.Parallel()
	if root := os.Getenv("RECLAIM_TEST_UNKNOWN"); root != "" {
		r, err := reclaim.Open(root, reclaim.Options{})
		require.NoError(t, err)
		t.Cleanup(r.Close)
		report := do(t, r, box.ReclaimRequest{})
		fmt.Printf("SAID %s.\n", report.Items[0].Skipped)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("processes of several users need root")
	}
	const other = 65533
	for name, row := range map[string]struct {
		mode    os.FileMode
		process uint32 // who else works in it
		said    string
	}{
		"another user, and the box is open to others": {0o755, other, `SAID in use by cannot tell: process [0-9]+ \(.*\) of user [0-9]+ may not be inspected\.`},
		"another user, and the box is private":        {0o700, other, `SAID \.`},
		"a service of the machine":                    {0o700, 0, `SAID \.`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, err := os.MkdirTemp("/var/tmp", "reclaim-") //nolint:usetesting // where the other user may enter
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(root) })
			npm(t, root, 2)
			require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
				require.NoError(t, err)
				return os.Lchown(path, ordinary, ordinary)
			}))
			require.NoError(t, os.Chmod(root, row.mode))
			busy := exec.CommandContext(t.Context(), "sh", "-c", "echo ready && exec sleep 600")
			busy.Dir = "/"
			busy.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: row.process, Gid: row.process}}
			ready(t, busy)
			waitForSleep(t, busy.Process.Pid)
			out, err := run(t, surroundings{user: ordinary},
				[]string{"-test.run=^TestScenario87AProcessThatMayNotBeInspectedIsUnknown$", "-test.v"}, "RECLAIM_TEST_UNKNOWN="+root)
			require.NoError(t, err, "%s", out)
			require.Regexp(t, row.said, string(out))
		})
	}
}

func waitForSleep(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return err == nil && string(name) == "sleep\n"
	}, 1e10, 1e6)
}

// Looking for users is one call for each open file of each process.
func BenchmarkLookForUsers(b *testing.B) {
	root := b.TempDir()
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(b, err)
	defer r.Close()
	files := 0
	found, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	files = len(found)
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for b.Loop() {
		if err := r.LookForUsers(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(processes)), "processes")
	b.ReportMetric(float64(files), "files")
}

// became waits until a shell runs the program that it was told to become: before,
// the program may be moved away from under it.
func became(t *testing.T, command *exec.Cmd, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", command.Process.Pid))
		return err == nil && strings.HasPrefix(string(line), name+"\x00")
	}, time.Minute, time.Millisecond)
}
