package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	passed  = `{"Action":"pass","Package":"m","Test":"TestA"}` + "\n" + `{"Action":"pass","Package":"m"}` + "\n"
	skipped = `{"Action":"output","Package":"m","Test":"TestB","Output":"    b_test.go:1: no\n"}` + "\n" +
		`{"Action":"skip","Package":"m","Test":"TestB"}` + "\n" + passed
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	for name, text := range map[string]string{good: "m TestB because\n", bad: "m TestB\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name, stdin string
		args        []string
		code        int
		stderr      string
	}{
		{"passed", passed, nil, 0, ""},
		{"skipped and not allowed", skipped, nil, 1, ""},
		{"skipped and allowed", skipped, []string{"-allow", good}, 0, ""},
		{"a list that can't be read", passed, []string{"-allow", bad}, 2, "line 1: write package pattern"},
		{"a list that is not there", passed, []string{"-allow", bad + "x"}, 2, "open list of allowed skips"},
		{"an unknown flag", passed, []string{"-quiet"}, 2, "-quiet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr strings.Builder
			if code := run(tc.args, strings.NewReader(tc.stdin), &stdout, &stderr); code != tc.code {
				t.Errorf("exit code %d, want %d\n%s%s", code, tc.code, &stdout, &stderr)
			}
			if !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("stderr %q without %q", &stderr, tc.stderr)
			}
		})
	}
}
