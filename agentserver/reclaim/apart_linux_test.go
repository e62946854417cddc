package reclaim_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Where a test goes on in a process of its own, these tell it so.
const (
	apartName   = "RECLAIM_TEST_APART"
	apartFilter = "RECLAIM_TEST_FILTER"
)

// surroundings is what a test needs around it that others must not see.
type surroundings struct {
	mounts bool   // mounts and processes of its own; needs root
	user   uint32 // another user; needs root
	filter string // system calls to refuse, see filterCalls
}

// apart goes on with the test in a process of its own, and reports whether this
// is that process. What it skips is skipped here too, with its reason.
func apart(t *testing.T, s surroundings) (here bool) {
	t.Helper()
	if os.Getenv(apartName) == t.Name() {
		if s.mounts {
			require.NoError(t, unix.Mount("proc", "/proc", "proc", 0, ""))
		}
		return true
	}
	if (s.mounts || s.user != 0) && os.Getuid() != 0 {
		t.Skip("mounts, and becoming another user, need root")
	}
	arguments := []string{"-test.run=^" + regexp.QuoteMeta(t.Name()) + "$", "-test.v", "-test.timeout=200s"}
	if testing.Short() {
		arguments = append(arguments, "-test.short")
	}
	out, err := run(t, s, arguments, apartName+"="+t.Name())
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "--- SKIP") {
			t.Skipf("in a process of its own: %s", out)
		}
	}
	require.NoError(t, err, "%s", failed(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	t.Logf("%s", out)
	return false
}

var (
	nameLine = regexp.MustCompile(`^\s*=== (?:RUN|PAUSE|CONT|NAME)\s+(\S+)`)
	failLine = regexp.MustCompile(`^\s*--- FAIL: (\S+)`)
)

// failed is what the tests that failed printed: a report may show only the end
// of it all, where the others are. Without such a test it is everything.
func failed(out []byte) string {
	tests := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if match := failLine.FindStringSubmatch(line); match != nil {
			tests[match[1]] = true
		}
	}
	if len(tests) == 0 {
		return string(out)
	}
	var told strings.Builder
	name := ""
	for line := range strings.Lines(string(out)) {
		if match := nameLine.FindStringSubmatch(line); match != nil {
			name = match[1]
		}
		if tests[name] || failLine.MatchString(line) {
			told.WriteString(line)
		}
	}
	return told.String()
}

// run starts this test program again.
func run(t *testing.T, s surroundings, arguments []string, env ...string) ([]byte, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "/proc/self/exe", arguments...)
	command.Env = append(os.Environ(), env...)
	if s.filter != "" {
		command.Env = append(command.Env, apartFilter+"="+s.filter)
	}
	command.SysProcAttr = &syscall.SysProcAttr{}
	if s.mounts {
		command.SysProcAttr.Cloneflags = unix.CLONE_NEWPID
		command.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	if s.user != 0 {
		command.Dir = "/"
		command.SysProcAttr.Credential = &syscall.Credential{Uid: s.user, Gid: s.user}
	}
	// A process that outlives it, and has its output open, is not waited for.
	command.WaitDelay = 5 * time.Second
	out, err := command.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well
	}
	return out, err
}

// inMemory is a directory on a filesystem in memory, where a file has its blocks
// at once. On ext4 they are counted twice for a moment when they are written
// back, so that a plan and the pass after it may not agree to the byte.
func inMemory(t *testing.T) string {
	t.Helper()
	at, err := os.MkdirTemp("/dev/shm", "reclaim-") //nolint:usetesting // see above
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(at)) })
	return at
}

// disk mounts a filesystem of its own for the test and returns where. kind is
// ext4, or one that testdata has an empty image of.
func disk(t *testing.T, kind string) string {
	t.Helper()
	image := t.TempDir() + "/image"
	options := "loop"
	if kind == "ext4" {
		file, err := os.Create(image)
		require.NoError(t, err)
		require.NoError(t, file.Truncate(256<<20))
		require.NoError(t, file.Close())
		if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-b", "4096", image).CombinedOutput(); err != nil {
			t.Skipf("no ext4 can be made here: %v %s", err, out)
		}
	} else {
		unpack(t, kind, image)
	}
	if kind == "xfs" {
		options += ",nouuid" // the image may be mounted twice
	}
	at := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", kind, "-o", options, image, at).CombinedOutput(); err != nil {
		t.Skipf("this machine does not let us mount %s: %v %s", kind, err, out)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(at, 0)) })
	return at
}

// unpack writes an image, with holes where it is empty.
func unpack(t *testing.T, kind, to string) {
	t.Helper()
	packed, err := os.ReadFile("testdata/" + kind + ".img.zst")
	require.NoError(t, err)
	decoder, err := zstd.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	defer decoder.Close()
	file, err := os.Create(to)
	require.NoError(t, err)
	defer file.Close()
	block, empty := make([]byte, 64<<10), make([]byte, 64<<10)
	size := int64(0)
	for {
		n, err := readFull(decoder, block)
		if n > 0 && !bytes.Equal(block[:n], empty[:n]) {
			_, err := file.WriteAt(block[:n], size)
			require.NoError(t, err)
		}
		size += int64(n)
		if err != nil {
			break
		}
	}
	require.NoError(t, file.Truncate(size))
}

func readFull(from *zstd.Decoder, into []byte) (n int, err error) {
	for n < len(into) && err == nil {
		var more int
		more, err = from.Read(into[n:])
		n += more
	}
	return n, err
}

// written makes the filesystem allocate what was written.
func written(t *testing.T, at string) {
	t.Helper()
	dir, err := os.Open(at)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, unix.Syncfs(int(dir.Fd())))
}
