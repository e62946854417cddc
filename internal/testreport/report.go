// Package testreport reads what "go test -json" prints and says it in lines a
// person reads: one per package, the whole output of what failed, every skip
// with its reason, and one closing line with the counts.
//
// A skipped test is a promise that nobody checks, so a skip passes only when
// it gives a reason and is on the list of allowed skips. The package never
// starts a test and never hides one: a stream that ends early, a line it can't
// read and a run without a single test are failures.
//
// The command in cmd/testreport calls it, and .ci/run calls that.
package testreport

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxLineBytes bounds one line of the stream. The go command cuts a test's
// output into short lines; a longer one is not from it.
const maxLineBytes = 16 << 20

// Report is what a run of the tests came to.
type Report struct {
	Passed, Failed, Skipped int

	Packages int
	Skips    []Skip
	// Problems are the reasons, beside failed tests, why the run doesn't pass.
	Problems []string
}

// Skip is one test that did not run.
type Skip struct {
	Package, Test string
	Reason        string // what the test printed; empty is a problem
	Allowed       string // why the list allows it; empty is a problem
}

// Err says why the run doesn't pass; nil means it does.
func (r *Report) Err() error {
	var errs []error
	if r.Failed > 0 {
		errs = append(errs, fmt.Errorf("%d failed", r.Failed))
	}
	for _, p := range r.Problems {
		errs = append(errs, errors.New(p))
	}
	return errors.Join(errs...)
}

// Read reads the stream to its end and prints to out as packages finish. The
// error is one of reading or printing; what the tests came to is in the
// report, see [Report.Err].
func Read(in io.Reader, out io.Writer, allow List) (*Report, error) {
	r := reader{out: out, allow: allow, packages: map[string]*packageRun{}, builds: map[string]*tail{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxLineBytes)
	for n := 1; lines.Scan(); n++ {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			// The go command itself may print a bare line, for example when it
			// can't load a package. It is shown, and never taken for success.
			r.problem("line %d is not from go test -json: %.200s", n, lines.Text())
			continue
		}
		r.take(e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read test output: %w", err)
	}
	r.finish()
	return &r.report, r.err
}

// event is one line of the stream; "go doc test2json" describes it.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	Test        string
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string  // of a package's fail: the import path that did not build
}

type reader struct {
	out      io.Writer
	err      error // the first one of printing
	allow    List
	report   Report
	packages map[string]*packageRun
	builds   map[string]*tail // compiler output by import path
}

// packageRun is one package under test.
type packageRun struct {
	output                  tail             // outside any test
	tests                   map[string]*tail // still running
	failures                []failure
	passed, failed, skipped int
}

type failure struct {
	test   string
	output string
}

func (r *reader) take(e event) {
	switch e.Action {
	case "build-output":
		if r.builds[e.ImportPath] == nil {
			r.builds[e.ImportPath] = &tail{}
		}
		r.builds[e.ImportPath].add(e.Output)
		return
	case "build-fail":
		return // the packages that need it fail and show its output
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &packageRun{tests: map[string]*tail{}}
		r.packages[e.Package] = p
	}
	if e.Test == "" {
		r.takePackage(e, p)
		return
	}
	output := p.tests[e.Test]
	if output == nil {
		output = &tail{}
		p.tests[e.Test] = output
	}
	switch e.Action {
	case "output":
		output.add(e.Output)
	case "pass":
		p.passed++
		delete(p.tests, e.Test)
	case "fail":
		p.fail(e.Test, output)
	case "skip":
		p.skipped++
		r.skip(e.Package, e.Test, output)
		delete(p.tests, e.Test)
	}
}

func (r *reader) takePackage(e event, p *packageRun) {
	switch e.Action {
	case "output":
		p.output.add(e.Output)
	case "pass", "skip": // skip: the package has no test
		r.endPackage(e, p)
	case "fail":
		// A test that still runs here hung or took the whole process down.
		for _, name := range slices.Sorted(maps.Keys(p.tests)) {
			p.tests[name].add("(did not finish)\n")
			p.fail(name, p.tests[name])
		}
		if p.failed == 0 { // did not build, or failed outside a test
			p.failed++
			var built string
			if b := r.builds[e.FailedBuild]; b != nil {
				built = b.String()
			}
			p.failures = append(p.failures, failure{"the package", built})
		}
		r.endPackage(e, p)
	}
}

func (p *packageRun) fail(test string, output *tail) {
	p.failed++
	p.failures = append(p.failures, failure{test, output.String()})
	delete(p.tests, test)
}

func (r *reader) endPackage(e event, p *packageRun) {
	delete(r.packages, e.Package)
	r.report.Packages++
	r.report.Passed += p.passed
	r.report.Failed += p.failed
	r.report.Skipped += p.skipped
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(100 * time.Millisecond)
	switch {
	case p.failed > 0:
		for _, f := range p.failures {
			r.printf("\nFAIL %s %s\n%s", e.Package, f.test, f.output)
		}
		r.printf("%s", p.output.String())
		r.printf("FAIL    %s (%v): %d passed, %d failed, %d skipped\n", e.Package, took, p.passed, p.failed, p.skipped)
	case e.Action == "skip" && p.passed+p.skipped == 0:
		r.printf("no test %s\n", e.Package)
	default:
		r.printf("ok      %s (%v): %d passed, %d skipped\n", e.Package, took, p.passed, p.skipped)
	}
}

func (r *reader) skip(pkg, test string, output *tail) {
	s := Skip{Package: pkg, Test: test, Reason: skipReason(output.String()), Allowed: r.allow.reason(pkg, test)}
	r.report.Skips = append(r.report.Skips, s)
	switch {
	case s.Reason == "":
		r.report.Problems = append(r.report.Problems, fmt.Sprintf("%s %s is skipped without a reason: say it in t.Skip", pkg, test))
	case s.Allowed == "":
		r.report.Problems = append(r.report.Problems,
			fmt.Sprintf("%s %s is skipped (%s) and not on the list of allowed skips", pkg, test, s.Reason))
	}
}

func (r *reader) finish() {
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		r.problem("the output ended before package %s did", name)
	}
	if r.report.Passed+r.report.Failed+r.report.Skipped == 0 {
		r.problem("no test ran")
	}
	for _, s := range r.report.Skips {
		mark, why := "allowed", s.Allowed
		if why == "" {
			mark, why = "NOT ALLOWED", "not on the list"
		}
		r.printf("skip    %s %s: %s [%s: %s]\n", s.Package, s.Test, cmp.Or(s.Reason, "no reason given"), mark, why)
	}
	for _, p := range r.report.Problems {
		r.printf("problem %s\n", p)
	}
	r.printf("%d passed, %d failed, %d skipped\n", r.report.Passed, r.report.Failed, r.report.Skipped)
}

func (r *reader) problem(format string, args ...any) {
	r.report.Problems = append(r.report.Problems, fmt.Sprintf(format, args...))
}

func (r *reader) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(r.out, format, args...); err != nil && r.err == nil {
		r.err = fmt.Errorf("print report: %w", err)
	}
}

// skipReason takes the message of t.Skip out of a skipped test's output: the
// last "file.go:12: text" and the lines that go on from it.
func skipReason(output string) string {
	var reason []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if at, text, ok := strings.Cut(line, ": "); ok && isPlace(at) {
			line, reason = text, nil
		}
		reason = append(reason, line)
	}
	return strings.Join(reason, " ")
}

// isPlace tells whether s is like "local_test.go:12".
func isPlace(s string) bool {
	file, line, ok := strings.Cut(s, ":")
	return ok && strings.HasSuffix(file, ".go") && line != "" && strings.Trim(line, "0123456789") == ""
}

// tail keeps the end of a test's output. A test that prints without end must
// not take the machine's memory, and the cause of a failure is near its end.
type tail struct {
	buf     []byte
	dropped bool
}

const maxTailBytes = 1 << 20

func (t *tail) add(s string) {
	t.buf = append(t.buf, s...)
	if extra := len(t.buf) - maxTailBytes; extra > maxTailBytes/4 {
		t.buf = slices.Delete(t.buf, 0, extra)
		t.dropped = true
	}
}

func (t *tail) String() string {
	if t.dropped {
		return "(earlier output left out)\n" + string(t.buf)
	}
	return string(t.buf)
}
