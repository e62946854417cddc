package reclaim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

func TestMain(m *testing.M) {
	if filter := os.Getenv(apartFilter); filter != "" {
		if err := filterCalls(filter); err != nil {
			fmt.Println("filter system calls:", err)
			os.Exit(1)
		}
	}
	if name := os.Getenv(mapEnv); name != "" {
		os.Exit(mapAndWait(name))
	}
	// Some cases need an ordinary user: the test runs itself again as one.
	if root := os.Getenv("RECLAIM_TEST_ROOT"); root != "" {
		os.Exit(asUser(root))
	}
	if root := os.Getenv(killRoot); root != "" {
		os.Exit(killed(root))
	}
	os.Exit(m.Run())
}

func put(t *testing.T, root, name, content string) {
	t.Helper()
	place := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(place), 0o755))
	require.NoError(t, os.WriteFile(place, []byte(content), 0o644))
}

// npm fills a cache that the rule "npm" recognises and returns its path.
func npm(t *testing.T, root string, files int) string {
	t.Helper()
	const place = "home/.npm/_cacache"
	put(t, root, place+"/index-v5/00/entry", "x")
	for i := range files {
		put(t, root, fmt.Sprintf("%s/content-v2/sha512/%02d/blob", place, i), strings.Repeat("a", 10_000))
	}
	return place
}

func open(t *testing.T, root string) *reclaim.Reclaimer {
	t.Helper()
	// Private, as a box is: into another one any user's process may have gone.
	require.NoError(t, os.Chmod(root, 0o700))
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

func do(t *testing.T, r *reclaim.Reclaimer, request box.ReclaimRequest) box.ReclaimReport {
	t.Helper()
	report, err := r.Do(t.Context(), request)
	require.NoError(t, err)
	return report
}

func itemOf(t *testing.T, report box.ReclaimReport, path string) box.ReclaimItem {
	t.Helper()
	at := slices.IndexFunc(report.Items, func(i box.ReclaimItem) bool { return i.Path == path })
	require.GreaterOrEqual(t, at, 0, "no item %s in %+v", path, report.Items)
	return report.Items[at]
}

func TestAPassTakesWhatItPlannedAndNothingElse(t *testing.T) {
	t.Parallel()
	root := inMemory(t)
	place := npm(t, root, 20)
	kept := []string{
		"home/.npmrc", "home/.cargo/credentials.toml", "home/.cargo/bin/tool", "home/.cache/unknown/file",
		"home/.ssh/id_ed25519", "conversations/x/base_state.json", "persistence/secret-key",
		"workspace/repo/.git/HEAD", "workspace/repo/node_modules/a/index.js", "home/.cache/huggingface/token",
	}
	for _, name := range kept {
		put(t, root, name, "precious")
	}
	put(t, root, "home/.cargo/registry/src/index.crates.io-6f17d22bba15001f/serde-1.0.0/lib.rs", "fn")
	put(t, root, "home/.cache/huggingface/hub/models--a--b/blobs/1", "weights")
	put(t, root, "home/.cache/mytool/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n# x")
	put(t, root, "home/.cache/liar/CACHEDIR.TAG", "Signature: no")
	r := open(t, root)

	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	require.True(t, plan.DryRun)
	require.Positive(t, plan.PlannedBytes)
	require.Zero(t, plan.RemovedBytes)
	for path, rule := range map[string]string{
		place: "npm", "home/.cargo/registry/src": "cargo-src", "home/.cache/huggingface/hub": "huggingface", "home/.cache/mytool": "tagged",
	} {
		entry := itemOf(t, plan, path)
		require.Equal(t, rule, entry.Rule)
		require.Empty(t, entry.Skipped)
		require.NotEmpty(t, entry.Evidence)
		require.DirExists(t, filepath.Join(root, path), "a dry run changes nothing")
	}
	require.Contains(t, itemOf(t, plan, "home/.cache/unknown").Skipped, "not recognised")
	require.Contains(t, itemOf(t, plan, "home/.cache/liar").Skipped, "CACHEDIR.TAG")

	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.False(t, report.DryRun)
	require.False(t, report.Pending)
	require.Equal(t, plan.PlannedBytes, report.PlannedBytes)
	require.Equal(t, report.PlannedBytes, report.RemovedBytes, "what was counted at each unlink is what was planned")
	require.NoDirExists(t, filepath.Join(root, place))
	require.NoDirExists(t, filepath.Join(root, "home/.cache/mytool"))
	for _, name := range kept {
		require.FileExists(t, filepath.Join(root, name))
	}
	entries, err := os.ReadDir(filepath.Join(root, ".trash"))
	require.NoError(t, err)
	require.Empty(t, entries)

	again := do(t, r, box.ReclaimRequest{DryRun: true})
	require.Zero(t, again.PlannedBytes, "plan(apply(plan)) is empty")
}

func TestAnAppliedPlanAnswersItsFirstReportAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	place := npm(t, root, 3)
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	first := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Positive(t, first.RemovedBytes)
	npm(t, root, 3) // the tool made it again: the old plan must not take it
	for range 4 {
		require.Equal(t, first, do(t, r, box.ReclaimRequest{PlanID: plan.PlanID}))
	}
	r.Close()
	require.Equal(t, first, do(t, open(t, root), box.ReclaimRequest{PlanID: plan.PlanID}))
	require.DirExists(t, filepath.Join(root, place))
}

func TestWhatChangedSinceThePlanStays(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, root, place string){
		"another directory took its place": func(t *testing.T, root, place string) {
			t.Helper()
			require.NoError(t, os.Rename(filepath.Join(root, place), filepath.Join(root, "home/aside")))
			npm(t, root, 1)
		},
		"a link took its place": func(t *testing.T, root, place string) {
			t.Helper()
			require.NoError(t, os.Rename(filepath.Join(root, place), filepath.Join(root, "home/aside")))
			require.NoError(t, os.Symlink("../aside", filepath.Join(root, place)))
		},
		"its parent became a link": func(t *testing.T, root, _ string) {
			t.Helper()
			require.NoError(t, os.Rename(filepath.Join(root, "home/.npm"), filepath.Join(root, "home/aside")))
			require.NoError(t, os.Symlink("aside", filepath.Join(root, "home/.npm")))
		},
		"something was put into it": func(t *testing.T, root, place string) {
			t.Helper()
			put(t, root, place+"/new", "x")
		},
		"a sign went away": func(t *testing.T, root, place string) {
			t.Helper()
			require.NoError(t, os.RemoveAll(filepath.Join(root, place, "index-v5")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			place := npm(t, root, 3)
			r := open(t, root)
			plan := do(t, r, box.ReclaimRequest{DryRun: true})
			time.Sleep(20 * time.Millisecond) // a directory's time has the kernel's tick
			change(t, root, place)
			report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
			require.NotEmpty(t, itemOf(t, report, place).Skipped)
			require.Zero(t, report.RemovedBytes)
			found := 0
			require.NoError(t, filepath.WalkDir(filepath.Join(root, "home"), func(path string, _ os.DirEntry, err error) error {
				if filepath.Base(path) == "blob" {
					found++
				}
				return err
			}))
			require.GreaterOrEqual(t, found, 3)
		})
	}
}

func TestLinksAreNeverFollowed(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	put(t, outside, "index-v5/a", "x")
	put(t, outside, "content-v2/precious", "x")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "home/.npm"), 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "home/.npm/_cacache")))
	put(t, root, "home/.cache/uvreal/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "home/.cache/uvreal/in")))
	require.NoError(t, os.Symlink("uvreal", filepath.Join(root, "home/.cache/link")))
	r := open(t, root)
	report := do(t, r, box.ReclaimRequest{})
	require.Contains(t, itemOf(t, report, "home/.npm/_cacache").Skipped, "link")
	require.Contains(t, itemOf(t, report, "home/.cache/link").Skipped, "link")
	require.Empty(t, itemOf(t, report, "home/.cache/uvreal").Skipped)
	require.NoDirExists(t, filepath.Join(root, "home/.cache/uvreal"))
	require.FileExists(t, filepath.Join(outside, "content-v2/precious"))
	require.FileExists(t, filepath.Join(outside, "index-v5/a"))
}

func TestAHomeThatIsALinkOutOfTheBoxIsLeftAlone(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	place := npm(t, outside, 2)
	require.NoError(t, os.Symlink(filepath.Join(outside, "home"), filepath.Join(root, "home")))
	report := do(t, open(t, root), box.ReclaimRequest{})
	require.Zero(t, report.RemovedBytes)
	require.DirExists(t, filepath.Join(outside, place))
}

func TestHardLinksCountOnceAndOnlyWhenTheLastIsTaken(t *testing.T) {
	t.Parallel()
	root := inMemory(t)
	place := npm(t, root, 0)
	big := strings.Repeat("b", 1<<20)
	put(t, root, place+"/content-v2/inside", big)
	require.NoError(t, os.Link(filepath.Join(root, place, "content-v2/inside"), filepath.Join(root, place, "content-v2/again")))
	put(t, root, "workspace/outside", big)
	require.NoError(t, os.Link(filepath.Join(root, "workspace/outside"), filepath.Join(root, place, "content-v2/shared")))
	put(t, root, "home/.cache/go-build/README", "go build system")
	put(t, root, "home/.cache/go-build/00/a", big)
	put(t, root, "home/.cache/go-build/ff/a", "x")
	require.NoError(t, os.Link(filepath.Join(root, "home/.cache/go-build/00/a"), filepath.Join(root, place, "content-v2/across")))
	r := open(t, root)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	one, other := itemOf(t, plan, place), itemOf(t, plan, "home/.cache/go-build")
	require.Less(t, one.Bytes, int64(1<<20+256<<10), "the link to the workspace and the one across free nothing")
	require.Less(t, other.Bytes, int64(256<<10))
	require.Greater(t, plan.PlannedBytes, one.Bytes+other.Bytes+1<<20-1, "the union has both links of the file across")
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Equal(t, plan.PlannedBytes, report.RemovedBytes)
	require.FileExists(t, filepath.Join(root, "workspace/outside"))
}

func TestScenario87WhatAProcessUsesIsPutBack(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	place := npm(t, root, 3)
	put(t, root, "home/.cache/go-build/README", "x")
	put(t, root, "home/.cache/go-build/00/a", "x")
	put(t, root, "home/.cache/go-build/ff/a", "x")
	user := exec.CommandContext(t.Context(), "sleep", "60")
	user.Dir = filepath.Join(root, place, "content-v2")
	require.NoError(t, user.Start())
	t.Cleanup(func() { _ = user.Process.Kill(); _ = user.Wait() })
	r := open(t, root)
	report := do(t, r, box.ReclaimRequest{})
	require.Contains(t, itemOf(t, report, place).Skipped, "in use by process")
	require.Contains(t, itemOf(t, report, place).Skipped, "sleep")
	require.FileExists(t, filepath.Join(root, place, "content-v2/sha512/00/blob"))
	require.NoDirExists(t, filepath.Join(root, "home/.cache/go-build"), "the unused one goes all the same")
}

//nolint:tparallel,paralleltest // the cases share what is mounted
func TestABindMountOfTheSameFilesystemIsNeverEntered(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("binding a mount needs root")
	}
	root, precious := t.TempDir(), t.TempDir()
	place := npm(t, root, 3)
	put(t, precious, "work", "precious")
	mount := func(t *testing.T, to string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(to, 0o755))
		if err := unix.Mount(precious, to, "", unix.MS_BIND, ""); err != nil {
			t.Skip("this machine does not let us bind a mount: " + err.Error())
		}
		t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
	}
	t.Run("inside at the plan", func(t *testing.T) {
		mount(t, filepath.Join(root, place, "content-v2/mnt"))
		r := open(t, root)
		report := do(t, r, box.ReclaimRequest{})
		require.Contains(t, itemOf(t, report, place).Skipped, "mounted inside")
		require.FileExists(t, filepath.Join(precious, "work"))
	})
	t.Run("inside since the plan", func(t *testing.T) {
		root := t.TempDir()
		place := npm(t, root, 3)
		require.NoError(t, os.MkdirAll(filepath.Join(root, place, "content-v2/mnt"), 0o755))
		r := open(t, root)
		plan := do(t, r, box.ReclaimRequest{DryRun: true})
		mount(t, filepath.Join(root, place, "content-v2/mnt"))
		report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
		require.Contains(t, itemOf(t, report, place).Skipped, "mounted inside")
		require.FileExists(t, filepath.Join(precious, "work"))
	})
	t.Run("in the trash already", func(t *testing.T) {
		root := t.TempDir()
		put(t, root, ".trash/left/a/file", "x")
		mount(t, filepath.Join(root, ".trash/left/a/mnt"))
		r := open(t, root)
		require.Eventually(t, func() bool {
			_, err := os.Lstat(filepath.Join(root, ".trash/left/a/file"))
			return errors.Is(err, os.ErrNotExist)
		}, 10*time.Second, 5*time.Millisecond)
		r.Close()
		require.FileExists(t, filepath.Join(precious, "work"))
		require.DirExists(t, filepath.Join(root, ".trash/left/a/mnt"))
	})
	t.Run("as the cache itself", func(t *testing.T) {
		root := t.TempDir()
		put(t, precious, "index-v5/x", "x")
		put(t, precious, "content-v2/x", "x")
		mount(t, filepath.Join(root, "home/.npm/_cacache"))
		report := do(t, open(t, root), box.ReclaimRequest{})
		require.Contains(t, itemOf(t, report, "home/.npm/_cacache").Skipped, "mount")
		require.FileExists(t, filepath.Join(precious, "work"))
	})
}

func TestAFullDiskCanBeCleared(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("mounting a small filesystem needs root")
	}
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("this machine does not let us mount a small filesystem: " + err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	place := npm(t, root, 3)
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	fill := func() {
		file, err := os.OpenFile(filepath.Join(root, place, "content-v2/fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		require.NoError(t, err)
		defer file.Close()
		block := make([]byte, 4096)
		for err == nil {
			_, err = file.Write(block)
		}
		require.ErrorIs(t, err, syscall.ENOSPC)
	}
	fill()
	r.Close()
	r = open(t, root) // starting anew on a full disk works too
	disk, err := r.Disk()
	require.NoError(t, err)
	require.Zero(t, disk.FreeBytes)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	fill() // what the reserve gave back is taken as well
	report := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Empty(t, itemOf(t, report, place).Skipped)
	require.Greater(t, report.FreedBytes, int64(800<<10))
	require.NoDirExists(t, filepath.Join(root, place))
}

func TestAnOrdinaryUserRemovesReadOnlyDirectories(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	const nobody = 65534
	root, err := os.MkdirTemp("/var/tmp", "reclaim-") //nolint:usetesting // where the other user may enter
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	const mod = "home/go/pkg/mod"
	put(t, root, mod+"/cache/download/list", "x")
	put(t, root, mod+"/example.com/a@v1.0.0/sub/file.go", "package a")
	put(t, root, mod+"/example.com/locked/file", "x")
	put(t, root, "home/.cache/sealed/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
	require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	}))
	for name, mode := range map[string]os.FileMode{
		mod + "/example.com/a@v1.0.0/sub": 0o555, mod + "/example.com/a@v1.0.0": 0o555, mod + "/example.com/locked": 0o200,
		"home/.cache/sealed": 0o555,
	} {
		require.NoError(t, os.Chmod(filepath.Join(root, name), mode))
	}
	self := filepath.Join(root, "self.test")
	binary, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(self, binary, 0o755))
	require.NoError(t, os.Chmod(root, 0o700))
	require.NoError(t, os.Lchown(root, nobody, nobody))
	command := exec.CommandContext(t.Context(), self)
	command.Dir = root
	command.Env = []string{"RECLAIM_TEST_ROOT=" + root}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoDirExists(t, filepath.Join(root, mod))
	require.NoDirExists(t, filepath.Join(root, "home/.cache/sealed"))
}

// asUser is the other half of TestAnOrdinaryUserRemovesReadOnlyDirectories.
func asUser(root string) int {
	fail := func(err error) int {
		fmt.Println(err)
		return 1
	}
	r, err := reclaim.Open(root, reclaim.Options{})
	if err != nil {
		return fail(err)
	}
	defer r.Close()
	report, err := r.Do(context.Background(), box.ReclaimRequest{}) //nolint:forbidigo // a process of its own
	if err != nil {
		return fail(err)
	}
	for _, item := range report.Items {
		if item.Skipped != "" {
			return fail(fmt.Errorf("%s: %s", item.Path, item.Skipped))
		}
	}
	return 0
}

func TestWhatCannotBeRemovedIsTold(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("making a file immutable needs root")
	}
	root := t.TempDir()
	place := npm(t, root, 3)
	stuck := filepath.Join(root, place, "content-v2/stuck")
	put(t, root, place+"/content-v2/stuck", "x")
	if out, err := exec.CommandContext(t.Context(), "chattr", "+i", stuck).CombinedOutput(); err != nil {
		t.Skipf("this filesystem has no immutable files: %v %s", err, out)
	}
	t.Cleanup(func() {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, _ error) error {
			if d != nil && d.Name() == "stuck" {
				_ = exec.CommandContext(context.WithoutCancel(t.Context()), "chattr", "-i", path).Run()
			}
			return nil
		})
	})
	report := do(t, open(t, root), box.ReclaimRequest{})
	entry := itemOf(t, report, place)
	require.Contains(t, entry.Skipped, "removed in part")
	require.Contains(t, entry.Skipped, "stuck")
	require.Less(t, report.RemovedBytes, report.PlannedBytes)
	require.Positive(t, report.RemovedBytes)
}

func TestALinkInTheTrashGoesAndItsTargetStays(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	put(t, outside, "precious", "x")
	require.NoError(t, os.MkdirAll(filepath.Join(root, ".trash"), 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, ".trash/link")))
	open(t, root)
	require.Eventually(t, func() bool {
		_, err := os.Lstat(filepath.Join(root, ".trash/link"))
		return errors.Is(err, os.ErrNotExist)
	}, 10*time.Second, 5*time.Millisecond)
	require.FileExists(t, filepath.Join(outside, "precious"))
}

func TestRefusedRequestsNameTheField(t *testing.T) {
	t.Parallel()
	r := open(t, t.TempDir())
	for name, row := range map[string]struct {
		request box.ReclaimRequest
		field   string
		class   box.Class
	}{
		"an unknown tier":                   {box.ReclaimRequest{Tiers: []box.Tier{"caches", "all"}}, "tiers[1]", box.ClassInvalid},
		"tier runtime for whoever is there": {box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}}, "conversation_ids", box.ClassInvalid},
		"a conversation that is not there":  {box.ReclaimRequest{ConversationIDs: []string{strings.Repeat("c", 32)}}, "conversation_ids[0]", box.ClassInvalid},
		"a conversation id that climbs":     {box.ReclaimRequest{ConversationIDs: []string{"../../x"}}, "conversation_ids[0]", box.ClassInvalid},
		"a plan and a dry run":              {box.ReclaimRequest{PlanID: strings.Repeat("a", 32), DryRun: true}, "dry_run", box.ClassInvalid},
		"a plan id that climbs":             {box.ReclaimRequest{PlanID: "../../../etc/passwd"}, "plan_id", box.ClassInvalid},
		"a plan nobody knows":               {box.ReclaimRequest{PlanID: strings.Repeat("a", 32)}, "plan_id", box.ClassNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := r.Do(t.Context(), row.request)
			var said *box.Error
			require.ErrorAs(t, err, &said)
			require.Equal(t, row.field, said.Field)
			require.Equal(t, row.class, said.Class)
		})
	}
}

func TestAForgedJournalCannotNameOtherDirectories(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root, "workspace/index-v5/x", "x")
	put(t, root, "workspace/content-v2/x", "x")
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(root, "workspace"), &st))
	id := strings.Repeat("b", 32)
	for _, path := range []string{"workspace", "home/../workspace", "home/.npm/../../workspace"} {
		put(t, root, "run/reclaim/"+id+".json", fmt.Sprintf(
			`{"id":%q,"state":"planned","items":[{"path":%q,"rule":"npm","dev":%d,"ino":%d,"mtime_ns":%d}]}`, id, path, st.Dev, st.Ino, st.Mtim.Nano(),
		))
		r, err := reclaim.Open(root, reclaim.Options{})
		require.NoError(t, err)
		report := do(t, r, box.ReclaimRequest{PlanID: id})
		r.Close()
		require.NotEmpty(t, report.Items[0].Skipped)
		require.FileExists(t, filepath.Join(root, "workspace/content-v2/x"))
	}
}

func TestUVCacheStaysWhileEnvironmentsAreLinkedToIt(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, root, "home/.cache/uv/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
	put(t, root, "home/.cache/uv/archive-v0/x/a.py", "x")
	r, err := reclaim.Open(root, reclaim.Options{Env: func(name string) string {
		return map[string]string{"UV_LINK_MODE": "symlink"}[name]
	}})
	require.NoError(t, err)
	require.Contains(t, itemOf(t, do(t, r, box.ReclaimRequest{DryRun: true}), "home/.cache/uv").Skipped, "link")
	r.Close()
	plain := open(t, root)
	require.Empty(t, itemOf(t, do(t, plain, box.ReclaimRequest{DryRun: true}), "home/.cache/uv").Skipped)
	put(t, root, "home/.config/uv/uv.toml", "link-mode = \"symlink\"\n")
	require.Contains(t, itemOf(t, do(t, plain, box.ReclaimRequest{DryRun: true}), "home/.cache/uv").Skipped, "link")
}

func TestACacheThatHoldsWorkStays(t *testing.T) {
	t.Parallel()
	for _, name := range []string{".git/HEAD", ".env", "deep/below/.git/HEAD", "deep/id_rsa", "deep/.env.local"} {
		root := t.TempDir()
		put(t, root, "home/.cache/mytool/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55")
		put(t, root, "home/.cache/mytool/"+name, "precious")
		report := do(t, open(t, root), box.ReclaimRequest{})
		require.Contains(t, itemOf(t, report, "home/.cache/mytool").Skipped, "no cache holds", name)
		require.FileExists(t, filepath.Join(root, "home/.cache/mytool", name))
	}
}

func TestManyAppliesOfOnePlanAgree(t *testing.T) {
	t.Parallel()
	root := inMemory(t)
	npm(t, root, 50)
	r := open(t, root)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	reports := make(chan box.ReclaimReport, 8)
	for range cap(reports) {
		go func() {
			report, err := r.Do(t.Context(), box.ReclaimRequest{PlanID: plan.PlanID})
			if err != nil {
				report.PlanID = err.Error()
			}
			reports <- report
		}()
	}
	first := <-reports
	require.Equal(t, plan.PlannedBytes, first.RemovedBytes)
	for range cap(reports) - 1 {
		require.Equal(t, first, <-reports)
	}
}
