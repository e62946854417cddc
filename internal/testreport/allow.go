package testreport

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strings"
)

// List is the skips that a run may have, each with the reason why.
type List []Entry

// Entry allows the skips of the tests that match both patterns, as path.Match
// has them: "*" stops at a slash, so "TestReal/*" is the subtests alone.
type Entry struct {
	Package, Test string
	Reason        string
}

// ReadList reads the list of allowed skips: one a line, package pattern, test
// pattern and reason with spaces between; "#" starts a comment line. An entry
// without a reason or with a bad pattern is an error that names the line.
func ReadList(in io.Reader) (List, error) {
	var list List
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		words := strings.Fields(text)
		if len(words) < 3 {
			return nil, fmt.Errorf("line %d: write package pattern, test pattern and the reason, not %q", n, text)
		}
		for _, pattern := range words[:2] {
			if _, err := path.Match(pattern, ""); err != nil {
				return nil, fmt.Errorf("line %d: pattern %q: %w", n, pattern, err)
			}
		}
		list = append(list, Entry{Package: words[0], Test: words[1], Reason: strings.Join(words[2:], " ")})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read list of allowed skips: %w", err)
	}
	return list, nil
}

// reason says why the skip is allowed; empty means that it isn't.
func (l List) reason(pkg, test string) string {
	for _, e := range l {
		// ReadList checked the patterns.
		inPackage, _ := path.Match(e.Package, pkg)
		isTest, _ := path.Match(e.Test, test)
		if inPackage && isTest {
			return e.Reason
		}
	}
	return ""
}
