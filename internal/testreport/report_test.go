package testreport_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/internal/testreport"
)

// event is the wire form, written here by hand so that a renamed field shows.
type event map[string]any

func stream(t *testing.T, events ...event) string {
	t.Helper()
	var b strings.Builder
	enc := json.NewEncoder(&b)
	for _, e := range events {
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func read(t *testing.T, in string, allow testreport.List) (report *testreport.Report, printed string) {
	t.Helper()
	var out strings.Builder
	report, err := testreport.Read(strings.NewReader(in), &out, allow)
	if err != nil {
		t.Fatal(err)
	}
	return report, out.String()
}

var passing = []event{
	{"Action": "start", "Package": "m/a"},
	{"Action": "run", "Package": "m/a", "Test": "TestA"},
	{"Action": "pass", "Package": "m/a", "Test": "TestA", "Elapsed": 0.5},
	{"Action": "pass", "Package": "m/a", "Elapsed": 1.26},
}

func skipping(output ...string) []event {
	events := []event{
		{"Action": "run", "Package": "m/b", "Test": "TestReal"},
		{"Action": "output", "Package": "m/b", "Test": "TestReal", "Output": "=== RUN   TestReal\n"},
	}
	for _, o := range output {
		events = append(events, event{"Action": "output", "Package": "m/b", "Test": "TestReal", "Output": o})
	}
	return append(events,
		event{"Action": "output", "Package": "m/b", "Test": "TestReal", "Output": "--- SKIP: TestReal (0.00s)\n"},
		event{"Action": "skip", "Package": "m/b", "Test": "TestReal"},
		event{"Action": "pass", "Package": "m/b", "Elapsed": 0.1})
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	allow := testreport.List{{Package: "m/*", Test: "TestReal", Reason: "needs root"}}
	reason := "    b_test.go:7: not root\n"
	for _, tc := range []struct {
		name   string
		in     string
		allow  testreport.List
		err    string // part of it; empty is a pass
		prints []string
	}{
		{name: "all passed", in: stream(t, passing...), prints: []string{"ok      m/a (1.3s): 1 passed", "\n1 passed, 0 failed, 0 skipped\n"}},
		{
			name: "an allowed skip passes and is shown with both reasons", in: stream(t, append(passing, skipping(reason)...)...), allow: allow,
			prints: []string{"skip    m/b TestReal: not root [allowed: needs root]", "\n1 passed, 0 failed, 1 skipped\n"},
		},
		{
			name: "a skip on no list fails", in: stream(t, append(passing, skipping(reason)...)...),
			err: "m/b TestReal is skipped (not root) and not on the list", prints: []string{"[NOT ALLOWED: not on the list]"},
		},
		{
			name: "a list for other tests does not help", in: stream(t, append(passing, skipping(reason)...)...),
			allow: testreport.List{{Package: "m/b", Test: "TestRea", Reason: "x"}, {Package: "b", Test: "TestReal", Reason: "x"}},
			err:   "not on the list",
		},
		{
			name: "an allowed skip without a reason fails", in: stream(t, append(passing, skipping()...)...), allow: allow,
			err: "TestReal is skipped without a reason",
		},
		{
			name: "log lines before the skip are not its reason",
			in:   stream(t, append(passing, skipping("    b_test.go:3: looking for python\n", "    b_test.go:7: no python\n", "        3.12 or newer\n")...)...), allow: allow,
			prints: []string{"TestReal: no python 3.12 or newer [allowed"},
		},
		{
			name: "a failed test shows its output",
			in: stream(t,
				event{"Action": "output", "Package": "m/a", "Test": "TestA", "Output": "    a_test.go:1: boom\n"},
				event{"Action": "fail", "Package": "m/a", "Test": "TestA"},
				event{"Action": "fail", "Package": "m/a"}),
			err: "1 failed", prints: []string{"FAIL m/a TestA\n    a_test.go:1: boom\n", "\n0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "a test that never ends fails with its package",
			in: stream(t, append(passing,
				event{"Action": "run", "Package": "m/c", "Test": "TestHangs"},
				event{"Action": "output", "Package": "m/c", "Test": "TestHangs", "Output": "panic: test timed out\n"},
				event{"Action": "fail", "Package": "m/c"})...),
			err: "1 failed", prints: []string{"FAIL m/c TestHangs\npanic: test timed out\n(did not finish)\n"},
		},
		{
			name: "a package that does not build fails and shows the compiler",
			in: stream(t, append(passing,
				event{"Action": "build-output", "ImportPath": "m/d [m/d.test]", "Output": "d.go:1: undefined: x\n"},
				event{"Action": "build-fail", "ImportPath": "m/d [m/d.test]"},
				event{"Action": "fail", "Package": "m/d", "FailedBuild": "m/d [m/d.test]"})...),
			err: "1 failed", prints: []string{"d.go:1: undefined: x"},
		},
		{
			name: "a package that fails after its tests passed fails",
			in: stream(t, append(passing[:3:3],
				event{"Action": "output", "Package": "m/a", "Output": "exit status 3\n"},
				event{"Action": "fail", "Package": "m/a"})...),
			err: "1 failed", prints: []string{"exit status 3", "\n1 passed, 1 failed, 0 skipped\n"},
		},
		{name: "a stream that ends early fails", in: stream(t, passing[:3]...), err: "ended before package m/a"},
		{name: "a bare line fails", in: stream(t, passing...) + "no Go files in /x\n", err: "line 5 is not from go test -json: no Go files"},
		{name: "JSON of another kind fails", in: stream(t, passing...) + "{}\n", err: "line 5 is not from go test -json"},
		{name: "an empty stream fails", in: "", err: "no test ran"},
		{
			name: "packages without tests alone fail", in: stream(t, event{"Action": "skip", "Package": "m/none"}),
			err: "no test ran", prints: []string{"no test m/none"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			report, printed := read(t, tc.in, tc.allow)
			switch err := report.Err(); {
			case tc.err == "" && err != nil:
				t.Errorf("Err() = %v, want a pass", err)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("Err() = %v, want one with %q", err, tc.err)
			}
			for _, want := range tc.prints {
				if !strings.Contains(printed, want) {
					t.Errorf("printed\n%s\nwithout %q", printed, want)
				}
			}
		})
	}
}

func TestLongOutputKeepsItsEnd(t *testing.T) {
	t.Parallel()
	events := make([]event, 0, 3001)
	for range 3000 {
		events = append(events, event{"Action": "output", "Package": "m/a", "Test": "TestA", "Output": strings.Repeat("x", 1023) + "\n"})
	}
	events = append(events,
		event{"Action": "output", "Package": "m/a", "Test": "TestA", "Output": "the cause\n"},
		event{"Action": "fail", "Package": "m/a", "Test": "TestA"},
		event{"Action": "fail", "Package": "m/a"})
	_, printed := read(t, stream(t, events...), nil)
	if !strings.Contains(printed, "the cause") || !strings.Contains(printed, "earlier output left out") {
		t.Errorf("the end of the output is missing")
	}
	if len(printed) > 2<<20 {
		t.Errorf("printed %d bytes of one test", len(printed))
	}
}

func TestPrintErrorIsReturned(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	_, err := testreport.Read(strings.NewReader(stream(t, passing...)), failingWriter{full}, nil)
	if !errors.Is(err, full) {
		t.Errorf("Read = %v, want %v", err, full)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestRealStream reads what the go command at hand prints, so that a change
// of its format shows here and not as a run that passes unread.
func TestRealStream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module m\n\ngo 1.25\n",
		"good/a_test.go": "package good\nimport \"testing\"\nfunc TestGood(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Skip(\"no box here\") }) }\n",
		"bad/a_test.go":  "package bad\nimport \"testing\"\nfunc TestBad(t *testing.T) { panic(\"boom\") }\n",
		"no/a.go":        "package no\n\nvar X int = \"text\"\n",
		"no/a_test.go":   "package no\n",
		"bare/a.go":      "package bare\n",
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		t.Fatalf("go test: %v, want it to fail", err)
	}
	report, printed := read(t, string(out), testreport.List{{Package: "m/good", Test: "TestGood/*", Reason: "a test of this test"}})
	if report.Passed != 1 || report.Failed != 2 || report.Skipped != 1 || len(report.Problems) != 0 {
		t.Errorf("report %+v, want 1 passed, 2 failed, 1 skipped and no problem\n%s", report, out)
	}
	for _, want := range []string{
		"skip    m/good TestGood/sub: no box here [allowed: a test of this test]",
		"FAIL m/bad TestBad", "panic: boom", "cannot use \"text\"", "no test m/bare",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("printed\n%s\nwithout %q", printed, want)
		}
	}
}

func TestReadList(t *testing.T) {
	t.Parallel()
	list, err := testreport.ReadList(strings.NewReader("# why\n\n m/b  TestReal/*  needs   root \n"))
	if err != nil || len(list) != 1 || list[0] != (testreport.Entry{Package: "m/b", Test: "TestReal/*", Reason: "needs root"}) {
		t.Errorf("ReadList = %+v, %v", list, err)
	}
	for text, want := range map[string]string{
		"m/b TestReal":              "line 1: write package pattern, test pattern and the reason",
		"# x\nm/b Test[ because":    `line 2: pattern "Test["`,
		strings.Repeat("x", 70_000): "read list of allowed skips",
	} {
		if _, err := testreport.ReadList(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadList(%.20q) = %v, want an error with %q", text, err, want)
		}
	}
}
