//go:build !mutation

package box_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// Tests of the properties themselves. They say nothing of the rules, so
// scripts/mutation.sh, which runs the tests hundreds of times, leaves them out.

// TestEveryKindOfStepOccurs keeps the random lives from missing what matters:
// a property that never sees a deletion proves nothing about deletions.
func TestEveryKindOfStepOccurs(t *testing.T) {
	t.Parallel()
	lives := rapid.Custom(func(rt *rapid.T) *trial { return live(rt, ours()) })
	count := tally{kinds: map[box.StepKind]int{}}
	for seed := range 500 {
		count.add(lives.Example(seed + 1))
	}
	count.check(t)
}

// TestEachPropertyFindsItsMutants proves that the properties can fail: under
// each named fault in the rules there is a life or a set of facts that breaks the
// property, and the search finds it. The cases are the same in every run.
func TestEachPropertyFindsItsMutants(t *testing.T) {
	t.Parallel()
	const most = 4000
	for _, p := range properties() {
		if len(p.mutants) == 0 {
			t.Errorf("%q has no mutant, so nobody knows whether it can fail", p.name)
		}
		for _, m := range p.mutants {
			t.Run(p.name+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				cases := rapid.Custom(func(rt *rapid.T) string { return p.breaks(rt, m.rules()) })
				for seed := range most {
					if why := cases.Example(seed + 1); why != "" {
						t.Logf("found at case %d: %s", seed+1, why)
						return
					}
				}
				t.Errorf("%d cases did not find it", most)
			})
		}
	}
}
