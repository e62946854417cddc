package box_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// The properties, each with the mutants of the rules that it must find. A
// property looks at random lives, at random facts, or at both. "go test" tries
// a hundred of each; "-rapid.checks=10000", as in .ci/run, that many.

// mutant is a fault that somebody could build into the rules.
type mutant struct {
	name  string
	rules func() rules
}

type property struct {
	name string
	// life is set when random lives are looked at, facts when random facts are,
	// and other when the property draws what it needs.
	life    watcher
	facts   func(t *rapid.T, r rules, f *box.Facts, now time.Time) string
	other   func(t *rapid.T, r rules) string
	mutants []mutant
}

func (p property) looksAtLives() bool {
	return p.life.turn != nil || p.life.handled != nil || p.life.end != nil
}

// breaks looks for one case that breaks the property under the rules.
func (p property) breaks(t *rapid.T, r rules) string {
	if p.looksAtLives() {
		if x := live(t, r, p.life); x.broken != "" {
			return x.broken
		}
	}
	if p.facts != nil {
		f, now := anyFacts(t)
		r.advance(f, now)
		if why := p.facts(t, r, f, now); why != "" {
			return why
		}
	}
	if p.other != nil {
		return p.other(t, r)
	}
	return ""
}

// tally counts in how many cases each kind of step occurred.
type tally struct {
	cases int
	kinds map[box.StepKind]int
}

func (c *tally) add(x *trial) {
	c.cases++
	for kind := range x.kinds {
		c.kinds[kind]++
	}
}

// check prints the counts and, where there are enough cases to say so, fails on
// a kind that occurs in less than one of a hundred.
func (c *tally) check(t *testing.T) {
	t.Helper()
	var lines []string
	for _, kind := range kinds() {
		share := 100 * float64(c.kinds[kind]) / float64(max(c.cases, 1))
		lines = append(lines, fmt.Sprintf("%-13s %5.1f %%", kind, share))
		if c.cases >= 500 && share < 1 {
			t.Errorf("%s occurs in %.2f %% of %d cases, the least is 1 %%", kind, share, c.cases)
		}
	}
	t.Logf("steps, in %% of %d lives:\n%s", c.cases, strings.Join(lines, "\n"))
}

// TestPropertiesOfAnyLife watches the same random lives with all properties.
func TestPropertiesOfAnyLife(t *testing.T) {
	t.Parallel()
	var watch []watcher
	for _, p := range properties() {
		watch = append(watch, named(p))
	}
	count := tally{kinds: map[box.StepKind]int{}}
	rapid.Check(t, func(rt *rapid.T) {
		x := live(rt, ours(), watch...)
		if x.broken != "" {
			rt.Fatal(x.broken)
		}
		count.add(x)
	})
	count.check(t)
}

// named puts the name of a property before what it says.
func named(p property) watcher {
	say := func(why string) string {
		if why == "" {
			return ""
		}
		return p.name + ": " + why
	}
	var out watcher
	if turn := p.life.turn; turn != nil {
		out.turn = func(x *trial, step box.Step) string { return say(turn(x, step)) }
	}
	if handled := p.life.handled; handled != nil {
		out.handled = func(x *trial, event string, before *box.Facts) string { return say(handled(x, event, before)) }
	}
	if end := p.life.end; end != nil {
		out.end = func(x *trial, step box.Step) string { return say(end(x, step)) }
	}
	return out
}

// TestPropertiesOfAnyFacts looks at facts that no life need lead to.
func TestPropertiesOfAnyFacts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := ours()
		f, now := anyFacts(rt)
		r.advance(f, now)
		for _, p := range properties() {
			if p.facts != nil {
				if why := p.facts(rt, r, f, now); why != "" {
					rt.Fatalf("%s: in %s: %s", p.name, f.State, why)
				}
			}
			if p.other != nil {
				if why := p.other(rt, r); why != "" {
					rt.Fatalf("%s: %s", p.name, why)
				}
			}
		}
	})
}
