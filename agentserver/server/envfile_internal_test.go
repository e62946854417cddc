package server

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// Whatever is read is what was written, and what was cut off is refused.
func FuzzParseEnvironment(f *testing.F) {
	f.Add("A=1\x00B=two\nlines\x00")
	f.Add("A=1\x00B=2")
	f.Add("=\x00")
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := parseEnvironment(raw)
		if err != nil {
			if got != nil {
				t.Errorf("an error and %d entries", len(got))
			}
			return
		}
		var again strings.Builder
		for _, name := range slices.Sorted(maps.Keys(got)) {
			again.WriteString(name + "=" + got[name] + "\x00")
		}
		second, err := parseEnvironment(again.String())
		if err != nil || !maps.Equal(got, second) {
			t.Errorf("%q reads as %q: %v", raw, again.String(), err)
		}
	})
}
