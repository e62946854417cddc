package reclaim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// oddNames are what a file may be called.
func oddNames() []string {
	out := []string{
		"new\nline", "tab\t", "..a", "...", "-rf", " ", "*x", "\\", "\x80\xff\xfe", "caf\xe9", "a\x01b", "\u202egnp", "(deleted)", "x (deleted)",
		strings.Repeat("n", 255), strings.Repeat("ä", 127), ".trash", "deep-1-1", "$(touch x)", "'\"",
	}
	return out
}

func tagged(t *testing.T, root, place string) {
	t.Helper()
	put(t, root, place+"/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
}

// Names can be any bytes: as what is taken, and inside of it.
func TestNamesOfAnyBytes(t *testing.T) {
	t.Parallel()
	root, outside := inMemory(t), t.TempDir()
	put(t, outside, "precious", "x")
	for _, name := range oddNames() {
		tagged(t, root, "home/.cache/"+name)
		put(t, root, "home/.cache/"+name+"/"+name+"/"+name, "x")
		require.NoError(t, os.Symlink(outside, filepath.Join(root, "home/.cache", name, "link")))
		put(t, root, "work/"+name, "x")
		put(t, root, "home/.cache/plain-"+name[:min(len(name), 200)]+"/file", "x")
	}
	r := open(t, root)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Equal(t, plan.PlannedBytes, report.RemovedBytes)
	for _, name := range oddNames() {
		require.Empty(t, itemOf(t, report, "home/.cache/"+name).Skipped, "%q", name)
		require.NoFileExists(t, filepath.Join(root, "home/.cache", name), "%q", name)
		require.FileExists(t, filepath.Join(root, "work", name))
		require.FileExists(t, filepath.Join(root, "home/.cache/plain-"+name[:min(len(name), 200)], "file"))
	}
	require.FileExists(t, filepath.Join(outside, "precious"))
	text, err := json.Marshal(report)
	require.NoError(t, err)
	require.True(t, utf8.Valid(text))
}

// deepen makes levels of directories in each other, far beyond what a path can
// name, and a file in the last.
func deepen(t *testing.T, at string, levels int) {
	t.Helper()
	const flags = unix.O_DIRECTORY | unix.O_RDONLY | unix.O_CLOEXEC
	fd, err := unix.Open(at, flags, 0)
	require.NoError(t, err)
	for range levels {
		require.NoError(t, unix.Mkdirat(fd, "deeper", 0o755))
		next, err := unix.Openat(fd, "deeper", flags, 0)
		unix.Close(fd)
		require.NoError(t, err)
		fd = next
	}
	file, err := unix.Openat(fd, "last", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	require.NoError(t, err)
	unix.Close(file)
	unix.Close(fd)
}

// A runaway nesting is what fills disks, so it is measured and goes, with few
// descriptors: here 40 are left.
func TestNamesDeeperThanAnyPath(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{}) {
		return
	}
	root := inMemory(t)
	tagged(t, root, "home/.cache/deep")
	const levels = 1000
	for name, at := range map[string]string{"one": "home/.cache/deep/one", "two": "home/.cache/deep/two"} {
		put(t, root, at+"/"+name, "x")
		deepen(t, filepath.Join(root, at), levels)
	}
	r := open(t, root)
	var files syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files))
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	files.Cur = uint64(len(open)) + 330
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files))
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	require.Empty(t, itemOf(t, plan, "home/.cache/deep").Skipped)
	require.EqualValues(t, 2*(levels+1)+2+2+2, plan.PlannedInodes)
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Empty(t, itemOf(t, report, "home/.cache/deep").Skipped)
	require.Equal(t, plan.PlannedBytes, report.RemovedBytes)
	require.NoDirExists(t, filepath.Join(root, "home/.cache/deep"))
	left, err := os.ReadDir(filepath.Join(root, ".trash"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// What must never go is found however deep it lies.
func TestNamesOfWorkAreFoundAnyDepth(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	tagged(t, root, "home/.cache/deep")
	deepen(t, filepath.Join(root, "home/.cache/deep"), 500)
	at := filepath.Join(root, "home/.cache/deep", strings.Repeat("deeper/", 500))
	require.NoError(t, os.WriteFile(at+"/.env", []byte("x"), 0o600))
	report := do(t, open(t, root), box.ReclaimRequest{})
	require.Contains(t, itemOf(t, report, "home/.cache/deep").Skipped, "no cache holds")
	require.FileExists(t, at+"/.env")
}

// Directories with very many names, and very many that can't be removed, which
// made removers loop (golang/go#29921) or miss some (golang/go#20841).
func TestNamesBeyondCounting(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	tagged(t, root, "home/.cache/wide")
	const files, stuck = 20_000, 1100
	dir := filepath.Join(root, "home/.cache/wide/dir")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for i := range files {
		fd, err := unix.Open(fmt.Sprintf("%s/%d", dir, i), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		require.NoError(t, err)
		unix.Close(fd)
	}
	fixed := 0
	if os.Getuid() == 0 { // an immutable file is nobody's to remove
		dir := filepath.Join(root, "home/.cache/wide/stuck")
		require.NoError(t, os.Mkdir(dir, 0o755))
		for i := range stuck {
			require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%04d", dir, i), nil, 0o600))
			require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%04d-goes", dir, i), nil, 0o600))
			if err := immutable(fmt.Sprintf("%s/%04d", dir, i), true); err != nil {
				t.Logf("no immutable files here: %v", err)
				break
			}
			fixed++
		}
		t.Cleanup(func() {
			found, err := filepath.Glob(filepath.Join(root, ".trash/*/stuck/*"))
			require.NoError(t, err)
			for _, name := range found {
				require.NoError(t, immutable(name, false))
			}
		})
	}
	report := do(t, open(t, root), box.ReclaimRequest{})
	entry := itemOf(t, report, "home/.cache/wide")
	if fixed > 0 {
		require.Contains(t, entry.Skipped, fmt.Sprintf("removed in part, %d left", fixed))
		require.Contains(t, entry.Skipped, "unlink: "+whyImmutable())
		require.Contains(t, entry.Skipped, fmt.Sprintf("and %d more", fixed-5))
		require.Less(t, len(entry.Skipped), 1000)
		left, err := filepath.Glob(filepath.Join(root, ".trash/*/*/*"))
		require.NoError(t, err)
		require.Len(t, left, fixed, "all others went")
	} else {
		require.Empty(t, entry.Skipped)
	}
	require.NoDirExists(t, dir)
}

// immutable sets or clears the attribute that chattr calls "i".
func immutable(name string, on bool) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	const flag = 0x10
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	flags &^= flag
	if on {
		flags |= flag
	}
	return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// whyImmutable is how such a file is told; only statx knows why.
func whyImmutable() string {
	const why = "operation not permitted (EPERM)"
	if strings.Contains(os.Getenv(apartFilter), "statx") {
		return why
	}
	return "immutable or append-only: " + why
}

const ordinary = 65534

// What an ordinary user meets that is not theirs, or that they locked: what can
// go goes, and each of the rest is named with its error.
func TestNamesOfEveryErrorAreTold(t *testing.T) {
	t.Parallel()
	root := "/var/tmp/reclaim-" + fmt.Sprint(os.Getppid()) + "-told"
	if os.Getenv(apartName) == "" && os.Getuid() == 0 {
		root = "/var/tmp/reclaim-" + fmt.Sprint(os.Getpid()) + "-told" // where the other user may enter
		t.Cleanup(func() {
			for _, place := range []string{"/home/go/pkg/mod/immutable", "/.trash/*/immutable"} {
				found, _ := filepath.Glob(root + place)
				for _, name := range found {
					assert.NoError(t, immutable(name, false))
				}
			}
			require.NoError(t, os.RemoveAll(root))
		})
		const mod = "home/go/pkg/mod"
		for _, name := range []string{"cache/x", "readonly/x", "unread/x", "writeonly/x", "root/x", "immutable", "fine/x"} {
			put(t, root, mod+"/"+name, "x")
		}
		for _, name := range []string{"home/.npm/_cacache/index-v5/x", "home/.npm/_cacache/content-v2/x", "home/.cache/locked/x"} {
			put(t, root, name, "x")
		}
		tagged(t, root, "home/.cache/hides")
		put(t, root, "home/.cache/hides/hidden/x", "x")
		require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if strings.Contains(path, mod+"/root") || strings.Contains(path, "_cacache") {
				return err
			}
			return errors.Join(err, os.Lchown(path, ordinary, ordinary))
		}))
		for name, mode := range map[string]os.FileMode{
			mod + "/readonly": 0o555, mod + "/unread": 0, mod + "/writeonly": 0o200, "home/.cache/locked": 0, "home/.cache/hides/hidden": 0, "": 0o700,
		} {
			require.NoError(t, os.Chmod(filepath.Join(root, name), mode))
		}
		if err := immutable(filepath.Join(root, mod, "immutable"), true); err != nil {
			t.Skip("this filesystem has no immutable files: " + err.Error())
		}
	}
	if !apart(t, surroundings{user: ordinary}) {
		return
	}
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	defer r.Close()
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	told := strings.Join(plan.Errors, "\n")
	require.Contains(t, told, `home/go/pkg/mod: open: permission denied (EACCES): `)
	require.Contains(t, told, `"unread"`)
	require.Contains(t, told, `"writeonly"`)
	require.Contains(t, told, "home/.cache/locked: ")
	require.True(t, itemOf(t, plan, "home/go/pkg/mod").LowerBound, "what can't be read may free more")
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Contains(t, itemOf(t, report, "home/.cache/locked").Skipped, "EACCES")
	require.Contains(t, itemOf(t, report, "home/.cache/hides").Skipped, "cannot tell whether work is inside, open hidden: permission denied (EACCES)")
	require.Contains(t, itemOf(t, report, "home/.npm/_cacache").Skipped, "cannot be moved aside: permission denied (EACCES)")
	mod := itemOf(t, report, "home/go/pkg/mod").Skipped
	require.Contains(t, mod, "unlink: "+whyImmutable()+`: "immutable"`)
	require.Contains(t, mod, `unlink: permission denied (EACCES): "root/x"`)
	require.Contains(t, mod, "removed in part, 2 left")
	for _, gone := range []string{"readonly", "unread", "writeonly", "fine", "cache"} {
		found, err := filepath.Glob(filepath.Join(root, ".trash/*", gone))
		require.NoError(t, err)
		require.Empty(t, found, gone)
	}
}
