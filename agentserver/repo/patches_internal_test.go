package repo

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestAPatchIsCutBetweenFiles(t *testing.T) {
	t.Parallel()
	part := func(name string, bytes int) string {
		return "diff --git a/" + name + " b/" + name + "\n--- a/" + name + "\n+++ b/" + name + "\n@@ -0,0 +1 @@\n" +
			"+" + strings.Repeat("x", bytes) + "diff --git \n+diff --git a/no b/part\n"
	}
	odd := "* Unmerged path x\n"
	for name, row := range map[string]struct {
		patch []string // whatever it is cut into
		want  int
	}{
		"nothing":                      {nil, 0},
		"one file":                     {[]string{part("a", 5)}, 1},
		"small ones stay together":     {[]string{part("a", 5) + part("b", 5) + odd}, 1},
		"a large one is alone":         {[]string{odd + part("a", patchBytes), part("b", 5)}, 2},
		"and is never cut":             {[]string{part("a", 3*patchBytes), part("b", patchBytes), part("c", 5)}, 3},
		"one that ends without a line": {[]string{part("a", patchBytes), "diff --git a/x"}, 2},
	} {
		p := newPatches(iotest.HalfReader(strings.NewReader(strings.Join(row.patch, ""))))
		var got []string
		for p.next() {
			text, err := io.ReadAll(p)
			require.NoError(t, err, name)
			got = append(got, string(text))
		}
		require.NoError(t, p.err, name)
		require.Equal(t, row.patch, got, name)
		require.Len(t, got, row.want, name)
	}
	lost := errors.New("lost")
	p := newPatches(io.MultiReader(strings.NewReader(part("a", 5)), iotest.ErrReader(lost)))
	require.True(t, p.next())
	_, err := io.ReadAll(p)
	require.ErrorIs(t, err, lost)
	require.False(t, p.next())
	require.ErrorIs(t, p.err, lost)
}
