package secretscan

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// lineAround bounds the line that an allowlist is shown.
const lineAround = 512

// hit is a find in one piece.
type hit struct {
	rule       int
	start, end int // of the value, in the bytes as they are
	// from and to are what is masked for it: the value, and what other rules take
	// for one that overlaps.
	from, to int
	value    []byte
	promised bool
	cut      bool // the value may go on behind the piece
}

// work is the memory of one scan, used again for each piece.
type work struct {
	views [maxUndone]view
	near  [][]window // by rule
	tried []int      // the rules that have any
	hits  []hit
}

type window struct{ start, end int }

// piece looks at one piece in every view and returns what was found, by place,
// with the more telling one of two that overlap.
func (s *Scanner) piece(w *work, name string, json bool, text []byte, known *values) []hit {
	w.hits = w.hits[:0]
	at := &view{text: text}
	s.look(w, name, json, at, known)
	for i := range w.views {
		if !at.undo(&w.views[i]) {
			break
		}
		at = &w.views[i]
		s.look(w, name, false, at, known)
	}
	encoded(at.text, func(start, end int, decoded []byte) {
		from, to := at.span(start, end)
		first := len(w.hits)
		s.look(w, name, false, &view{text: decoded}, known)
		for i := range w.hits[first:] {
			h := &w.hits[first+i]
			h.start, h.end = from, to
		}
	})
	for i := range w.hits {
		h := &w.hits[i]
		h.from, h.to, h.cut = h.start, h.end, h.end == len(text)
	}
	w.hits = settle(w.hits, s.rules)
	return w.hits
}

// settle leaves one of finds that overlap, by place: what was promised to be
// masked before a named kind, before the generic one, then the longer. The mask
// of the one that stays covers all of them.
func settle(hits []hit, rules []rule) []hit {
	rank := func(h hit) int {
		switch {
		case h.promised:
			return 0
		case h.rule < 0 || rules[h.rule].id == ruleGeneric:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.start-a.end, b.start-b.end), cmp.Compare(a.start, b.start), cmp.Compare(a.rule, b.rule))
	})
	var out []hit // by place, without overlap
	for _, h := range hits {
		i, _ := slices.BinarySearchFunc(out, h.start, func(o hit, start int) int { return cmp.Compare(o.end, start+1) })
		if i == len(out) || out[i].start >= h.end {
			out = slices.Insert(out, i, h)
			continue
		}
		for ; i < len(out) && out[i].start < h.end; i++ {
			o := &out[i]
			o.from, o.to, o.cut = min(o.from, h.from), max(o.to, h.to), o.cut || h.cut
		}
	}
	return out
}

// look runs the rules over one view.
func (s *Scanner) look(w *work, name string, json bool, v *view, known *values) {
	if w.near == nil {
		w.near = make([][]window, len(s.rules))
	}
	w.tried = w.tried[:0]
	s.words.each(v.text, func(word uint16, end int) {
		for _, n := range s.users[word] {
			r := &s.rules[n]
			if r.promised && (!json || !quoted(v.text, end-len(s.words.words[word]), end, r.id == rulePromised)) || !r.isFor(name) {
				continue
			}
			around := window{0, len(v.text)}
			if r.shape != nil {
				var ok bool
				if around, ok = r.shape.near(v.text, end-len(s.words.words[word]), end); !ok {
					continue
				}
			}
			have := w.near[n]
			switch last := len(have) - 1; {
			case last < 0:
				w.tried = append(w.tried, n)
				w.near[n] = append(have, around)
			case around.start <= have[last].end:
				have[last] = window{min(have[last].start, around.start), max(have[last].end, around.end)}
			default:
				w.near[n] = append(have, around)
			}
		}
	})
	for _, n := range w.tried {
		for _, around := range w.near[n] {
			s.match(w, name, n, v, around)
		}
		w.near[n] = w.near[n][:0]
	}
	if known != nil {
		known.each(v.text, func(start, end int) {
			from, to := v.span(start, end)
			w.hits = append(w.hits, hit{rule: -1, start: from, end: to, value: bytes.Clone(v.text[start:end])})
		})
	}
}

// quoted reports whether a quote stands before text[start:end], and also behind
// it if both is set.
func quoted(text []byte, start, end int, both bool) bool {
	return start > 0 && text[start-1] == '"' && (!both || end < len(text) && text[end] == '"')
}

// match applies one rule to a part of a view.
func (s *Scanner) match(w *work, name string, n int, v *view, in window) {
	r := &s.rules[n]
	for {
		found := r.re.FindAllSubmatchIndex(v.text[in.start:in.end], -1)
		// What ends where we stopped looking may go on behind it.
		if last := len(found) - 1; last >= 0 && in.end < len(v.text) && found[last][1] == in.end-in.start {
			in.end = min(len(v.text), in.end+max(2*(in.end-in.start), openReach))
			continue
		}
		for _, m := range found {
			s.judge(w, name, n, v, in.start, m)
		}
		return
	}
}

// judge decides whether a match of a rule is a find.
func (s *Scanner) judge(w *work, name string, n int, v *view, offset int, m []int) {
	r := &s.rules[n]
	start, end := m[0], m[1]
	if r.group > 0 {
		start, end = m[2*r.group], m[2*r.group+1]
	} else {
		for g := 2; g < len(m); g += 2 {
			if m[g] >= 0 && m[g+1] > m[g] {
				start, end = m[g], m[g+1]
				break
			}
		}
	}
	if start < 0 {
		return
	}
	start, end = start+offset, end+offset
	match := bytes.Trim(v.text[m[0]+offset:m[1]+offset], "\n")
	value := v.text[start:end]
	if r.promised {
		if len(bytes.Trim(value, "*")) == 0 {
			return // masked, as it should be
		}
	} else {
		if r.entropy > 0 && entropyOf(value) <= r.entropy {
			return
		}
		line := lineOf(v.text, m[0]+offset, m[1]+offset)
		if s.global.allows(name, value, match, line) || slices.ContainsFunc(r.allow, func(a allowlist) bool { return a.allows(name, value, match, line) }) {
			return
		}
	}
	from, to := v.span(start, end)
	w.hits = append(w.hits, hit{
		rule: n, start: from, end: to, value: bytes.Clone(value), promised: r.promised,
	})
}

func lineOf(text []byte, start, end int) []byte {
	start = max(start, 0)
	low := max(0, start-lineAround)
	if i := bytes.LastIndexByte(text[low:start], '\n'); i >= 0 {
		low += i + 1
	}
	high := min(len(text), end+lineAround)
	if i := bytes.IndexByte(text[end:high], '\n'); i >= 0 {
		high = end + i
	}
	return text[low:high]
}

// isJSON reports whether an agent-server takes a file for JSON, by its name.
func isJSON(name string) bool {
	return strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".jsonl")
}
