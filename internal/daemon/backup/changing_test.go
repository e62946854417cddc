package backup_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/daemon/backup"
)

const busy = "boxes/local/boxes/bk-1/workspace/busy"

// changing makes a backup of a data directory in which a file of 1 MiB is
// changed each time that its reading has gone on by a piece.
func changing(t *testing.T, change func(t *testing.T, name string, times int)) (backup.Summary, string, error) {
	t.Helper()
	data := newData(t)
	name := filepath.Join(data, busy)
	require.NoError(t, os.WriteFile(name, bytes.Repeat([]byte("x"), 1<<20), 0o600))
	o := options(data)
	var before int64
	times := 0
	o.Progress = func(p backup.Progress) {
		if p.Stage == "reading" && p.Path == busy && p.Bytes != before {
			times++
			change(t, name, times)
		}
		before = p.Bytes
	}
	file := filepath.Join(t.TempDir(), "x")
	s, err := backup.Create(t.Context(), file, o)
	require.Positive(t, times)
	return s, file, err
}

func restored(t *testing.T, file, name string) []byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	_, err := backup.Restore(t.Context(), file, target(dir))
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return data
}

func TestAFileThatGrowsIsTakenAsItWas(t *testing.T) {
	t.Parallel()
	s, file, err := changing(t, func(t *testing.T, name string, _ int) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		require.NoError(t, err)
		_, err = f.WriteString("more")
		require.NoError(t, err)
		require.NoError(t, f.Close())
	})
	require.NoError(t, err)
	require.Equal(t, 1, s.Changed)
	require.Equal(t, []string{busy}, s.ChangedFirst)
	require.Equal(t, bytes.Repeat([]byte("x"), 1<<20), restored(t, file, busy))
}

func TestAFileThatGetsShorterIsReadOnceMore(t *testing.T) {
	t.Parallel()
	s, file, err := changing(t, func(t *testing.T, name string, times int) {
		t.Helper()
		if times == 1 {
			require.NoError(t, os.Truncate(name, 300_001))
		}
	})
	require.NoError(t, err)
	require.Equal(t, 1, s.Changed)
	require.Equal(t, bytes.Repeat([]byte("x"), 300_001), restored(t, file, busy))
}

func TestAFileThatGetsShorterAndIsGoneIsTakenAsItWas(t *testing.T) {
	t.Parallel()
	_, file, err := changing(t, func(t *testing.T, name string, times int) {
		t.Helper()
		if times == 1 {
			require.NoError(t, os.Truncate(name, 7))
			require.NoError(t, os.Remove(name))
		}
	})
	require.NoError(t, err)
	require.Equal(t, "xxxxxxx", string(restored(t, file, busy)))
}

func TestAFileThatKeepsGettingShorterIsNamed(t *testing.T) {
	t.Parallel()
	_, file, err := changing(t, func(t *testing.T, name string, times int) {
		t.Helper()
		require.NoError(t, os.Truncate(name, max(0, 900_000-int64(times)*300_000)))
	})
	requireClass(t, box.ClassConflict, err, busy, "suspend its box first", "--no-boxes")
	requireNames(t, filepath.Dir(file))
}

func TestWhatVanishesBeforeItIsReadIsLeft(t *testing.T) {
	t.Parallel()
	data := newData(t)
	o := options(data)
	o.Progress = func(p backup.Progress) {
		if p.Path == "boxes/local/boxes/bk-1" {
			require.NoError(t, os.RemoveAll(filepath.Join(data, "boxes/local/boxes/bk-1")))
		}
	}
	file := filepath.Join(t.TempDir(), "x")
	_, err := backup.Create(t.Context(), file, o)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "new")
	_, err = backup.Restore(t.Context(), file, target(dir))
	require.NoError(t, err)
	requireNames(t, filepath.Join(dir, "boxes/local/boxes/bk-1"))
}

// A directory that is exchanged for a link is not followed.
func TestALinkInTheWayIsNotFollowed(t *testing.T) {
	t.Parallel()
	data, away := newData(t), t.TempDir()
	write(t, filepath.Join(away, "private"), "private")
	dir := filepath.Join(data, "boxes/local/boxes/bk-1/workspace")
	o := options(data)
	o.Progress = func(p backup.Progress) {
		if p.Path == "boxes/local/boxes/bk-1" {
			_ = os.RemoveAll(dir)
			_ = os.Symlink(away, dir)
		}
	}
	file := filepath.Join(t.TempDir(), "x")
	_, err := backup.Create(t.Context(), file, o)
	require.NoError(t, err)
	back := filepath.Join(t.TempDir(), "new")
	_, err = backup.Restore(t.Context(), file, target(back))
	require.NoError(t, err)
	to, err := os.Readlink(filepath.Join(back, "boxes/local/boxes/bk-1/workspace"))
	require.NoError(t, err)
	require.Equal(t, away, to)
}

// TestCanceledAtAnyPoint cancels at each progress there is: nothing is left,
// and the data directory to be is as it was.
func TestCanceledAtAnyPoint(t *testing.T) {
	t.Parallel()
	data := newData(t)
	file, _ := newBackup(t, data)
	for _, run := range []struct {
		name string
		call func(ctx context.Context, dir string, tell func(backup.Progress)) error
	}{
		{"backup", func(ctx context.Context, dir string, tell func(backup.Progress)) error {
			o := options(data)
			o.Progress = tell
			_, err := backup.Create(ctx, filepath.Join(dir, "x"), o)
			return err
		}},
		{"restore", func(ctx context.Context, dir string, tell func(backup.Progress)) error {
			to := target(filepath.Join(dir, "new"))
			to.Progress = tell
			_, err := backup.Restore(ctx, file, to)
			return err
		}},
	} {
		t.Run(run.name, func(t *testing.T) {
			t.Parallel()
			canceled := 0
			for at := 0; ; at++ {
				dir := t.TempDir()
				ctx, cancel := context.WithCancel(t.Context())
				if at == 0 {
					cancel()
				}
				n := 0
				err := run.call(ctx, dir, func(backup.Progress) {
					if n++; n == at {
						cancel()
					}
				})
				reached := n >= at && at > 0 || at == 0
				cancel()
				if !reached {
					require.NoError(t, err)
					break // there are no more points
				}
				if err == nil {
					continue // the last of them come when all is done but the end
				}
				requireClass(t, box.ClassCanceled, err)
				requireNames(t, dir)
				canceled++
			}
			require.Greater(t, canceled, 30)
		})
	}
}

func TestOneOfTwoBackupsGetsTheName(t *testing.T) {
	t.Parallel()
	data := newData(t)
	file := filepath.Join(t.TempDir(), "x")
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = backup.Create(t.Context(), file, options(data)) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		requireClass(t, box.ClassAlreadyExists, err, "is there already")
	}
	require.Equal(t, 1, won)
	requireNames(t, filepath.Dir(file), "x")
	require.NotEmpty(t, restored(t, file, "installation.key"))
}
