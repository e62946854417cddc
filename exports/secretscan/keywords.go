package secretscan

import "math/bits"

// keywords finds all of many words at once, in ASCII letters of either case,
// in time that does not depend on how many they are (the automaton of Aho and
// Corasick, as a table).
//
// The table is looked up for every byte that is scanned, so it is small: a column
// for each byte that occurs in a word and one for all others, and the states in
// which a word ends come last, where one comparison tells them.
type keywords struct {
	class [256]uint8
	// next holds the states that follow, a row of columns for each. A state is
	// where its row begins.
	next []uint32
	// ending is the first state in which words end; ends are those words, by the
	// number of the state from there on.
	ending uint32
	ends   [][]uint16
	shift  int
	words  []string
}

// newKeywords takes words in lower case.
func newKeywords(words []string) *keywords {
	k := &keywords{words: words}
	next, ends := automaton(words)
	classes := k.classes(words)
	k.shift = bits.Len(uint(classes - 1))

	// Those without words first.
	row := make([]uint32, len(next))
	n := uint32(0)
	for _, with := range []bool{false, true} {
		k.ending = n << k.shift
		for s := range next {
			if (len(ends[s]) > 0) == with {
				row[s] = n << k.shift
				n++
			}
		}
	}
	k.next = make([]uint32, int(n)<<k.shift)
	k.ends = make([][]uint16, n-k.ending>>k.shift)
	for s := range next {
		for c := range 256 {
			// Of the bytes of one column all lead to the same state.
			k.next[row[s]|uint32(k.class[c])] = row[next[s][lower(byte(c))]]
		}
		if len(ends[s]) > 0 {
			k.ends[(row[s]-k.ending)>>k.shift] = ends[s]
		}
	}
	return k
}

// classes gives each byte of a word a column, and returns how many there are.
func (k *keywords) classes(words []string) int {
	n := 1
	for _, word := range words {
		for _, c := range []byte(word) {
			if k.class[c] == 0 {
				k.class[c] = uint8(n) // there are fewer than 230 that are not upper case
				n++
			}
		}
	}
	for c := 'A'; c <= 'Z'; c++ {
		k.class[c] = k.class[lower(byte(c))]
	}
	return n
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c - 'A' + 'a'
	}
	return c
}

// automaton returns, by state, which one follows after each byte, and which words
// end there. State 0 is the first.
func automaton(words []string) (next [][256]uint16, ends [][]uint16) {
	next, ends = [][256]uint16{{}}, [][]uint16{nil}
	for i, word := range words {
		at := uint16(0)
		for _, c := range []byte(word) {
			if next[at][c] == 0 {
				next = append(next, [256]uint16{})
				ends = append(ends, nil)
				next[at][c] = uint16(len(next) - 1) //nolint:gosec // the rule file makes some thousands
			}
			at = next[at][c]
		}
		ends[at] = append(ends[at], uint16(i))
	}
	// Breadth first: a state's fallback is shorter, so it is whole already.
	fallback := make([]uint16, len(next))
	queue := []uint16{}
	for c := range 256 {
		if to := next[0][c]; to != 0 {
			queue = append(queue, to)
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for c := range 256 {
			to, shorter := next[at][c], next[fallback[at]][c]
			if to == 0 {
				next[at][c] = shorter
				continue
			}
			fallback[to] = shorter
			ends[to] = append(ends[to], ends[shorter]...)
			queue = append(queue, to)
		}
	}
	return next, ends
}

// each calls fn with each word that ends before text[end].
func (k *keywords) each(text []byte, fn func(word uint16, end int)) {
	at, next := uint32(0), k.next
	for i, c := range text {
		at = next[at|uint32(k.class[c])]
		if at >= k.ending {
			for _, word := range k.ends[(at-k.ending)>>k.shift] {
				fn(word, i+1)
			}
		}
	}
}
