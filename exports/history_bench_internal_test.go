package exports

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports/gitpack"
	"github.com/openhands/boxkeeper/exports/secretscan"
	"github.com/openhands/boxkeeper/workspacetar"
)

// BenchmarkHistory looks through the bundle of a repository with 400 commits of
// program text, or of the one that BOXKEEPER_SCAN_BUNDLE names: beside the reading of
// it alone, the look at its bytes as if they were any file, and git's own unpacking of
// the same pack, which checks more and looks for nothing.
func BenchmarkHistory(b *testing.B) {
	bundle := generatedBundle(b)
	if name := os.Getenv("BOXKEEPER_SCAN_BUNDLE"); name != "" {
		var err error
		if bundle, err = os.ReadFile(name); err != nil {
			b.Fatal(err)
		}
	}
	scanner, err := secretscan.New()
	if err != nil {
		b.Fatal(err)
	}
	look := func(b *testing.B, name string) ScannedObject {
		b.Helper()
		c := &scan{scanner: scanner, policy: box.SecretsKeep}
		f := c.beginFiles(&pastFiles{none: true, stop: func() {}})
		to, err := f.take(workspacetar.Entry{ManifestEntry: box.ManifestEntry{Name: name, Type: workspacetar.TypePart}})
		if err == nil {
			_, err = io.CopyBuffer(to, struct{ io.Reader }{bytes.NewReader(bundle)}, make([]byte, 64<<10))
		}
		if err != nil {
			b.Fatal(err)
		}
		f.end()
		return f.object
	}
	b.Run("looked into", func(b *testing.B) {
		b.SetBytes(int64(len(bundle)))
		var o ScannedObject
		for b.Loop() {
			o = look(b, "repositories/0001/bundle/000001")
		}
		b.ReportMetric(float64(o.Objects), "objects")
		b.ReportMetric(float64(o.Bytes)/(1<<20), "MB-of-text")
		b.ReportMetric(float64(o.Findings), "finds")
		b.ReportMetric(float64(o.Partial), "partial")
		if o.Packed > 0 || o.Objects == 0 {
			b.Errorf("it was not read: %+v", o)
		}
		for _, f := range o.List {
			b.Logf("%s: %s %s, line %d, byte %d", f.Rule, f.Git, f.Object, f.Line, f.Offset)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(bundle)))
		r := gitpack.NewReader()
		for b.Loop() {
			if err := r.Bundle(bytes.NewReader(bundle), nobody{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("as bytes", func(b *testing.B) {
		b.SetBytes(int64(len(bundle)))
		for b.Loop() {
			look(b, "repositories/0001/git/x/000001")
		}
	})
	b.Run("git index-pack", func(b *testing.B) {
		b.SetBytes(int64(len(bundle)))
		_, pack, _ := bytes.Cut(bundle, []byte("\n\n"))
		for b.Loop() {
			dir := b.TempDir()
			agentservertest.Git(b, dir, "init", "-q", "--bare")
			cmd := exec.CommandContext(b.Context(), "git", "-c", "pack.threads=1", "index-pack", "--stdin")
			cmd.Dir, cmd.Stdin = dir, bytes.NewReader(pack)
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}

type nobody struct{}

func (nobody) Begin(gitpack.Kind, int64)   {}
func (nobody) From(int64, int64)           {}
func (nobody) Write(p []byte) (int, error) { return len(p), nil }
func (nobody) End(string)                  {}

// generatedBundle is a history of program text: 200 files, 400 commits that change
// some of them a little, and a message for each.
func generatedBundle(b *testing.B) []byte {
	b.Helper()
	dir, r := b.TempDir(), rand.New(rand.NewPCG(5, 5))
	agentservertest.Git(b, dir, "init", "-q", "-b", "main")
	words := strings.Fields("return if err nil func key token range string int key secret name value config client request context store list read write path file test for case switch struct map type default")
	line := func() string {
		out := strings.Repeat("\t", r.IntN(4))
		for range 3 + r.IntN(7) {
			out += words[r.IntN(len(words))] + []string{" ", ", ", "(", ") ", " := ", " = ", ".", " // "}[r.IntN(8)]
		}
		return out + fmt.Sprintf("x%d", r.IntN(100_000))
	}
	files := make([][]string, 200)
	for i := range files {
		for range 100 + r.IntN(400) {
			files[i] = append(files[i], line())
		}
	}
	var in bytes.Buffer
	for n := range 400 {
		message := fmt.Sprintf("change %d: %s\n", n, line())
		fmt.Fprintf(&in, "commit refs/heads/main\ncommitter a <a@example.invalid> %d +0000\ndata %d\n%s", 1_700_000_000+n*3600, len(message), message)
		changed := 1 + r.IntN(8)
		if n == 0 {
			changed = len(files)
		}
		for i := range changed {
			if n > 0 {
				i = r.IntN(len(files))
				for range 1 + r.IntN(10) {
					at := r.IntN(len(files[i]))
					files[i] = append(files[i][:at:at], append([]string{line(), line()}, files[i][at+r.IntN(2):]...)...)
				}
			}
			text := strings.Join(files[i], "\n") + "\n"
			fmt.Fprintf(&in, "M 100644 inline pkg%02d/file%03d.go\ndata %d\n%s\n", i%20, i, len(text), text)
		}
	}
	cmd := exec.CommandContext(b.Context(), "git", "fast-import", "--quiet")
	cmd.Dir, cmd.Stdin = dir, &in
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	agentservertest.Git(b, dir, "-c", "pack.threads=1", "repack", "-adfq", "--depth=50", "--window=10")
	name := filepath.Join(b.TempDir(), "b")
	agentservertest.Git(b, dir, "bundle", "create", "-q", name, "--all")
	bundle, err := os.ReadFile(name)
	if err != nil {
		b.Fatal(err)
	}
	return bundle
}
