package secretscan

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// byByte undoes a layer of escapes a byte at a time, and says of each byte, and of
// the end, where it comes from.
func byByte(src []byte, place []int) (text []byte, from []int, changed bool) {
	for i := 0; i < len(src); {
		r, n := escape(src[i:])
		if src[i] != '\\' || n == 0 {
			text, from = append(text, src[i]), append(from, place[i])
			i++
			continue
		}
		changed = true
		was := len(text)
		text = utf8.AppendRune(text, r)
		for range len(text) - was {
			from = append(from, place[i])
		}
		i += n
	}
	return text, append(from, place[len(src)]), changed
}

// TestUndoingEscapesKeepsThePlaces has texts that are mostly escapes, of every
// kind and of none, and views that are used again.
func TestUndoingEscapesKeepsThePlaces(t *testing.T) {
	t.Parallel()
	views := make([]view, maxUndone)
	rapid.Check(t, func(t *rapid.T) {
		piece := []byte{}
		for _, p := range rapid.SliceOfN(rapid.SampledFrom([]string{
			`\`, `\\`, `\n`, `\"`, `\u00e9`, `\u20ac`, `\ud83d\ude00`, `\ud83d`, `\u00`, `\x41`, `\x4`, `\q`, "a", "key=", "é", "\xff", `u0041`, "n",
		}), 0, 40).Draw(t, "piece") {
			piece = append(piece, p...)
		}
		at, text := &view{text: piece}, piece
		place := make([]int, len(piece)+1)
		for i := range place {
			place[i] = i
		}
		for i := range views {
			want, from, changed := byByte(text, place)
			if at.undo(&views[i]) != changed {
				t.Fatalf("%q: changed is not %t", text, changed)
			}
			if !changed {
				return
			}
			at = &views[i]
			if !bytes.Equal(at.text, want) {
				t.Fatalf("%q is %q, want %q", text, at.text, want)
			}
			for start := range len(want) + 1 {
				for _, end := range []int{start, len(want)} {
					if a, b := at.span(start, end); a != from[start] || b != from[end] {
						t.Fatalf("layer %d of %q: %d to %d come from %d to %d, want %d to %d", i+1, piece, start, end, a, b, from[start], from[end])
					}
				}
			}
			text, place = want, from
		}
	})
}

func TestEachRunOfBase64IsSeen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := []byte{}
		for range rapid.IntRange(0, 12).Draw(t, "runs") {
			run := bytes.Repeat([]byte("aGVs"), 20)[:rapid.IntRange(0, 60).Draw(t, "length")]
			text = append(append(text, run...), rapid.SampledFrom([]string{"", " ", "=", "..", "\n\n\n"}).Draw(t, "between")...)
		}
		var want, have []string
		for i := 0; i < len(text); i++ {
			start := i
			for i < len(text) && base64Byte[text[i]] {
				i++
			}
			if i-start < minEncoded || !printable(decode(text[start:][:firstDecode])) {
				continue
			}
			if d := decode(text[start:i]); printable(d) {
				want = append(want, fmt.Sprint(start, i, string(d)))
			}
		}
		encoded(text, func(start, end int, d []byte) { have = append(have, fmt.Sprint(start, end, string(d))) })
		if !slices.Equal(want, have) {
			t.Fatalf("%q\nhas  %q\nseen %q", text, want, have)
		}
	})
}

// TestEachWordIsSeen has words that end in others, and texts that are almost words.
func TestEachWordIsSeen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfNDistinct(rapid.StringMatching(`[ab_-]{1,4}`), 1, 12, rapid.ID[string]).Draw(t, "words")
		text := []byte(rapid.StringMatching(`[abAB_\-c\x80]{0,60}`).Draw(t, "text"))
		var want, have []string
		for end := range len(text) + 1 {
			for n, word := range words {
				if bytes.HasSuffix(bytes.ToLower(text[:end]), []byte(word)) {
					want = append(want, fmt.Sprint(n, " ", end))
				}
			}
		}
		newKeywords(words).each(text, func(word uint16, end int) { have = append(have, fmt.Sprint(word, " ", end)) })
		slices.Sort(want)
		slices.Sort(have)
		if !slices.Equal(want, have) {
			t.Fatalf("%q in %q: %q, want %q", words, text, have, want)
		}
	})
}
