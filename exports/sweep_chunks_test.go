package exports_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// The pieces of a workspace are shared by its exports: with one export only those
// go that no other one is made of.
func TestChunksStayForTheExportsThatAreMadeOfThem(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", 0)
	files := smallWork()
	files["workspace/large"] = noise(2, 20<<20)
	first, err := l.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a"}, newBoxWithWork(t, files, 3), nil)
	require.NoError(t, err)
	alone := chunkKeys(l.keys())
	files["workspace/large"] = noise(2, 10<<20) + noise(3, 10<<20)
	second, err := l.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "b", Previous: first}, newBoxWithWork(t, files, 3), nil)
	require.NoError(t, err)
	all := chunkKeys(l.keys())
	require.Greater(t, len(all), len(alone))
	l.end("ws")

	asked, err := l.AskDeletion(t.Context(), "ws", first.Key)
	require.NoError(t, err)
	_, err = l.DeleteExport(t.Context(), "ws", first.Key, asked.Token, "ann")
	require.NoError(t, err)
	left := chunkKeys(l.keys())
	require.Less(t, len(left), len(all), "nothing needs the end of the first file any more")
	require.True(t, slices.ContainsFunc(left, func(key string) bool { return slices.Contains(alone, key) }), "they share its beginning")
	_, err = l.Verify(t.Context(), "ws", second)
	require.NoError(t, err)

	// An index that cannot be read may name anything, so nothing goes.
	third, err := l.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "c", Previous: second}, newBoxWithWork(t, files, 3), nil)
	require.NoError(t, err)
	l.change("exports/ws/0001/c/workspace.json.zst", func([]byte) []byte { return []byte("spoiled") })
	_, err = l.AskDeletion(t.Context(), "ws", second.Key)
	require.ErrorContains(t, err, third.Key)
	require.ErrorContains(t, err, "nothing is deleted")
}

// A chunk whose first name holds something else lies under a second one, and
// goes with the exports like any other.
func TestAChunkUnderItsSecondNameIsSwept(t *testing.T) {
	t.Parallel()
	l := newLife(t)
	l.begin("ws", box.Duration(day))
	files := smallWork()
	export := func(attempt string) box.Receipt {
		receipt, err := l.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: attempt}, newBoxWithWork(t, files, 1), nil)
		require.NoError(t, err)
		return receipt
	}
	first := export("a")
	damaged := chunkKeys(l.keys())
	require.Len(t, damaged, 1)
	l.change(damaged[0], func([]byte) []byte { return []byte("damaged") })
	second := export("b")
	third := export("c")
	require.Equal(t, []string{damaged[0], damaged[0] + "-2"}, chunkKeys(l.keys()))

	// With one export only goes what no other one is made of.
	l.end("ws")
	for _, r := range []box.Receipt{first, second} {
		asked, err := l.AskDeletion(t.Context(), "ws", r.Key)
		require.NoError(t, err)
		_, err = l.DeleteExport(t.Context(), "ws", r.Key, asked.Token, "ann")
		require.NoError(t, err)
	}
	require.Equal(t, []string{damaged[0] + "-2"}, chunkKeys(l.keys()))
	_, err := l.Verify(t.Context(), "ws", third)
	require.NoError(t, err)

	l.clock.pass(day)
	swept := l.sweep(true)["ws"]
	require.Equal(t, exports.SweepDeleted, swept.Result)
	require.Empty(t, swept.Strangers)
	require.Empty(t, below(l.keys(), "chunks/ws/"))
	require.Empty(t, below(l.keys(), "exports/ws/"))
}
