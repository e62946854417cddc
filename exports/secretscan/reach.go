package secretscan

import (
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

const (
	// openReach is what counts for a repetition without an end. A match that comes
	// to the end of what was looked at is looked at again with more.
	openReach = 2 << 10
	// keyReach is that of a private key, whose end must be seen to find it.
	keyReach = 15 << 10
	// maxExact bounds the sets of texts that an expression is followed by.
	maxExact = 256
)

// shape is what is known of every match of an expression that holds a keyword.
type shape struct {
	// lead and reach are how many bytes before and behind the end of the keyword a
	// match has at most.
	lead, reach int
	// run and of: the keyword, or what is assigned to the name that it is of,
	// stands in so many bytes at least, all of them in of.
	run int
	of  [256]bool
	// around is how much of a match can be outside of that run.
	around int
	// dull, if set, are bytes of which no value consists alone.
	dull *[256]bool
	// assigns says that the keyword is of a name, with one of the signs of an
	// assignment behind it, and the run behind that.
	assigns bool
}

// shapeOf works out the shape, or returns nil when not each match holds a
// keyword: the rule is then tried on everything that is near one.
func shapeOf(expression string, keywords []string) (*shape, error) {
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if !holds(re, keywords) {
		return nil, nil //nolint:nilnil // no shape
	}
	s := &shape{lead: min(lead(re, keywords), keyReach), reach: min(longest(re), keyReach)}
	if slices.Contains(keywords, "-----begin") {
		s.reach = keyReach
	}
	var core *syntax.Regexp
	if s.assigns = assigns(expression, keywords); s.assigns {
		core = value(re)
		s.around = longestGap
	} else {
		core = holder(re, keywords)
		s.around = longest(re) - longest(core) + 2
	}
	s.run = shortest(core)
	bytesOf(core, &s.of)
	return s, nil
}

// only returns the bytes of which a text consists that the expression matches, if
// it asks for nothing else.
func only(expression string) *[256]bool {
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil || re.Op != syntax.OpConcat || len(re.Sub) != 3 || re.Sub[0].Op != syntax.OpBeginText ||
		re.Sub[1].Op != syntax.OpPlus || re.Sub[1].Sub[0].Op != syntax.OpCharClass || re.Sub[2].Op != syntax.OpEndText {
		return nil
	}
	of := new([256]bool)
	bytesOf(re.Sub[1], of)
	return of
}

// value returns the last group, which is what is assigned.
func value(re *syntax.Regexp) *syntax.Regexp {
	last := re
	var visit func(*syntax.Regexp)
	visit = func(re *syntax.Regexp) {
		if re.Op == syntax.OpCapture {
			last = re
		}
		for _, sub := range re.Sub {
			visit(sub)
		}
	}
	visit(re)
	return last
}

// holder returns the smallest group that surely holds a keyword, or re: what is
// behind a value, to tell where it ends, is no part of that.
func holder(re *syntax.Regexp, keywords []string) *syntax.Regexp {
	if re.Op == syntax.OpConcat || re.Op == syntax.OpCapture {
		for _, sub := range re.Sub {
			if sub.Op == syntax.OpCapture && holds(sub, keywords) {
				return holder(sub.Sub[0], keywords)
			}
		}
	}
	return re
}

// lead returns how many bytes a match has at most up to the end of the keyword.
func lead(re *syntax.Regexp, keywords []string) (n int) {
	switch re.Op { //nolint:exhaustive // the keyword can be at the end of the others
	case syntax.OpCapture:
		return lead(re.Sub[0], keywords)
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			n = max(n, lead(sub, keywords))
		}
		return n
	case syntax.OpConcat:
		for i, sub := range re.Sub {
			if holds(sub, keywords) {
				return n + lead(sub, keywords)
			}
			n += longest(sub)
			if i > 0 && holds(&syntax.Regexp{Op: syntax.OpConcat, Sub: re.Sub[:i+1]}, keywords) {
				return n
			}
		}
	}
	return longest(re)
}

// shortest returns how many bytes a match has at least.
func shortest(re *syntax.Regexp) (n int) {
	switch re.Op { //nolint:exhaustive // the others can be empty
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1
	case syntax.OpCapture, syntax.OpPlus:
		return shortest(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min * shortest(re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			n += shortest(sub)
		}
	case syntax.OpAlternate:
		n = shortest(re.Sub[0])
		for _, sub := range re.Sub[1:] {
			n = min(n, shortest(sub))
		}
	}
	return n
}

// bytesOf adds every byte that a match can have.
func bytesOf(re *syntax.Regexp, of *[256]bool) {
	add := func(low, high rune) {
		for r := low; r <= high && r < 0x80; r++ {
			of[r] = true
		}
		if high >= 0x80 {
			for c := 0x80; c < 0x100; c++ {
				of[c] = true
			}
		}
	}
	switch re.Op { //nolint:exhaustive // the others have none of their own
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			add(r, r)
			if re.Flags&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					add(f, f)
				}
			}
		}
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			add(re.Rune[i], re.Rune[i+1])
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		add(0, unicode.MaxRune)
	}
	for _, sub := range re.Sub {
		bytesOf(sub, of)
	}
}

// longest returns how many bytes a match is long at most.
func longest(re *syntax.Regexp) (n int) {
	switch re.Op {
	case syntax.OpLiteral:
		return len(string(re.Rune))
	case syntax.OpCharClass:
		if n := len(re.Rune); n > 0 && re.Rune[n-1] > kelvin {
			return 4
		}
		return 1
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 4
	case syntax.OpCapture, syntax.OpQuest:
		return longest(re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			n += longest(sub)
		}
		return n
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			n = max(n, longest(sub))
		}
		return n
	case syntax.OpStar, syntax.OpPlus:
		return openReach + longest(re.Sub[0])
	case syntax.OpRepeat:
		if re.Max < 0 {
			return openReach + longest(re.Sub[0])*re.Min
		}
		return longest(re.Sub[0]) * re.Max
	case syntax.OpNoMatch, syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText,
		syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
	}
	return 0
}

// kelvin is the sign that is a K where case does not count. It is the last of a
// class of ASCII letters then, and counted like one: what is shorter than it
// seems is looked at again with more.
const kelvin = '\u212a'

// holds reports whether every match surely holds one of the keywords. "No" is
// a safe answer.
func holds(re *syntax.Regexp, keywords []string) bool {
	return holdsBehind([]string{""}, re, keywords)
}

// holdsBehind is holds for what stands behind one of some texts: parsing takes out
// what alternatives begin with, so that a keyword may begin there.
func holdsBehind(run []string, re *syntax.Regexp, keywords []string) bool {
	if together := product(run, exact(re)); together != nil {
		return allHold(together, keywords)
	}
	switch re.Op { //nolint:exhaustive // of the others nothing is sure
	case syntax.OpCapture, syntax.OpPlus:
		return holdsBehind(run, re.Sub[0], keywords)
	case syntax.OpRepeat:
		return re.Min > 0 && holdsBehind(run, re.Sub[0], keywords)
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(sub *syntax.Regexp) bool { return !holdsBehind(run, sub, keywords) })
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			texts := exact(sub)
			together := product(run, texts)
			switch {
			case together != nil:
				run = together // what the last parts can be together
			case texts != nil:
				run = texts
			case holdsBehind(run, sub, keywords):
				return true
			default:
				run = []string{""}
			}
			if allHold(run, keywords) {
				return true
			}
		}
	}
	return false
}

func allHold(texts, keywords []string) bool {
	for _, text := range texts {
		if !slices.ContainsFunc(keywords, func(k string) bool { return strings.Contains(text, k) }) {
			return false
		}
	}
	return len(texts) > 0
}

// exact returns every text that re matches, in lower case, or nil when they
// are too many.
func exact(re *syntax.Regexp) []string {
	switch re.Op { //nolint:exhaustive // the others match too many
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return []string{""}
	case syntax.OpLiteral:
		return []string{strings.ToLower(string(re.Rune))}
	case syntax.OpCharClass:
		var texts []string
		for i := 0; i < len(re.Rune); i += 2 {
			if re.Rune[i+1]-re.Rune[i] > 32 || len(texts) > 64 {
				return nil
			}
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				texts = append(texts, strings.ToLower(string(r)))
			}
		}
		return texts
	case syntax.OpCapture:
		return exact(re.Sub[0])
	case syntax.OpQuest:
		if texts := exact(re.Sub[0]); texts != nil {
			return append([]string{""}, texts...)
		}
	case syntax.OpConcat:
		texts := []string{""}
		for _, sub := range re.Sub {
			if texts = product(texts, exact(sub)); texts == nil {
				return nil
			}
		}
		return texts
	case syntax.OpAlternate:
		var texts []string
		for _, sub := range re.Sub {
			more := exact(sub)
			if more == nil || len(texts)+len(more) > maxExact {
				return nil
			}
			texts = append(texts, more...)
		}
		return texts
	}
	return nil
}

func product(left, right []string) []string {
	if right == nil || len(left)*len(right) > maxExact {
		return nil
	}
	out := make([]string, 0, len(left)*len(right))
	for _, a := range left {
		for _, b := range right {
			out = append(out, a+b)
		}
	}
	return out
}

// assignment is what rules of gitleaks that go by a name have behind it.
const assignment = `(?:[ \t\w.-]{0,20})[\s'"]{0,3}`

// assigns reports whether each match has a keyword in its name, and one of the
// signs of an assignment close behind it.
func assigns(expression string, keywords []string) bool {
	before, rest, found := strings.Cut(expression, assignment)
	if !found || !strings.HasPrefix(strings.TrimPrefix(rest, ")"), `(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)`) {
		return false
	}
	whole, err := syntax.Parse(expression, syntax.Perl)
	if err != nil || whole.Op != syntax.OpConcat { // the other one of two may be no assignment
		return false
	}
	_, name, found := cutLast(before, `{0,50}?`)
	if !found {
		return false
	}
	parsed, err := syntax.Parse(name, syntax.Perl)
	return err == nil && holds(parsed, keywords)
}

func cutLast(text, sep string) (before, after string, found bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}
