package all_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/providers/all"
)

// TestReadmeDocsAreNotStale keeps the README's copy of the table equal to
// the drivers' rows.
func TestReadmeDocsAreNotStale(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the table shows the rows as they are on Linux")
	}
	const begin, end = "<!-- providers: copied from docs/providers.md; go test ./providers/all -run Docs -update -->\n", "<!-- /providers -->\n"
	path := filepath.Join("..", "..", "README.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	have, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no place for the providers: it is between %q and %q", path, begin, end)
	}
	want := all.MarkdownTable(all.Rows())
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		have = want
	}
	if have != want {
		t.Errorf("the providers in %s are stale; run: go test ./providers/all -run Docs -update", path)
	}
}
