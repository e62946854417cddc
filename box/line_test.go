package box_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

func TestOneLine(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		text string
		most int
		want string
	}{
		"plain text":                        {"no space left", 20, "no space left"},
		"nothing":                           {"", 20, ""},
		"nothing that is printed":           {" \x00\n\u200b\xff", 20, ""},
		"it fits":                           {"1234567890", 10, "1234567890"},
		"it is one too long":                {"12345678901", 10, "123456789…"},
		"characters count and not bytes":    {"äöü€漢字😀äöü", 10, "äöü€漢字😀äöü"},
		"it is not cut within a character":  {"漢字漢字漢字", 5, "漢字漢字…"},
		"what follows is not printed":       {"12345\x1b\n\u202e", 5, "12345"},
		"lines, tabs and other white space": {"a\r\nb\tc\u2028d\u2029e\u0085f\u00a0g", 50, "a b c d e f g"},
		"several stand as one":              {"  a  \n\t  b  ", 50, "a b"},
		"it is cut at a space":              {"1234 6789", 6, "1234…"},
		"a space before the last character": {"1234 6", 6, "1234 6"},
		"what drives a terminal":            {"\x1b[2J\x1b]0;title\x07red\x9b31m", 50, "[2J ]0;title red 31m"},
		"DEL":                               {"a\x7fb", 50, "a b"},
		"what turns the direction of text":  {"user\u202egnp.exe\u2066a\u2069\u200f", 50, "user gnp.exe a"},
		"what hides":                        {"pass\u200bword\ufeff\u00ad", 50, "pass word"},
		"what hides, and counts as print":   {"a\u3164b\ufe0f\U000e0141\u2800c", 50, "a b c"},
		"what is not UTF-8":                 {"caf\xe9 \xff\xfe b\xe6\xbc", 50, "caf b"},
		"what stands for it":                {"caf\ufffd!", 50, "caf !"},
		"no room":                           {"ab", 1, "…"},
	} {
		if got := box.OneLine(row.text, row.most); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
	if got := box.OneLine(strings.Repeat("\xff", 1<<20)+"x", 5); got != "x" {
		t.Errorf("%q", got)
	}
}

// Whatever it is given, it is one line that is no longer than asked for, and the same
// again.
func TestOneLineHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		most := rapid.IntRange(1, 40).Draw(t, "most")
		got := box.OneLine(text, most)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > most || strings.TrimSpace(got) != got || strings.Contains(got, "  ") {
			t.Fatalf("%q", got)
		}
		if strings.ContainsFunc(got, func(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }) {
			t.Fatalf("%q holds what is not printed", got)
		}
		if again := box.OneLine(got, most); again != got {
			t.Fatalf("%q becomes %q", got, again)
		}
	})
}
