package all_test

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/all"
	"github.com/openhands/boxkeeper/providers/local"
)

var update = flag.Bool("update", false, "write docs/providers.md anew")

const head = `# Providers

What each driver claims, on Linux. The conformance suite (package ` + "`providers/drivertest`" + `) checks the claims in both directions. Elsewhere the local provider neither freezes boxes nor tells when one ends.

This file is generated from the drivers' rows: ` + "`go test ./providers/all -run Docs -update`" + `.

`

func TestDocsAreNotStale(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the table shows the rows as they are on Linux")
	}
	path := filepath.Join("..", "..", "docs", "providers.md")
	want := head + all.MarkdownTable(all.Rows())
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale; run: go test ./providers/all -run Docs -update", path)
	}
}

func TestRowsAreComplete(t *testing.T) {
	t.Parallel()
	for _, row := range all.Rows() {
		if missing := row.Missing(); len(missing) > 0 {
			t.Errorf("%s answers nothing for %v", row.Driver, missing)
		}
	}
}

func TestTableKeepsItsShape(t *testing.T) {
	t.Parallel()
	row := box.Capabilities{Driver: "a|b", DeleteProof: "one\ntwo"}
	for line := range strings.Lines(all.MarkdownTable([]box.Capabilities{row, row})) {
		if got := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); got != 4 {
			t.Errorf("%d bars in %q", got, line)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	keys, err := providers.NewKeySource(box.Secret(strings.Repeat("s", 32)))
	if err != nil {
		t.Fatal(err)
	}
	opts := &providers.Options{Installation: "0a1b2c3d", Keys: keys}
	good := all.Settings{Local: local.Options{Dir: t.TempDir(), Command: []string{"/bin/true"}}}
	p, err := all.Open("here", "local", good, opts)
	if err != nil || p.Name() != "here" || p.Capabilities().Driver != "local" {
		t.Fatalf("%v", err)
	}
	for what, err := range map[string]error{
		"providers.here.driver": second(all.Open("here", "fakebox", good, opts)),
		"dir":                   second(all.Open("here", "local", all.Settings{}, opts)),
		"installation":          second(all.Open("here", "local", good, nil)),
	} {
		if box.ClassOf(err) != box.ClassInvalid || !strings.Contains(err.Error(), what+": ") {
			t.Errorf("%v, want Invalid for %s", err, what)
		}
	}
}

func second[T any](_ T, err error) error { return err }
