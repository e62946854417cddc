package exports_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// The exports of an abandoned workspace stay: nobody agreed to lose them, and
// they may be all that is left. What belongs to none of them goes.
func TestWhatNoExportNeedsIsSweptFromAnAbandonedWorkspace(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*life){
		"abandoned":        func(l *life) { l.note("ws", exports.KindAbandoned, box.LedgerAbandonment{}) },
		"kept for ever":    func(l *life) { l.end("ws") },
		"not even deleted": nil,
		"of a lost ledger": func(l *life) { l.note("ws", exports.KindAbandoned, box.LedgerAbandonment{}); l.forget("ledger/ws/") },
		"a manifest broken": func(l *life) {
			l.note("ws", exports.KindAbandoned, box.LedgerAbandonment{})
			l.spoil("/b/manifest.json")
		},
		"an index broken": func(l *life) {
			l.note("ws", exports.KindAbandoned, box.LedgerAbandonment{})
			l.spoil("/b/workspace.json.zst")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t)
			l.begin("ws", box.Never)
			files := smallWork()
			first, err := l.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a"}, newBoxWithWork(t, files, 2), nil)
			require.NoError(t, err)
			whole := l.keys()
			files["workspace/a.txt"] = "another chunk"
			second, err := l.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "b", Previous: first}, newBoxWithWork(t, files, 2), nil)
			require.NoError(t, err)
			// Of an attempt that broke off, and of a deletion that did.
			var rest []string
			for _, key := range []string{"exports/ws/0001/c/conversations/" + hex32(1) + ".zip", "chunks/ws/ab/" + strings.Repeat("ab", 32), "chunks/ws/ab/" + strings.Repeat("ab", 32) + "-2"} {
				l.change(key, func([]byte) []byte { return []byte("rest") })
				rest = append(rest, key)
			}
			if end != nil {
				end(l)
			}
			before := l.keys()
			l.clock.pass(day - 1)
			l.sweep(true)
			require.Equal(t, before, l.keys(), "an export may still run, and have found them there")
			l.clock.pass(1)
			dry := l.sweep(false)["ws"]
			require.Equal(t, before, l.keys(), "a dry run")
			swept := l.sweep(true)["ws"]
			switch name {
			case "abandoned", "kept for ever":
			default:
				require.Subset(t, l.keys(), before)
				require.Zero(t, swept.Unneeded)
				return
			}
			require.Equal(t, exports.SweepKept, swept.Result)
			require.Equal(t, len(rest), swept.Unneeded)
			require.Equal(t, dry, swept)
			require.EqualValues(t, len(rest)*len("rest"), swept.UnneededBytes)
			after := l.keys()
			for _, key := range before {
				require.Equal(t, !slices.Contains(rest, key), slices.Contains(after, key), key)
			}
			for _, r := range []box.Receipt{first, second} {
				_, err = l.Verify(t.Context(), "ws", r)
				require.NoError(t, err)
			}
			entries, err := l.Ledger(t.Context(), "ws")
			require.NoError(t, err)
			require.Equal(t, exports.KindExportsDeleted, entries[len(entries)-1].Kind, "what went is in the ledger")
			l.sweep(true)
			require.Equal(t, after, l.keys(), "a repeat has nothing to do")

			// A person deletes one by one, and all of it is gone in the end.
			for _, r := range []box.Receipt{second, first} {
				asked, err := l.AskDeletion(t.Context(), "ws", r.Key)
				require.NoError(t, err)
				_, err = l.DeleteExport(t.Context(), "ws", r.Key, asked.Token, "ann")
				require.NoError(t, err)
				if r == second {
					for _, key := range whole {
						require.Contains(t, l.keys(), key)
					}
				}
			}
			require.Empty(t, slices.DeleteFunc(l.keys(), func(key string) bool { return strings.HasPrefix(key, "ledger/") }))
		})
	}
}

// forget loses all objects below a prefix.
func (l *life) forget(prefix string) {
	for _, key := range below(l.keys(), prefix) {
		l.change(key, func([]byte) []byte { return nil })
	}
}

// spoil alters the objects with a suffix.
func (l *life) spoil(suffix string) {
	for _, key := range l.keys() {
		if strings.HasSuffix(key, suffix) {
			l.change(key, func([]byte) []byte { return []byte("spoiled") })
		}
	}
}
