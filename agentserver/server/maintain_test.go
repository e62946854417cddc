package server_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABoxThatIsOverItsBudgetIsClearedAtTheStart(t *testing.T) {
	t.Parallel()
	needLinux(t)
	for _, own := range []bool{true, false} {
		root := t.TempDir()
		cache := filepath.Join(root, "home/.cache/tool")
		require.NoError(t, os.MkdirAll(cache, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(cache, "index"), make([]byte, 1<<20), 0o600))
		rows := filepath.Join(t.TempDir(), "catalogue.json")
		require.NoError(t, os.WriteFile(rows, []byte(`{"version":1,"rules":[{"id":"tool","tier":"caches","in":"home","path":".cache/tool","holds_all":["index"]}]}`), 0o600))
		b := startBoxd(t, root, "--catalogue", rows, "--tree-bytes", strconv.Itoa(1<<19), "--own-passes="+strconv.FormatBool(own))
		useOf(t, b)
		if own {
			await(t, "the pass", func() bool { _, err := os.Lstat(cache); return os.IsNotExist(err) })
			continue
		}
		// Ended in order, a pass would have come to its end.
		require.NoError(t, b.Process.Signal(syscall.SIGTERM))
		require.NoError(t, <-b.ended)
		b.ended <- nil
		require.DirExists(t, cache)
	}
}
