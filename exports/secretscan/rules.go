package secretscan

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

//go:embed gitleaks.toml
var gitleaksRules string

const (
	// Our own rules.
	rulePromised = "agent-server-key"
	ruleFernet   = "agent-server-fernet"
	ruleURL      = "url-credentials"

	ruleGeneric = "generic-api-key"
)

// The keys whose values an agent-server masks in an export, and the beginning
// of any string that it masks (of a Fernet token, which its own key opens).
const (
	promisedKeys = `api_key|aws_access_key_id|aws_secret_access_key|aws_session_token|llm_api_key`
	fernetStart  = `gAAAAA`
)

// placesOfRemotes are the names of what holds addresses of remotes and little else.
// Elsewhere such an address is an example more often than not.
const placesOfRemotes = `^(?:manifest\.json|repositories/[0-9]+/git/(?:FETCH_HEAD|logs/.+))$`

// rule is one rule, ready to be used.
type rule struct {
	id       string
	re       *regexp.Regexp
	keywords []string // in lower case; one of them is near, or in, each match
	path     *regexp.Regexp
	entropy  float64
	group    int // of the value; 0 is the first that is not empty
	allow    []allowlist
	// shape is where a match can be; nil when a keyword only tells that the rule is
	// worth trying.
	shape *shape
	// promised rules look only at the bytes as they are, of JSON files.
	promised bool
	// named rules are not for what has no name.
	named bool
}

// forNames are the rules that are not for a text whose name nobody knows: each
// password in quotes would be found, also one that no key looks like.
func forNames() []string { return []string{ruleURL, "hashicorp-tf-password"} }

// isFor reports whether the rule is for an entry, by its name.
func (r *rule) isFor(name string) bool {
	if name == unnamed {
		return !r.named
	}
	return r.path == nil || r.path.MatchString(name)
}

// allowlist says which finds are none.
type allowlist struct {
	all       bool // every kind of condition must hold, not any
	target    string
	regexes   []*regexp.Regexp
	stopwords stopwords
	paths     []*regexp.Regexp
}

// The form of the rule file, as far as it is used. A field that is not known
// is refused: a rule that is half understood finds the wrong things.
type ruleFile struct {
	Title      string          `toml:"title"`
	MinVersion string          `toml:"minVersion"`
	Allowlist  allowlistFile   `toml:"allowlist"`
	Rules      []ruleFileEntry `toml:"rules"`
}

type ruleFileEntry struct {
	ID          string          `toml:"id"`
	Description string          `toml:"description"`
	Regex       string          `toml:"regex"`
	Path        string          `toml:"path"`
	Entropy     float64         `toml:"entropy"`
	SecretGroup int             `toml:"secretGroup"`
	Keywords    []string        `toml:"keywords"`
	Allowlists  []allowlistFile `toml:"allowlists"`
}

type allowlistFile struct {
	Description string   `toml:"description"`
	Condition   string   `toml:"condition"`
	RegexTarget string   `toml:"regexTarget"`
	Regexes     []string `toml:"regexes"`
	Stopwords   []string `toml:"stopwords"`
	Paths       []string `toml:"paths"`
}

// sharper returns keywords that say more than those of the file, where those are
// in every second word: a JWT begins with the base64 of an open brace and a quote,
// or a blank.
func sharper(id string) []string {
	if id == "jwt" {
		return []string{"eyj", "eya"}
	}
	return nil
}

// ours are the rules for what the agent-server promises to mask.
func ours() []ruleFileEntry {
	return []ruleFileEntry{
		{
			ID: rulePromised, Keywords: strings.Split(promisedKeys, "|"),
			Regex: `"(?:` + promisedKeys + `)"\s{0,64}:\s{0,64}(?:"((?s:[^"\\]|\\.)+)|(-?[0-9][0-9.eE+-]*))`,
		},
		{ID: ruleFernet, Keywords: []string{strings.ToLower(fernetStart)}, Regex: `"(` + fernetStart + `(?s:[^"\\]|\\.)*)`},
	}
}

// addresses is the rule for what an address of a remote holds: a password, or
// a token that stands for a user.
func addresses() ruleFileEntry {
	return ruleFileEntry{
		ID: ruleURL, Keywords: []string{"://"}, Path: placesOfRemotes,
		Regex: `://(?:[^\s/?#:@"'<>]{0,256}:([^\s/?#@"'<>]{1,512})|([^\s/?#:@"'<>]{20,512}))@`,
	}
}

// loadRules reads and compiles all rules, and the allowlist that is for all of
// them. Its paths are left out: an export is scanned whole.
func loadRules() (rules []rule, global allowlist, err error) {
	var file ruleFile
	meta, err := toml.Decode(gitleaksRules, &file)
	if err != nil {
		return nil, allowlist{}, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, allowlist{}, fmt.Errorf("the rule file has a field %s that is not known", unknown[0])
	}
	file.Allowlist.Paths = nil
	if global, err = compileAllowlist(file.Allowlist); err != nil {
		return nil, allowlist{}, err
	}
	all := slices.Concat(ours(), []ruleFileEntry{addresses()}, file.Rules)
	for i, entry := range all {
		r, err := compileRule(entry)
		if err != nil {
			return nil, allowlist{}, fmt.Errorf("rule %s: %w", entry.ID, err)
		}
		r.promised, r.named = i < len(ours()), slices.Contains(forNames(), entry.ID)
		rules = append(rules, r)
	}
	return rules, global, nil
}

func compileRule(entry ruleFileEntry) (r rule, err error) {
	r = rule{id: entry.ID, entropy: entry.Entropy, group: entry.SecretGroup}
	if entry.ID == "" || entry.Regex == "" && entry.Path == "" {
		return r, fmt.Errorf("it has no id, or looks at nothing")
	}
	for _, k := range entry.Keywords {
		r.keywords = append(r.keywords, strings.ToLower(k))
	}
	if entry.Path != "" {
		if r.path, err = regexp.Compile(entry.Path); err != nil {
			return r, err
		}
	}
	if entry.Regex != "" {
		if len(r.keywords) == 0 {
			return r, fmt.Errorf("it has no keyword")
		}
		if r.re, err = regexp.Compile(entry.Regex); err != nil {
			return r, err
		}
		if entry.SecretGroup > r.re.NumSubexp() {
			return r, fmt.Errorf("it has no group %d", entry.SecretGroup)
		}
		if r.shape, err = shapeOf(entry.Regex, r.keywords); err != nil {
			return r, err
		}
	}
	if better := sharper(entry.ID); better != nil {
		r.keywords = better
	}
	for _, a := range entry.Allowlists {
		list, err := compileAllowlist(a)
		if err != nil {
			return r, err
		}
		r.allow = append(r.allow, list)
		if r.shape != nil && r.shape.assigns && !list.all && list.target == "" {
			for _, text := range a.Regexes {
				r.shape.dull = cmp.Or(r.shape.dull, only(text))
			}
		}
	}
	return r, nil
}

func compileAllowlist(file allowlistFile) (a allowlist, err error) {
	switch file.Condition {
	case "", "OR":
	case "AND":
		a.all = true
	default:
		return a, fmt.Errorf("condition %q is not known", file.Condition)
	}
	switch file.RegexTarget {
	case "", "match", "line":
		a.target = file.RegexTarget
	default:
		return a, fmt.Errorf("target %q is not known", file.RegexTarget)
	}
	for _, list := range []struct {
		from []string
		to   *[]*regexp.Regexp
	}{{file.Regexes, &a.regexes}, {file.Paths, &a.paths}} {
		for _, text := range list.from {
			re, err := regexp.Compile(text)
			if err != nil {
				return a, err
			}
			*list.to = append(*list.to, re)
		}
	}
	if len(file.Stopwords) > 0 {
		a.stopwords = stopwords{}
		for _, w := range file.Stopwords {
			if len(w) < 3 {
				return a, fmt.Errorf("a stop word has fewer than 3 letters")
			}
			w = strings.ToLower(w)
			a.stopwords[[3]byte([]byte(w))] = append(a.stopwords[[3]byte([]byte(w))], w)
		}
	}
	return a, nil
}

// allows reports whether a find is none. A list of paths alone allows nothing
// here: it would leave files out.
func (a *allowlist) allows(name string, value, match, line []byte) bool {
	target := value
	switch a.target {
	case "match":
		target = match
	case "line":
		target = line
	}
	byRegex := slices.ContainsFunc(a.regexes, func(re *regexp.Regexp) bool { return re.Match(target) })
	byWord := a.stopwords != nil && a.stopwords.in(value)
	if !a.all {
		return byRegex || byWord
	}
	byPath := slices.ContainsFunc(a.paths, func(re *regexp.Regexp) bool { return re.MatchString(name) })
	return (len(a.regexes) == 0 || byRegex) && (a.stopwords == nil || byWord) && (len(a.paths) == 0 || byPath) &&
		len(a.regexes)+len(a.paths) > 0
}

// stopwords are words by their first letters.
type stopwords map[[3]byte][]string

// in reports whether value holds any of the words.
func (s stopwords) in(value []byte) bool {
	value = bytes.ToLower(value)
	for i := range len(value) - 2 {
		for _, word := range s[[3]byte(value[i:])] {
			if bytes.HasPrefix(value[i:], []byte(word)) {
				return true
			}
		}
	}
	return false
}

// entropyOf is Shannon's, in bits a byte.
func entropyOf(value []byte) (bits float64) {
	var counts [256]int
	for _, c := range value {
		counts[c]++
	}
	for _, n := range counts {
		if n > 0 {
			share := float64(n) / float64(len(value))
			bits -= share * math.Log2(share)
		}
	}
	return bits
}
