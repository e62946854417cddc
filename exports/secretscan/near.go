package secretscan

import "slices"

// near returns the part of text in which a match with the keyword at start to end
// can be, and false when there can be none. It is cheap; too large a part is a
// safe answer.
func (s *shape) near(text []byte, start, end int) (in window, ok bool) {
	in = window{max(0, end-s.lead-1), min(len(text), end+s.reach+1)}
	low, high := start, end
	if s.assigns {
		if low = s.assigned(text, end); low < 0 {
			return in, false
		}
		high = low
	} else {
		for _, c := range text[start:end] {
			if !s.of[c] {
				return in, false
			}
		}
		for low > in.start && s.of[text[low-1]] {
			low--
		}
		in.start = max(in.start, low-s.around)
	}
	for high < in.end && s.of[text[high]] {
		high++
	}
	in.end = min(in.end, high+s.around)
	if s.dull != nil && !slices.ContainsFunc(text[low:high], func(c byte) bool { return !s.dull[c] }) {
		return in, false
	}
	return in, high-low >= s.run
}

// assigned returns where what is assigned to a name begins, or -1.
func (s *shape) assigned(text []byte, end int) int {
	sign := signAt(text[end:])
	if sign < 0 {
		return -1
	}
	run := 0
	from := end + sign + 1
	for i, c := range text[from:] {
		if !s.of[c] {
			run = 0
			if i >= longestGap {
				return -1
			}
			continue
		}
		if run++; run >= s.run {
			return from + i - run + 1
		}
		if i-run+1 >= longestGap {
			return -1
		}
	}
	return -1
}

// longestGap is how much can stand between the sign of an assignment and the
// value: the rest of the sign, blanks and quotes.
const longestGap = 12

// signAt returns where in text, which follows a keyword, the sign of an
// assignment is, or -1: names, blanks and quotes may stand before it. It looks
// further than the expressions do, since a keyword can be the first part of the
// name that one asks for.
func signAt(text []byte) int {
	for i, c := range text[:min(len(text), 64)] {
		switch {
		case c == '=' || c == '>' || c == ':' || c == '|' || c == '?' || c == ',':
			return i
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			c == '_', c == '.', c == '-', c == '\'', c == '"', c == ' ', c >= '\t' && c <= '\r':
		default:
			return -1
		}
	}
	return -1
}
