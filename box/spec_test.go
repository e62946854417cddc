package box_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func TestSpecValidate(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		field  string // empty: accepted
		change func(*box.Spec)
	}{
		"the fixture":                        {"", func(*box.Spec) {}},
		"no version":                         {"version", func(s *box.Spec) { s.Version = 0 }},
		"a newer version":                    {"version", func(s *box.Spec) { s.Version = box.WireVersion + 1 }},
		"no workspace":                       {"workspace", func(s *box.Spec) { s.Workspace = "" }},
		"a workspace of 40":                  {"", func(s *box.Spec) { s.Workspace = strings.Repeat("a", 40) }},
		"a workspace of 41":                  {"workspace", func(s *box.Spec) { s.Workspace = strings.Repeat("a", 41) }},
		"a workspace in capitals":            {"workspace", func(s *box.Spec) { s.Workspace = "Demo" }},
		"a workspace that climbs":            {"workspace", func(s *box.Spec) { s.Workspace = "../x" }},
		"a workspace with a line break":      {"workspace", func(s *box.Spec) { s.Workspace = "demo\n" }},
		"no provider":                        {"provider", func(s *box.Spec) { s.Provider = "" }},
		"a provider that begins with a dash": {"provider", func(s *box.Spec) { s.Provider = "-local" }},
		"an owner with a space":              {"owner", func(s *box.Spec) { s.Owner = "Ana Lopez" }},
		"an owner that is a mail address":    {"", func(s *box.Spec) { s.Owner = "ana@example.org" }},
		"plain settings":                     {"", func(s *box.Spec) { s.Env = map[string]string{"MODE": "fast"} }},
		"a setting without a usable name":    {"env.a-b", func(s *box.Spec) { s.Env = map[string]string{"a-b": "x"} }},
		"a setting that looks like a secret": {"env.API_KEY", func(s *box.Spec) { s.Env = map[string]string{"API_KEY": "x"} }},
		"another one":                        {"env.db_Passwort", func(s *box.Spec) { s.Env = map[string]string{"db_Passwort": "x"} }},
		"a setting with a NUL":               {"env.MODE", func(s *box.Spec) { s.Env = map[string]string{"MODE": "a\x00b"} }},
		"secrets by reference": {"", func(s *box.Spec) {
			s.Secrets = map[string]string{"A": "env:TOKEN", "B": "file:/run/secrets/b", "C": "credential:github.com"}
		}},
		"a secret by value":              {"secrets.A", func(s *box.Spec) { s.Secrets = map[string]string{"A": "sk-123"} }},
		"a secret in a relative file":    {"secrets.A", func(s *box.Spec) { s.Secrets = map[string]string{"A": "file:secrets/a"} }},
		"a secret without a usable name": {"secrets.A=B", func(s *box.Spec) { s.Secrets = map[string]string{"A=B": "env:X"} }},
		"a bad policy":                   {"policy.grace", func(s *box.Spec) { s.Policy.Grace = box.Never }},
	} {
		s := spec()
		row.change(&s)
		err := s.Validate()
		switch {
		case row.field == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case row.field != "" && (box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), row.field+": ")):
			t.Errorf("%s: %v, want %s named", name, err, row.field)
		case err != nil && strings.Contains(err.Error(), "sk-123"):
			t.Errorf("%s: the value is repeated: %v", name, err)
		}
	}
}

func TestPolicyValidate(t *testing.T) {
	t.Parallel()
	set := map[string]func(*box.Policy, box.Duration){
		"idle": func(p *box.Policy, d box.Duration) { p.Idle = d }, "paused_ttl": func(p *box.Policy, d box.Duration) { p.PausedTTL = d },
		"max_run": func(p *box.Policy, d box.Duration) { p.MaxRun = d }, "export_life": func(p *box.Policy, d box.Duration) { p.ExportLife = d },
		"notice": func(p *box.Policy, d box.Duration) { p.Notice = d }, "grace": func(p *box.Policy, d box.Duration) { p.Grace = d },
		"token_ttl": func(p *box.Policy, d box.Duration) { p.TokenTTL = d }, "holder_lease": func(p *box.Policy, d box.Duration) { p.HolderLease = d },
		"undo": func(p *box.Policy, d box.Duration) { p.Undo = d }, "dead_man": func(p *box.Policy, d box.Duration) { p.DeadMan = d },
	}
	never := []string{"idle", "paused_ttl", "max_run", "export_life"} // where it is documented
	for name, change := range set {
		for _, d := range []box.Duration{box.Never, box.Duration(3650*day) + 1, 0, box.Duration(time.Hour)} {
			var p box.Policy
			change(&p, d)
			err := p.Validate()
			bad := d > box.Duration(3650*day) || d.IsNever() && !slices.Contains(never, name)
			if bad != (err != nil) || bad && !strings.HasPrefix(err.Error(), "policy."+name+": ") {
				t.Errorf("%s = %s: %v", name, d, err)
			}
		}
	}
	for name, p := range map[string]box.Policy{
		"policy.on_expiry": {OnExpiry: "burn"},
		"policy.notice":    {PausedTTL: box.Duration(day), Notice: box.Duration(day)},
	} {
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPolicyDefaults(t *testing.T) {
	t.Parallel()
	want := box.Policy{
		Idle: box.Duration(15 * time.Minute), PausedTTL: box.Duration(30 * day), DeepenAfter: box.Duration(time.Hour), Notice: box.Duration(72 * time.Hour), Grace: box.Duration(day),
		TokenTTL: box.Duration(day), HolderLease: box.Duration(2 * time.Minute), MaxRun: box.Duration(12 * time.Hour), Undo: box.Duration(day),
		ExportLife: box.Duration(90 * day), DeadMan: box.Duration(15 * time.Minute), OnExpiry: box.OnExpiryAsk,
	}
	if got := (box.Policy{}).Effective(); got != want {
		t.Errorf("defaults are %+v", got)
	}
	if got := (box.Policy{PausedTTL: box.Duration(2 * time.Hour)}).Effective(); got.Notice != box.Duration(time.Hour) || got.Validate() != nil {
		t.Errorf("a short paused TTL is announced %s before", got.Notice)
	}
	if got := (box.Policy{PausedTTL: box.Never}).Effective(); !got.PausedTTL.IsNever() || got.Notice != want.Notice {
		t.Errorf("a paused TTL of never became %s, notice %s", got.PausedTTL, got.Notice)
	}
	if got := want.Merged(box.Policy{Idle: box.Never}); !got.Idle.IsNever() || got.PausedTTL != want.PausedTTL {
		t.Errorf("merged is %+v", got)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("outer: %w", box.Errorf(box.ClassUnavailable, "read it: %w", fs.ErrNotExist))
	var e *box.Error
	if box.ClassOf(err) != box.ClassUnavailable || !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &e) {
		t.Errorf("%v has class %s", err, box.ClassOf(err))
	}
	if got := err.Error(); got != "outer: read it: file does not exist" {
		t.Errorf("the text is %q", got)
	}
	if got := (&box.Error{Class: box.ClassConflict, Field: "f", Message: "m", Err: errors.New("cause")}).Error(); got != "f: m: cause" {
		t.Errorf("the text is %q", got)
	}
	if box.ClassOf(nil) != "" || box.ClassOf(errors.New("x")) != box.ClassUnknown || box.ClassOf(errors.Join(errors.New("x"), err)) != box.ClassUnavailable {
		t.Error("classes of other errors")
	}
	for class, retry := range map[box.Class]bool{
		box.ClassUnknown: true, box.ClassNotFound: true, box.ClassAlreadyExists: true, box.ClassConflict: true, box.ClassExhausted: true,
		box.ClassUnavailable: true, box.ClassDeadlineExceeded: true, box.ClassInternal: true, "of a newer program": true,
		box.ClassInvalid: false, box.ClassUnauthorized: false, box.ClassUnsupported: false, box.ClassFailedPrecondition: false, box.ClassCanceled: false,
	} {
		if class.Retryable() != retry {
			t.Errorf("%s is retryable: %v", class, !retry)
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	const value = "s3cr3t-value"
	type holder struct {
		Key  box.Secret
		List []box.Secret
		By   map[string]box.Secret
	}
	h := holder{value, []box.Secret{value}, map[string]box.Secret{"a": value}}
	var out []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		out = append(out, fmt.Sprintf(verb, h), fmt.Sprintf(verb, h.Key), fmt.Sprintf(verb, &h))
	}
	out = append(out, fmt.Sprint(h.Key), fmt.Errorf("x: %v", h).Error())
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	text, err := xml.Marshal(h.List)
	if err != nil {
		t.Fatal(err)
	}
	var log, binary bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", h.Key, "all", h)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", h.Key, "all", h)
	if err := gob.NewEncoder(&binary).Encode(h); err != nil {
		t.Fatal(err)
	}
	for _, line := range append(out, string(data), string(text), log.String(), binary.String()) {
		if strings.Contains(line, value) {
			t.Errorf("the secret is in %q", line)
		}
	}
	if h.Key.Reveal() != value || h.Key.String() != "[redacted]" || box.Secret("").String() != "" {
		t.Error("a secret is not what it should be")
	}
}

func TestNamesAndFingerprints(t *testing.T) {
	t.Parallel()
	longest := box.Identity{Installation: "0a1b2c3d", Workspace: strings.Repeat("w", 40), Epoch: 999_999_999}
	if got := longest.Name(); len(got) > 63 || !strings.HasPrefix(got, "bk-0a1b2c3d-www") || !strings.HasSuffix(got, "-999999999") {
		t.Errorf("name %q of %d", got, len(got))
	}
	a, b := box.ConversationMark{ID: "a", Events: 1}, box.ConversationMark{ID: "b", Events: 2}
	digest := box.HistoryDigest([]box.ConversationMark{a, b})
	for name, other := range map[string][]box.ConversationMark{
		"none": nil, "less": {a}, "an event more": {a, {ID: "b", Events: 3}}, "another id": {a, {ID: "c", Events: 2}}, "swapped": {{ID: "a", Events: 2}, {ID: "b", Events: 1}},
	} {
		if box.HistoryDigest(other) == digest {
			t.Errorf("%s has the same digest", name)
		}
	}
	if box.HistoryDigest([]box.ConversationMark{b, a}) != digest {
		t.Error("the order counts")
	}
	receipt := box.Receipt{Epoch: 1, Key: "k", Digest: digest}
	if !receipt.Covers(1, digest) || receipt.Covers(2, digest) || receipt.Covers(1, "") || (box.Receipt{}).Covers(0, "") || receipt.Covers(1, "other") {
		t.Error("covers")
	}
	token := box.ConfirmationToken("w", 1, "shown", "0")
	for _, other := range []string{box.ConfirmationToken("v", 1, "shown", "0"), box.ConfirmationToken("w", 2, "shown", "0"), box.ConfirmationToken("w", 1, "else", "0"), box.ConfirmationToken("w", 1, "shown", "1")} {
		if other == token || len(other) != 20 {
			t.Errorf("token %q and %q", token, other)
		}
	}
	for _, tri := range []box.Tri{box.Unknown, box.Yes, box.No, 9} {
		text, err := tri.MarshalText()
		var back box.Tri
		if err != nil || back.UnmarshalText(text) != nil || back != tri && tri != 9 {
			t.Errorf("%d became %s became %d", tri, text, back)
		}
	}
	back := box.Yes
	if err := back.UnmarshalText([]byte("perhaps")); err != nil || back != box.Unknown {
		t.Errorf("an unknown answer is read as %s", back)
	}
}
