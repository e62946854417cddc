package drivertest_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/internal/race"
	"github.com/openhands/boxkeeper/providers/drivertest"
)

// mutant is a driver with one flaw, and the cases that must find it. A suite
// that no mutant fails shows nothing.
type mutant struct {
	flaw  string
	cases []string // of the suite, below "driver" or "wire"
}

// TestSuiteOverMutant is run by the tests below, in a process of its own: it
// fails, and they look where. By itself it has no mutant and does nothing.
func TestSuiteOverMutant(t *testing.T) {
	t.Parallel()
	kind, flaw, ok := strings.Cut(flag.Arg(0), "=")
	if !ok {
		return
	}
	makers := map[string]func(t *testing.T) drivertest.Harness{
		"wire": func(t *testing.T) drivertest.Harness { t.Helper(); return newHarness(t, flaw) },
		"via":  func(t *testing.T) drivertest.Harness { t.Helper(); return viaTransport(t, flaw) },
		"fake": func(t *testing.T) drivertest.Harness { t.Helper(); return newFake(t, flaw) },
	}
	drivertest.RunConformance(t, makers[kind])
}

// find runs one case over a mutant and checks that it fails.
func find(t *testing.T, kind, group string, m mutant) {
	t.Helper()
	for _, name := range m.cases {
		t.Run(m.flaw+" is found by "+name, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			parts := []string{"TestSuiteOverMutant", group}
			for part := range strings.SplitSeq(name, "/") {
				parts = append(parts, strings.NewReplacer("(", `\(`, ")", `\)`, "[", `\[`, "]", `\]`, "{", `\{`, "}", `\}`, " ", "_").Replace(part))
			}
			pattern := "^" + strings.Join(parts, "$/^") + "$"
			command := exec.CommandContext(t.Context(), self, "-test.run", pattern, "-test.v", "-test.timeout", "60s", "--", kind+"="+m.flaw)
			var out bytes.Buffer
			command.Stdout, command.Stderr = &out, &out
			err = command.Run()
			text := out.String()
			failed := "--- FAIL: " + strings.ReplaceAll(strings.Join([]string{"TestSuiteOverMutant", group, name}, "/"), " ", "_")
			if err == nil || !strings.Contains(text, failed) {
				t.Errorf("nothing failed for a driver that %s; %v\n%s", m.flaw, err, tail(text))
			}
		})
	}
}

func tail(text string) string { return fmt.Sprintf("%.3000s", text[max(0, len(text)-3000):]) }

func TestWireFindsMutants(t *testing.T) {
	t.Parallel()
	for i, m := range []mutant{
		{"follows redirects", []string{"302 to a login page elsewhere", "307 to a login page elsewhere", "302 within the service"}},
		{"reads unbounded bodies", []string{"an answer without end/observe", "an error without end/observe"}},
		{"does not end with its context", []string{"the caller gives up while it waits/observe"}},
		{"never asks its context", []string{"a context that is over without a signal changes nothing more"}},
		{"puts the request into errors", []string{"the line is cut before the work"}},
		{"quotes the answer in errors", []string{"an error that repeats what was sent", "502 with a page"}},
		{"takes what is not JSON for JSON", []string{"200 with a login page/list", "the answer ends in its middle/list"}},
		{"ignores Retry-After", []string{"429 with a wait in seconds", "429 with a wait as a date", "503 with a wait"}},
		{"knows waits in seconds only", []string{"429 with a wait as a date"}},
		{"says Internal of every fault of the service", []string{"500 with a page"}},
		{"sends again what was refused", []string{"500 with a page/delete", "502 with a page/suspend", "503 with a page/create"}},
		{"takes 429 for Unavailable", []string{"429 without a wait"}},
		{"believes any 404", []string{"404 with a page", "404 of a server without that path", "404 in JSON of a gateway without that route", "404 without a body"}},
		{"puts any id into a path", []string{"an id that is no part of a path reaches no other box"}},
		{"observes by the list", []string{"a list that lags behind a create proves nothing"}},
		{"does not look whom an answer is about", []string{"an answer about another box is not believed", "200 with {}"}},
		{"takes an unknown state for suspended", []string{"a state that nobody knows/observe", "no state/observe"}},
		{"takes an unknown state for running", []string{"a state that nobody knows/observe", "a state that nobody knows/resume", "an empty state/observe a suspended box"}},
		{"takes an unknown state for gone", []string{"a state that nobody knows/observe", "a state that is null/observe"}},
		{"creates without a look or a key", []string{"the answer is lost after the work was done/create", "a look-up that lags behind a lost create makes no second box"}},
		{"relies on its look before a create", []string{"a look-up that lags behind a lost create makes no second box"}},
		{"believes the first answer", []string{"200 with a login page/delete", "200 with a login page/suspend"}},
		{"says that nothing was done after it was", []string{"401/delete", "401/suspend", "403/resume"}},
		{"takes every error of a delete for gone", []string{"500 with a page/delete", "429 without a wait/delete", "the line is cut before the work/delete", "401/delete"}},
		{"takes 401 of a delete for gone", []string{"401/delete", "403/delete"}},
		{"believes any time", []string{"times that are to come/observe"}},
		{"hands out an empty address", []string{"fields that are missing or null/endpoint"}},
		{"returns the pages that it got", []string{"a list of several pages is whole"}},
		{"takes a list that is not there for an empty one", []string{"200 with {}/list"}},
		{"reads the first page only", []string{"a list of several pages is whole"}},
		{"reads pages without end", []string{"a list whose pages repeat themselves ends"}},
	} {
		if i%race.Slowness == 0 { // that mutants are found is no matter of races
			find(t, "wire", "wire", m)
		}
	}
	for i, m := range []mutant{
		{"follows redirects", []string{"302 to a login page elsewhere/observe", "302 within the service/observe"}},
		{"believes any 404", []string{"404 with a page/observe"}},
		{"creates without a look or a key", []string{"the answer is lost after the work was done/create"}},
	} {
		if i%race.Slowness == 0 {
			find(t, "via", "wire", m)
		}
	}
}
