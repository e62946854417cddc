package server_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// oddNames are names that a file can have on Linux, and what they are in a zip.
var oddNames = map[string]string{
	"a tab\there":        "a tab%09here",
	"a new\nline":        "a new%0Aline",
	"a back\\slash":      "a back%5Cslash",
	"no UTF-8 \xff\xfe":  "no UTF-8 %FF%FE",
	"escape \x1b[2J":     "escape %1B[2J",
	"50% \x7f":           "50%25 %7F",
	"taken\x01":          "taken%01~",
	"taken%01":           "taken%01", // nothing is wrong with it
	"spaces and ünïcode": "spaces and ünïcode",
	"...":                "...",
	"C:":                 "C:",
	"-rf *":              "-rf *",
	"an empty one":       "an empty one",
}

// giveOddNames puts files with such names beside a conversation's own.
func giveOddNames(t *testing.T, conversation string) {
	t.Helper()
	for _, below := range []string{".", "odd\ndirectory"} {
		require.NoError(t, os.MkdirAll(filepath.Join(conversation, below), 0o700))
		for name := range oddNames {
			content := "in " + name
			if name == "an empty one" {
				content = ""
			}
			require.NoError(t, os.WriteFile(filepath.Join(conversation, below, name), []byte(content), 0o600))
		}
	}
}

// exported makes an export of a box, in a store of its own.
func exported(t *testing.T, address string) (*exports.Store, box.Receipt) {
	t.Helper()
	store, err := exports.OpenWith(t.Context(), "file://"+t.TempDir(), exports.Options{SpoolDir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	receipt, err := store.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a"}, agentserver.History{Client: connect(t, address)}, nil)
	require.NoError(t, err)
	return store, receipt
}

func TestScenario99OddNamesAreExportedAndComeBack(t *testing.T) {
	t.Parallel()
	from, conversations := alone(t, 2)
	id := fmt.Sprintf("%032x", 2)
	giveOddNames(t, filepath.Join(conversations, id))
	store, receipt := exported(t, from)
	c, err := store.OpenConversation(t.Context(), "ws", id)
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // only read
	got := map[string]string{}
	for f, err := range c.Files(t.Context()) {
		require.NoError(t, err)
		if f.Directory {
			continue
		}
		r, err := c.OpenFile(t.Context(), f)
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		got[strings.TrimPrefix(f.Name, id+"/")] = string(content)
	}
	for name, as := range oddNames {
		for _, below := range []string{"", "odd%0Adirectory/"} {
			want := "in " + name
			if name == "an empty one" {
				want = ""
			}
			require.Contains(t, got, below+as)
			require.Equal(t, want, got[below+as], name)
			delete(got, below+as)
		}
	}
	require.Len(t, got, 4, "its own, two of them events: %v", slices.Sorted(maps.Keys(got)))

	to, root, _ := front(t, nil, "")
	require.NoError(t, store.Restore(t.Context(), "ws", receipt, nil, agentserver.History{Client: connect(t, to)}, nil))
	use, err := connect(t, to).Use(t.Context())
	require.NoError(t, err)
	require.Equal(t, receipt.Digest, use.Digest)
	require.FileExists(t, filepath.Join(root, "imported", id, "a new%0Aline"))
	again, second := exported(t, to)
	require.Equal(t, receipt.Digest, second.Digest)
	one, err := again.OpenConversation(t.Context(), "ws", id)
	require.NoError(t, err)
	defer one.Close() //nolint:errcheck // only read
	require.Equal(t, c.SHA256, one.SHA256, "what was put back is exported as it was")
}
