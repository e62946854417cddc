package server

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestARootIsGoneWhenItWasMissedTwice(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		then func(root string) error
		gone bool
	}{
		"it is where it was":          {func(string) error { return nil }, false},
		"it was removed":              {os.RemoveAll, true},
		"another is in its place":     {func(root string) error { return errors.Join(os.Rename(root, root+".old"), os.Mkdir(root, 0o755)) }, true},
		"it was put back in between":  {func(root string) error { return away(root, lookForRoot+lookForRoot/2) }, false},
		"it was put back before that": {func(root string) error { return away(root, lookForRoot/2) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := filepath.Join(t.TempDir(), "box")
			require.NoError(t, os.Mkdir(root, 0o755))
			first, err := os.Stat(root)
			require.NoError(t, err)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				gone := make(chan struct{})
				go awaitGone(ctx, root, first, gone)
				time.Sleep(lookForRoot / 4)
				require.NoError(t, row.then(root))
				time.Sleep(10 * lookForRoot)
				synctest.Wait()
				select {
				case <-gone:
					require.True(t, row.gone, "it is taken for gone")
				default:
					require.False(t, row.gone, "it is not noticed")
				}
			})
		})
	}
}

// away moves the root aside for a while.
func away(root string, d time.Duration) error {
	err := os.Rename(root, root+".aside")
	time.Sleep(d)
	return errors.Join(err, os.Rename(root+".aside", root))
}

// Where only the older variable names a key, the agent-server takes that one.
func TestTheOlderNameOfTheKeyIsTaken(t *testing.T) {
	t.Parallel()
	look := func(env map[string]string) box.Secret {
		set, err := parse([]string{"--root", t.TempDir(), "--insecure"}, func(name string) string { return env[name] }, io.Discard)
		require.NoError(t, err)
		return set.key
	}
	require.Equal(t, box.Secret("old"), look(map[string]string{"SESSION_API_KEY": "old"}))
	require.Equal(t, box.Secret("new"), look(map[string]string{"SESSION_API_KEY": "old", "OH_SESSION_API_KEYS_0": "new"}))
	require.Empty(t, look(nil))
}
