package exports_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestACursorReadsEntryAfterEntry(t *testing.T) {
	t.Parallel()
	files := smallWork()
	files["workspace/large"] = noise(11, 9<<20)
	b := newBucket()
	s := b.store(exports.Options{SpoolDir: t.TempDir()})
	receipt, err := s.Export(t.Context(), request("a"), newBoxWithWork(t, files, 1), nil)
	require.NoError(t, err)
	r, err := s.Workspace(t.Context(), "ws", receipt)
	require.NoError(t, err)
	cursor := r.Cursor()
	seen := 0
	for e, err := range r.Entries(t.Context()) {
		require.NoError(t, err)
		if e.Type != "file" {
			continue
		}
		text, err := io.ReadAll(cursor.Content(t.Context(), e))
		require.NoError(t, err)
		require.Equal(t, files[strings.TrimPrefix(e.Name, box.WorkspaceFiles)], string(text), e.Name)
		seen++
	}
	require.EqualValues(t, receipt.Archive.Files, seen)
	require.NoError(t, s.ProveWorkspace(t.Context(), "ws", receipt))

	// Each object that goes is found, and named where it is read.
	for _, key := range b.keys() {
		if !strings.HasPrefix(key, "chunks/") {
			continue
		}
		var before []byte
		b.change(key, func(data []byte) []byte { before = data; return nil })
		wantClass(t, s.ProveWorkspace(t.Context(), "ws", receipt), box.ClassUnknown)
		_, err := io.Copy(io.Discard, r.Tar(t.Context()))
		if err == nil { // the last chunk read is kept
			again, opened := s.Workspace(t.Context(), "ws", receipt)
			require.NoError(t, opened)
			_, err = io.Copy(io.Discard, again.Tar(t.Context()))
		}
		wantClass(t, err, box.ClassUnknown)
		require.ErrorContains(t, err, key)
		b.change(key, func([]byte) []byte { return before })
	}
	none, err := s.Export(t.Context(), exports.Request{Workspace: "other", Epoch: 1, Attempt: "a"}, newServer(1), nil)
	require.NoError(t, err)
	wantClass(t, s.ProveWorkspace(t.Context(), "other", none), box.ClassNotFound)
}
