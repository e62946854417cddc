package arrows_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPins(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range checkPins(string(text)) {
		t.Error(p)
	}
}

// checkPins reads the text of a go.mod. A replacement or exclusion changes
// what is built as much as another version does, so it counts as one.
func checkPins(text string) (problems []string) {
	required := map[string]string{}
	var block string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case len(words) == 2 && words[1] == "(":
			block = words[0]
			continue
		case words[0] == ")":
			block = ""
			continue
		case block != "":
			words = append([]string{block}, words...)
		}
		switch {
		case words[0] == "require" && len(words) == 3:
			required[words[1]] = words[2]
		case (words[0] == "replace" || words[0] == "exclude") && len(words) > 1:
			for _, p := range pins {
				if words[1] == p.module {
					problems = append(problems, fmt.Sprintf("go.mod has %q: %s must stay %s, since %s", strings.Join(words, " "), p.module, p.version, p.why))
				}
			}
		}
	}
	for _, p := range pins {
		if required[p.module] != p.version {
			problems = append(problems, fmt.Sprintf("go.mod requires %s %q, want %s: %s", p.module, required[p.module], p.version, p.why))
		}
	}
	return problems
}
