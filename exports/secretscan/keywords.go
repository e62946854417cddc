package secretscan

// keywords finds all of many words at once, in ASCII letters of either case,
// in time that does not depend on how many they are (the automaton of Aho and
// Corasick, as a table).
type keywords struct {
	next [][256]uint16
	// ends holds, by state, the words that end there.
	ends  [][]uint16
	words []string
}

// newKeywords takes words in lower case.
func newKeywords(words []string) *keywords {
	k := &keywords{next: make([][256]uint16, 1), ends: make([][]uint16, 1), words: words}
	for i, word := range words {
		at := uint16(0)
		for _, c := range []byte(word) {
			if k.next[at][c] == 0 {
				k.next = append(k.next, [256]uint16{})
				k.ends = append(k.ends, nil)
				k.next[at][c] = uint16(len(k.next) - 1) //nolint:gosec // the rule file makes some thousands
			}
			at = k.next[at][c]
		}
		k.ends[at] = append(k.ends[at], uint16(i))
	}
	// Breadth first: a state's fallback is shorter, so it is whole already.
	fallback := make([]uint16, len(k.next))
	queue := []uint16{}
	for c := range 256 {
		if to := k.next[0][c]; to != 0 {
			queue = append(queue, to)
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for c := range 256 {
			to, shorter := k.next[at][c], k.next[fallback[at]][c]
			if to == 0 {
				k.next[at][c] = shorter
				continue
			}
			fallback[to] = shorter
			k.ends[to] = append(k.ends[to], k.ends[shorter]...)
			queue = append(queue, to)
		}
	}
	for s := range k.next {
		for c := 'A'; c <= 'Z'; c++ {
			k.next[s][c] = k.next[s][c-'A'+'a']
		}
	}
	return k
}

// each calls fn with each word that ends before text[end].
func (k *keywords) each(text []byte, fn func(word uint16, end int)) {
	at := uint16(0)
	for i, c := range text {
		at = k.next[at][c]
		if at != 0 && k.ends[at] != nil {
			for _, word := range k.ends[at] {
				fn(word, i+1)
			}
		}
	}
}
