package box

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// OneLine makes what somebody else wrote fit for a history, an error or a page: one
// line of at most so many characters, the last one "…" where something was cut. What
// is not printed stands there as a space, several as one: controls, newlines, what
// turns the direction of text or hides it, and what is not UTF-8.
func OneLine(text string, most int) string {
	var out strings.Builder
	gap, count, last := false, 0, 0 // last is where the last character that leaves room for "…" ends
	for _, c := range text {
		if c == ' ' || c == utf8.RuneError || !unicode.IsPrint(c) || blank(c) {
			gap = out.Len() > 0
			continue
		}
		need := 1
		if gap {
			need = 2
		}
		if count+need > most {
			return strings.TrimRight(out.String()[:last], " ") + "…"
		}
		if gap {
			out.WriteByte(' ')
		}
		out.WriteRune(c)
		gap, count = false, count+need
		if count < most {
			last = out.Len()
		}
	}
	return out.String()
}

// blank reports whether a character that counts as printed shows nothing: fillers,
// which are letters, selectors of how the one before looks, of which any number may
// follow and hold a text, and the empty pattern of Braille.
func blank(c rune) bool {
	return c == '\u2800' || unicode.In(c, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
