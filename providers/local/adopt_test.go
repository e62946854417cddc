package local_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/local"
)

func TestAdoptKeepsTheFilesAndIsABoxLikeAnyOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	seen := must(t, "adopt")(d.Adopt(t.Context(), r.Stray(t), identity("found")))
	require.Equal(t, box.PhaseSuspended, seen.Phase)
	require.Zero(t, seen.Age, "nobody knows since when it stands still")
	require.NoDirExists(t, r.box("an-old-session"))
	require.True(t, r.Untouched(t, seen.Ref.Name), "its files are as they were")
	seen = must(t, "resume")(d.Resume(t.Context(), seen.Ref, start()))
	reached(t, d, seen.Ref)
	require.FileExists(t, filepath.Join(r.box(seen.Ref.Name), "theirs"))
	must(t, "delete")(d.Delete(t.Context(), seen.Ref))
	require.Empty(t, r.Left(t, seen.Ref))
}

// A call that was cut short between the record and the move is finished by the
// next one, and the box is at no time somebody else's or gone.
func TestAnAdoptionThatWasCutShortIsFinished(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	id, as := r.Stray(t), identity("found")
	must(t, "adopt")(d.Adopt(t.Context(), id, as))
	for name, cut := range map[string]func(){
		"before the move": func() {
			require.NoError(t, os.Rename(r.box(as.Name()), r.box(id)))
			r.edit(t, as.Name(), func(rec map[string]any) { delete(rec, "made") })
		},
		"after the move": func() { r.edit(t, as.Name(), func(rec map[string]any) { delete(rec, "made") }) },
	} {
		cut()
		seen, err := d.Adopt(t.Context(), id, as)
		require.NoError(t, err, name)
		require.Equal(t, box.PhaseSuspended, seen.Phase, name)
		require.True(t, r.Untouched(t, as.Name()), name)
	}
}

func TestAdoptLeavesAloneWhatIsNotNobodys(t *testing.T) {
	t.Parallel()
	r := newRig(t, "", "fake-boxd")
	d := r.open(t, installation)
	refuse := func(what string, class box.Class, id string) {
		t.Helper()
		_, err := d.Adopt(t.Context(), id, identity("found"))
		require.Equal(t, class, box.ClassOf(err), "%s: %v", what, err)
		require.NoFileExists(t, r.record(identity("found").Name()), what)
	}
	elsewhere := t.TempDir()
	require.NoError(t, os.Symlink(elsewhere, r.box("link")))
	require.NoError(t, os.WriteFile(r.box("file"), nil, 0o600))
	lost := identity("lost").Name()
	r.Plant(t, lost)
	refuse("a link", box.ClassFailedPrecondition, "link")
	refuse("a file", box.ClassFailedPrecondition, "file")
	refuse("a box whose record is missing", box.ClassFailedPrecondition, lost)
	for _, id := range []string{"..", ".engine-id", "a/b", "../boxes", `a\b`, "absent"} {
		refuse("a name that is no box", box.ClassNotFound, id)
	}
	require.True(t, r.Untouched(t, lost))
	if runtime.GOOS != "linux" {
		return // no /proc: what works in a directory cannot be seen
	}
	busy := r.Stray(t)
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.Dir = r.box(busy)
	require.NoError(t, cmd.Start())
	refuse("a directory in which something runs", box.ClassFailedPrecondition, busy)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	_, err := d.Adopt(t.Context(), busy, identity("found"))
	require.NoError(t, err)
	r.Plant(t, "second")
	_, err = d.Adopt(t.Context(), "second", identity("found"))
	require.Equal(t, box.ClassAlreadyExists, box.ClassOf(err), err)
	require.True(t, r.Untouched(t, "second"))
	_, err = d.Adopt(t.Context(), "second", box.Identity{Installation: "ffee0011", Workspace: "found", Epoch: 1})
	require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), err)
}

func TestAdoptTellsSinceWhenABoxOfOursIsSuspended(t *testing.T) {
	t.Parallel()
	r := newRig(t, local.SuspendStop, "fake-boxd")
	d := r.open(t, installation)
	ref := made(t, d, "ours")
	must(t, "suspend")(d.Suspend(t.Context(), ref))
	r.edit(t, ref.Name, func(rec map[string]any) {
		rec["suspended_at"] = time.Now().Add(-48 * time.Hour).UTC().Format(time.RFC3339)
	})
	seen := must(t, "adopt")(d.Adopt(t.Context(), ref.ID, identity("ours")))
	require.InDelta(t, (48 * time.Hour).Seconds(), time.Duration(seen.Age).Seconds(), 60)
}
