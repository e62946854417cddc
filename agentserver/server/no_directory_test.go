package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/exports"
)

// What stands in place of a conversation's directory makes every list an error,
// and so no export: left out, it would be deleted with the box.
func TestAConversationThatIsNoDirectoryIsNotLeftOut(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, place string){
		"a link to where it was moved": func(t *testing.T, place string) {
			t.Helper()
			moved := filepath.Join(t.TempDir(), "moved")
			require.NoError(t, os.Rename(place, moved))
			require.NoError(t, os.Symlink(moved, place))
		},
		"a link to nothing": func(t *testing.T, place string) {
			t.Helper()
			require.NoError(t, os.RemoveAll(place))
			require.NoError(t, os.Symlink("nowhere", place))
		},
		"a file": func(t *testing.T, place string) {
			t.Helper()
			require.NoError(t, os.RemoveAll(place))
			require.NoError(t, os.WriteFile(place, []byte("{}"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, conversations := alone(t, 2)
			c := connect(t, url)
			list, err := c.Conversations(t.Context())
			require.NoError(t, err)
			require.Len(t, list, 2)
			id := fmt.Sprintf("%032x", 2)
			replace(t, filepath.Join(conversations, id))

			_, err = c.Conversations(t.Context())
			require.ErrorContains(t, err, id)
			_, err = c.Use(t.Context())
			require.ErrorContains(t, err, id)
			store, err := exports.OpenWith(t.Context(), "file://"+t.TempDir(), exports.Options{SpoolDir: t.TempDir()})
			require.NoError(t, err)
			defer store.Close() //nolint:errcheck // only read
			receipt, err := store.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a"}, agentserver.History{Client: c}, nil)
			require.ErrorContains(t, err, id)
			require.True(t, receipt.IsZero())
		})
	}
}
