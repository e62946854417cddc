package secretscan

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openhands/boxkeeper/internal/race"
)

// plain is the scanner without its shortcuts: every rule with a keyword in a
// piece is tried on all of it.
func plain(t testing.TB) (fast, slow *Scanner) {
	t.Helper()
	fast, err := New()
	if err != nil {
		t.Fatal(err)
	}
	again := *fast
	again.rules = slices.Clone(fast.rules)
	for i := range again.rules {
		again.rules[i].shape = nil
	}
	return fast, &again
}

// same holds the scanner to what each expression finds by itself.
func same(t testing.TB, fast, slow *Scanner, name string, text []byte) int {
	t.Helper()
	a, b := fast.piece(&work{}, name, isJSON(name), text, nil), slow.piece(&work{}, name, isJSON(name), text, nil)
	if !slices.EqualFunc(a, b, func(x, y hit) bool { return x.rule == y.rule && x.start == y.start && x.end == y.end }) {
		at := func(s *Scanner, hits []hit) (out []string) {
			for _, h := range hits {
				out = append(out, s.rules[h.rule].id+" "+string(text[h.start:h.end]))
			}
			return out
		}
		t.Fatalf("%s: the neighbourhoods of keywords show\n%q\nand all of it\n%q", name, at(fast, a), at(slow, b))
	}
	return len(a)
}

// TestNeighbourhoodsHideNothing looks at the files of this repository, with
// everything in them that looks like a keyword, both ways.
func TestNeighbourhoodsHideNothing(t *testing.T) {
	t.Parallel()
	fast, slow := plain(t)
	finds, files := 0, 0
	for _, pattern := range []string{"detect.go", "*.toml", "../../docs/co*.md", "../../go.mod", "../../internal/config/s*.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			finds += same(t, fast, slow, name, text[:min(len(text), 6<<10)])
			files++
		}
	}
	t.Logf("%d files, %d finds, the same both ways", files, finds)
}

// TestRandomTextsShowTheSameBothWays makes texts of keywords, signs and runs of
// letters, where expressions begin to match and mostly fail.
func TestRandomTextsShowTheSameBothWays(t *testing.T) {
	t.Parallel()
	fast, slow := plain(t)
	var words []string
	for _, r := range fast.rules {
		words = append(words, r.keywords...)
	}
	r := rand.New(rand.NewPCG(1, 1))
	finds, texts := 0, 8
	if race.Enabled {
		texts = 3
	}
	for range texts {
		var b bytes.Buffer
		for b.Len() < 2<<10 {
			word := words[r.IntN(len(words))]
			if r.IntN(2) == 0 {
				word = strings.ToUpper(word)
			}
			b.WriteString(word)
			for range r.IntN(4) {
				b.WriteString([]string{"=", ": ", "_", " ", "\"", "'", ".", "-", "\n", "\\n", `\"`, "||", "=>", "(", "x"}[r.IntN(15)])
			}
			n := []int{0, 3, 16, 20, 32, 36, 40, 64}[r.IntN(8)]
			for range n {
				b.WriteByte("abcdefABCDEF0123456789ghjkmnpQRSTUVWXyz"[r.IntN(39-16*r.IntN(2))])
			}
			b.WriteString([]string{"\n", " ", "\"", "'", ";", ","}[r.IntN(6)])
		}
		finds += same(t, fast, slow, "x.yaml", b.Bytes())
	}
	if finds < texts {
		t.Fatalf("only %d finds: the texts prove nothing", finds)
	}
	t.Logf("%d finds, the same both ways", finds)
}

// TestReach shows which rules are tried near their keywords only.
func TestReach(t *testing.T) {
	t.Parallel()
	fast, _ := plain(t)
	var whole []string
	assign := 0
	for _, r := range fast.rules {
		switch {
		case r.re == nil:
		case r.shape == nil:
			whole = append(whole, r.id)
		case r.shape.assigns:
			assign++
			if r.shape.run < 5 {
				t.Errorf("rule %s asks for a value of %d bytes only", r.id, r.shape.run)
			}
		}
	}
	t.Logf("%d rules; %d are tried only where something is assigned, %d on all of a piece: %v", len(fast.rules), assign, len(whole), whole)
	if len(fast.rules) != 225 || assign < 90 || len(whole) > 20 {
		t.Error("the rules are not what they were; look at what that costs")
	}
}

// TestKeywordsThatAlternativesShare has rules whose alternatives begin alike:
// parsing takes that out, and the keyword with it.
func TestKeywordsThatAlternativesShare(t *testing.T) {
	t.Parallel()
	fast, slow := plain(t)
	r := rand.New(rand.NewPCG(3, 3))
	some := func(n int) string {
		out := make([]byte, n)
		for i := range out {
			out[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[r.IntN(62)]
		}
		return string(out)
	}
	digits := func(n int) string { return strings.Repeat("8317204956", 2)[:n] }
	for _, token := range []string{
		"fo1_" + some(43), "fm1a_" + some(120), "fm1r_" + some(3000), "fm2_" + some(100) + "==",
		"xoxp-" + digits(12) + "-" + digits(12) + "-" + digits(12) + "-" + some(30),
		"xoxe-" + digits(12) + "-" + digits(12) + "-" + digits(12) + "-" + some(30),
	} {
		text := []byte(some(4000) + " fm1 " + some(300) + "\n" + token + "\n" + some(4000))
		if same(t, fast, slow, "x.txt", text) != 1 {
			t.Errorf("%.20q is not found", token)
		}
	}
	for i := range fast.rules {
		if r := &fast.rules[i]; slices.Contains([]string{"flyio-access-token", "slack-user-token"}, r.id) && r.shape == nil {
			t.Errorf("rule %s is tried on all of a piece", r.id)
		}
	}
}
