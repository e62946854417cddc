package repo

import (
	"strings"
	"testing"
)

// Whatever a parser is given, it answers or fails, and what it answers is whole.
func FuzzParsers(f *testing.F) {
	f.Add("# branch.oid x\x001 .M N... 100644 100644 100644 " + strings.Repeat("a", 40) + " " + strings.Repeat("b", 40) + " a b\x00? x\n\x00! y/\x00")
	f.Add("u UU N... 1 1 1 1 a b c path\x00")
	f.Add("H 100644 " + strings.Repeat("0", 40) + " 0\ta b\x00S 160000 " + strings.Repeat("f", 64) + " 0\tx\x00")
	f.Add(strings.Repeat("0", 40) + " " + strings.Repeat("1", 40) + " a <b> 1 +0000\tcommit: x\n")
	f.Add("2 R. N... 1 1 1 a b R100 new\x00old\x00")
	f.Fuzz(func(t *testing.T, text string) {
		err := parseStatus(strings.NewReader(text), func(entry Entry) error {
			if entry.Path == "" || strings.ContainsRune(entry.Path, 0) || !strings.ContainsRune("1u?!", rune(entry.Kind)) {
				t.Errorf("%q became %+v", text, entry)
			}
			return nil
		})
		if err == nil && text != "" && !strings.HasSuffix(text, "\x00") {
			t.Errorf("%q is cut off and was taken", text)
		}
		_ = parseIndex(strings.NewReader(text), func(entry IndexEntry) error {
			if entry.Path == "" || !isID(entry.ID) {
				t.Errorf("%q became %+v", text, entry)
			}
			return nil
		})
		_ = parseReflog(strings.NewReader(text), func(id string) {
			if !isID(id) || strings.Trim(id, "0") == "" {
				t.Errorf("%q named %q", text, id)
			}
		})
		if err := eachLine(strings.NewReader(text), func(string) error { return nil }); err == nil && text != "" && !strings.HasSuffix(text, "\n") {
			t.Errorf("%q is cut off and was taken", text)
		}
		if url := withoutUser("https://user:secret-word@host/" + text); strings.Contains(url, "secret-word@") {
			t.Errorf("%q keeps a password", url)
		}
	})
}
