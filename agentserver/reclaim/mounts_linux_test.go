package reclaim_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/box"
)

func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Skip("this machine does not let us bind a mount: " + err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
}

// within fails the test when action takes longer; what it waits for is then let
// go by the cleanups.
func within(t *testing.T, most time.Duration, action func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		action()
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		t.Fatalf("took longer than %v", most)
	}
}

// Scenario 103: what is mounted inside is not crossed, wherever it is and
// whenever it came. Of the same filesystem, so that device numbers say nothing.
func TestScenario103MountsInsideAreNotCrossed(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	root, precious := t.TempDir(), t.TempDir()
	put(t, precious, "dir/work", "precious")
	place := npm(t, root, 3)
	cache := filepath.Join(root, place)
	var inside, outside unix.Stat_t
	require.NoError(t, unix.Stat(cache, &inside))
	require.NoError(t, unix.Stat(precious, &outside))
	require.Equal(t, inside.Dev, outside.Dev, "a device number tells them apart here, so this shows nothing")
	put(t, root, place+"/content-v2/sha512/file", "x")
	r := open(t, root)
	for name, on := range map[string]string{
		"a directory deep inside": "content-v2/sha512/00", "a directory at the top": "content-v2", "a file": "content-v2/sha512/file", "the cache itself": "",
	} {
		from := filepath.Join(precious, "dir")
		if name == "a file" {
			from = filepath.Join(precious, "dir/work")
		}
		plan := do(t, r, box.ReclaimRequest{DryRun: true})
		require.Empty(t, itemOf(t, plan, place).Skipped, name)
		bind(t, from, filepath.Join(cache, on))
		for _, report := range []box.ReclaimReport{do(t, r, box.ReclaimRequest{PlanID: plan.PlanID}), do(t, r, box.ReclaimRequest{})} {
			require.Contains(t, itemOf(t, report, place).Skipped, "mount", name)
			require.Zero(t, report.RemovedBytes, name)
		}
		content, err := os.ReadFile(filepath.Join(precious, "dir/work"))
		require.NoError(t, err, name)
		require.Equal(t, "precious", string(content), name)
		require.NoError(t, unix.Unmount(filepath.Join(cache, on), 0), name)
	}
	// The comparison: the same tree, and the tool that people would use.
	bind(t, filepath.Join(precious, "dir"), filepath.Join(cache, "content-v2"))
	out, _ := exec.CommandContext(t.Context(), "rm", "-rf", "--one-file-system", cache).CombinedOutput()
	require.NoFileExists(t, filepath.Join(precious, "dir/work"), "rm did not cross the mount either, so this shows nothing: %s", out)
}

// A mount that came after the last look is carried along by the rename. It is
// brought back, and deleting would not have entered it.
func TestMountsThatAreCarriedIntoTheTrash(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	root, precious := t.TempDir(), t.TempDir()
	put(t, precious, "work", "precious")
	put(t, root, ".trash/left/a/file", "x")
	put(t, root, ".trash/left/b/file", "x")
	put(t, root, ".trash/left/single", "x")
	require.NoError(t, os.MkdirAll(filepath.Join(root, ".trash/left/a/mnt"), 0o755))
	bind(t, precious, filepath.Join(root, ".trash/left/a/mnt"))
	bind(t, filepath.Join(precious, "work"), filepath.Join(root, ".trash/left/single"))
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	within(t, 20*time.Second, func() {
		for _, err := os.Lstat(filepath.Join(root, ".trash/left/b")); err == nil; _, err = os.Lstat(filepath.Join(root, ".trash/left/b")) {
			time.Sleep(time.Millisecond) // the sweep tells nobody
		}
	})
	r.Close()
	require.FileExists(t, filepath.Join(precious, "work"))
	require.FileExists(t, filepath.Join(root, ".trash/left/a/mnt/work"))
	require.FileExists(t, filepath.Join(root, ".trash/left/single"))
}

// A file server inside that answers nobody holds up neither a plan nor a pass.
func TestMountsOfAStoppedFileServer(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	root := t.TempDir()
	place := npm(t, root, 3)
	r := open(t, root)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	dir := filepath.Join(root, place, "content-v2/sha512/00")
	storagetest.StuckServer(t, dir, unix.S_IFDIR|0o755)
	file := filepath.Join(root, place, "content-v2/sha512/01/blob")
	storagetest.StuckServer(t, file, unix.S_IFREG|0o644)
	cache := filepath.Join(root, "home/.cache/tagged")
	require.NoError(t, os.MkdirAll(cache, 0o755))
	storagetest.StuckServer(t, cache, unix.S_IFDIR|0o755)
	put(t, root, ".trash/left/a/file", "x")
	require.NoError(t, os.MkdirAll(filepath.Join(root, ".trash/left/b"), 0o755))
	storagetest.StuckServer(t, filepath.Join(root, ".trash/left/b"), unix.S_IFDIR|0o755)
	storagetest.StuckServer(t, filepath.Join(root, ".trash/left/a/file"), unix.S_IFREG|0o644)

	answers := []<-chan error{asking(dir), asking(cache)}
	began := time.Now()
	within(t, 10*time.Second, func() {
		for _, request := range []box.ReclaimRequest{{PlanID: plan.PlanID}, {DryRun: true}, {}} {
			report, err := r.Do(t.Context(), request)
			require.NoError(t, err)
			require.Contains(t, itemOf(t, report, place).Skipped, "mounted inside")
		}
		_, err := r.Select(t.Context())
		require.NoError(t, err)
		again, err := reclaim.Open(t.TempDir(), reclaim.Options{})
		require.NoError(t, err)
		again.Close()
	})
	t.Logf("a stopped file server in five places cost %v", time.Since(began))
	r.Close() // a sweep of the trash that hangs would hold this up
	for _, answer := range answers {
		select {
		case err := <-answer:
			t.Fatalf("the file server answered, so this shows nothing: %v", err)
		default:
		}
	}
}

// What comes from the image frees nothing, and is left; what was made in the
// box since goes.
func TestMountsThatAreOverlays(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	base := t.TempDir()
	image, root := filepath.Join(base, "image"), filepath.Join(base, "root")
	place := npm(t, image, 3)
	put(t, image, "home/.cache/both/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
	for _, dir := range []string{"upper", "work", "root"} {
		require.NoError(t, os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	options := "lowerdir=" + image + ",upperdir=" + base + "/upper,workdir=" + base + "/work"
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		t.Skip("this machine does not let us mount an overlay: " + err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	put(t, root, "home/.cache/both/more", "written in the box")
	put(t, root, "home/.cache/new/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
	put(t, root, "home/.cache/new/big", string(make([]byte, 1<<20)))
	r := open(t, root)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	require.Empty(t, itemOf(t, plan, "home/.cache/new").Skipped)
	if os.Getenv(apartFilter) == "" { // older kernels tell only when it is tried
		for _, left := range []string{place, "home/.cache/both"} {
			require.Contains(t, itemOf(t, plan, left).Skipped, "layer of the image", left)
		}
		require.Less(t, plan.PlannedBytes, int64(1<<20+64<<10))
	}
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	for _, left := range []string{place, "home/.cache/both"} {
		require.Contains(t, itemOf(t, report, left).Skipped, "layer of the image", left)
	}
	require.FileExists(t, filepath.Join(root, place, "content-v2/sha512/00/blob"))
	require.FileExists(t, filepath.Join(root, "home/.cache/both/more"))
	require.NoDirExists(t, filepath.Join(root, "home/.cache/new"))
	require.GreaterOrEqual(t, report.RemovedBytes, int64(1<<20))
}

// A mount that another namespace has of it, or on it, is a use: deleting the
// directory would empty the one and take away the other.
func TestMountsOfAnotherNamespaceAreUses(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: true}) {
		return
	}
	root, precious, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, precious, "work", "precious")
	place := npm(t, root, 3)
	put(t, root, "home/.cache/tagged/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "home/.cache/tagged/on"), 0o755))
	put(t, root, "home/.cache/free/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
	inNamespace(t, "/",
		"mount --bind "+filepath.Join(root, place, "content-v2")+" "+elsewhere+" && mount --bind "+precious+" "+filepath.Join(root, "home/.cache/tagged/on"))
	report := do(t, open(t, root), box.ReclaimRequest{})
	require.Contains(t, itemOf(t, report, place).Skipped, "mount in the namespace of process")
	require.Contains(t, itemOf(t, report, "home/.cache/tagged").Skipped, "mount in the namespace of process")
	require.Empty(t, itemOf(t, report, "home/.cache/free").Skipped, "the one that nobody mounts goes")
	require.DirExists(t, filepath.Join(root, place, "content-v2"))
}

// inNamespace starts a process in a mount namespace of its own, which first
// runs the setup and then works in dir until the test ends.
func inNamespace(t *testing.T, dir, setup string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sh", "-c", setup+" && cd "+dir+" && echo ready && exec sleep 600")
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	ready(t, command)
}

// ready starts a process and waits for its first line.
func ready(t *testing.T, command *exec.Cmd) {
	t.Helper()
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	command.Stderr = os.Stderr
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	line := make([]byte, 6)
	n, err := out.Read(line)
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(line[:n]))
}
