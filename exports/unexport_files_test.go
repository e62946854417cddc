package exports_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/exports"
)

// Conversations may be in every export, and the files of that day in one alone.
func TestADeletionSaysWhichFilesAreLost(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", 0)
	take := func(attempt string, files map[string]string) string {
		t.Helper()
		receipt, err := l.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: attempt}, newBoxWithWork(t, files, 3), nil)
		require.NoError(t, err)
		return receipt.Key
	}
	files := smallWork()
	first, again := take("a", files), take("b", files)
	files["workspace/new"] = "later"
	later := take("c", files)
	l.end("ws")
	asks := func(key string) exports.Deletion {
		t.Helper()
		asked, err := l.AskDeletion(t.Context(), "ws", key)
		require.NoError(t, err)
		require.Equal(t, len(asked.Lost) > 0, asked.Others == 0, "each holds the same conversations")
		return asked
	}
	drop := func(key string) {
		t.Helper()
		_, err := l.DeleteExport(t.Context(), "ws", key, asks(key).Token, "ann")
		require.NoError(t, err)
	}
	asked := asks(first)
	require.False(t, asked.LostFiles, "the second holds the same")
	require.Equal(t, 2, asked.WithFiles)
	require.True(t, asks(later).LostFiles)
	drop(first)
	asked = asks(again)
	require.True(t, asked.LostFiles, "what is in the last one is of another time")
	require.Equal(t, 1, asked.WithFiles)
	drop(again)
	asked = asks(later)
	require.True(t, asked.LostFiles)
	require.Zero(t, asked.WithFiles)
	require.Zero(t, asked.Others)
}
