package box

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// WireVersion is the version of [Spec] that this program writes. A reader
// refuses a newer one instead of guessing.
const WireVersion = 1

// Spec is what a caller asks for: the input of the workflow that owns one
// workspace. It never carries a secret, only references to secrets.
type Spec struct {
	Version   int    `json:"version"`
	Workspace string `json:"workspace"`
	// Owner is an opaque id of the person or team; it becomes a search
	// attribute, which the engine never encrypts.
	Owner string `json:"owner,omitzero"`
	// Provider is the name of a configured provider instance, such as "local".
	Provider string `json:"provider"`
	// Image is the provider's image or template; empty means its default.
	Image string `json:"image,omitzero"`
	// Env holds plain settings for the box.
	Env map[string]string `json:"env,omitzero"`
	// Secrets maps names of environment variables in the box to references:
	// "env:NAME", "file:PATH" or "credential:NAME", resolved by the worker.
	Secrets map[string]string `json:"secrets,omitzero"`
	Labels  map[string]string `json:"labels,omitzero"`
	Policy  Policy            `json:"policy,omitzero"`
	// Adopt is the provider's own id of a box that is there and is taken over:
	// a start with it never creates one.
	Adopt string `json:"adopt,omitzero"`
}

// OnExpiry says what happens when the paused TTL has run out.
type OnExpiry string

// What may happen at expiry. The zero value is OnExpiryAsk.
const (
	OnExpiryAsk    OnExpiry = "ask"    // wait for a person, remind, never delete by itself
	OnExpiryDelete OnExpiry = "delete" // delete after a verified export; only when chosen at creation
)

// Policy is how long things may last. A zero field takes the default.
type Policy struct { //nolint:recvcheck // only the method that hands out places to write to needs a pointer
	Idle        Duration `json:"idle,omitzero"`         // last use to suspend; "never" keeps the box awake up to MaxRun
	PausedTTL   Duration `json:"paused_ttl,omitzero"`   // suspend to expiry; "never" keeps it
	DeepenAfter Duration `json:"deepen_after,omitzero"` // suspend to the end of its memory, where that is kept and can be given up; "never" keeps it
	Notice      Duration `json:"notice,omitzero"`       // how long before expiry people are told
	Grace       Duration `json:"grace,omitzero"`        // least time between a notice and a deletion by policy
	TokenTTL    Duration `json:"token_ttl,omitzero"`    // how long a confirmation token is good for
	HolderLease Duration `json:"holder_lease,omitzero"` // a holder not renewed for this long is gone
	MaxRun      Duration `json:"max_run,omitzero"`      // hard maximum awake time that no holder extends; "never" is allowed
	Undo        Duration `json:"undo,omitzero"`         // confirmed deletion to the destroying call, for deletions at expiry
	ExportLife  Duration `json:"export_life,omitzero"`  // how long an export stays after the box is deleted
	DeadMan     Duration `json:"dead_man,omitzero"`     // margin of the provider's own timers over ours
	OnExpiry    OnExpiry `json:"on_expiry,omitzero"`    // see OnExpiry
	Lead        Lead     `json:"lead,omitzero"`         // who suspends an idle box first; default: as the provider's row says
	// ExportSecrets is what is done about secrets in what is exported; default: as the
	// worker is set, which is to keep them.
	ExportSecrets SecretsPolicy `json:"export_secrets,omitzero"`
}

// DefaultPolicy returns the policy of a workspace whose spec sets nothing.
func DefaultPolicy() Policy {
	return Policy{
		Idle:        Duration(15 * time.Minute),
		PausedTTL:   Duration(30 * day),
		DeepenAfter: Duration(time.Hour),
		Notice:      Duration(72 * time.Hour),
		Grace:       Duration(24 * time.Hour),
		TokenTTL:    Duration(24 * time.Hour),
		HolderLease: Duration(2 * time.Minute),
		MaxRun:      Duration(12 * time.Hour),
		Undo:        Duration(24 * time.Hour),
		ExportLife:  Duration(90 * day),
		DeadMan:     Duration(15 * time.Minute),
		OnExpiry:    OnExpiryAsk,
	}
}

// field is one duration of a policy, with its rules.
type field struct {
	name  string
	value *Duration
	never bool // "never" is allowed
}

func (p *Policy) fields() []field {
	return []field{
		{"idle", &p.Idle, true},
		{"paused_ttl", &p.PausedTTL, true},
		{"deepen_after", &p.DeepenAfter, true},
		{"notice", &p.Notice, false},
		{"grace", &p.Grace, false},
		{"token_ttl", &p.TokenTTL, false},
		{"holder_lease", &p.HolderLease, false},
		{"max_run", &p.MaxRun, true},
		{"undo", &p.Undo, false},
		{"export_life", &p.ExportLife, true},
		{"dead_man", &p.DeadMan, false},
	}
}

// Merged returns p with every field that change sets; the zero fields of
// change keep p's values.
func (p Policy) Merged(change Policy) Policy {
	out, from := p, change.fields()
	for i, f := range out.fields() {
		if *from[i].value != 0 {
			*f.value = *from[i].value
		}
	}
	if change.OnExpiry != "" {
		out.OnExpiry = change.OnExpiry
	}
	if change.Lead != "" {
		out.Lead = change.Lead
	}
	if change.ExportSecrets != "" {
		out.ExportSecrets = change.ExportSecrets
	}
	return out
}

// Validate refuses a policy that cannot be meant. Zero fields are accepted:
// they take the default.
func (p Policy) Validate() error {
	for _, f := range p.fields() {
		switch {
		case f.value.IsNever() && !f.never:
			return Invalidf("policy."+f.name, "\"never\" is not allowed here; give a length such as 24h")
		case *f.value > 0 && *f.value < Duration(time.Second):
			return Invalidf("policy."+f.name, "%s is too short; the least is 1s", *f.value)
		case *f.value > Duration(maxDuration):
			return Invalidf("policy."+f.name, "%s is too long; the most is 3650d", *f.value)
		}
	}
	switch p.OnExpiry {
	case "", OnExpiryAsk, OnExpiryDelete:
	default:
		return Invalidf("policy.on_expiry", "%q is not known; use \"ask\" or \"delete\"", p.OnExpiry)
	}
	switch p.Lead {
	case "", LeadOurs, LeadProvider:
	default:
		return Invalidf("policy.lead", "%q is not known; use \"ours\" or \"provider\"", p.Lead)
	}
	if err := p.ExportSecrets.Validate("policy.export_secrets"); err != nil {
		return err
	}
	if p.PausedTTL > 0 && p.PausedTTL < Duration(2*time.Second) { // half of it is the notice
		return Invalidf("policy.paused_ttl", "%s is too short; the least is 2s, so that a notice fits before its end", p.PausedTTL)
	}
	full := DefaultPolicy().Merged(p)
	if !full.PausedTTL.IsNever() && full.Notice.Std() >= full.PausedTTL.Std() && p.Notice != 0 {
		return Invalidf("policy.notice", "%s is not shorter than paused_ttl %s; a notice must come before what it announces", full.Notice, full.PausedTTL)
	}
	return nil
}

// Effective returns the policy with defaults filled in. A paused TTL that is
// shorter than the default notice gets a notice at half of it.
func (p Policy) Effective() Policy {
	full := DefaultPolicy().Merged(p)
	if !full.PausedTTL.IsNever() && full.Notice.Std() >= full.PausedTTL.Std() {
		full.Notice = full.PausedTTL / 2
	}
	return full
}

var (
	workspaceForm = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	instanceForm  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)
	// conversationForm is a UUID, with dashes or without.
	conversationForm = regexp.MustCompile(`^[0-9a-fA-F]{32}$|^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	envForm          = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	ownerForm        = regexp.MustCompile(`^[A-Za-z0-9@._:/+-]{0,128}$`)
	secretName       = regexp.MustCompile(`(?i)(key|token|secret|passw|credential|auth)`)
	labelForm        = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,62}$`)
	secretRefForm    = regexp.MustCompile(`^(env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|credential:[A-Za-z0-9._-]+)$`)
)

// Bounds of what a spec carries: it is an input of the workflow and part of
// each run's history.
const (
	maxText   = 256
	maxLabels = 32
	maxEnv    = 64
	maxValue  = 4096
	// maxSecretRef bounds a reference, which may be a path. maxSpec is how large the
	// whole may be written: a run hands it on twice, in its input and in the facts,
	// and the engine takes 2 MB.
	maxSecretRef = 1024
	maxSpec      = 384 << 10
)

// ReservedEnv reports whether boxkeeper sets a variable of the box itself, so
// that nobody else may.
func ReservedEnv(name string) bool {
	return name == "OH_SECRET_KEY" || name == "SESSION_API_KEY" ||
		strings.HasPrefix(name, "OH_SESSION_API_KEYS_") || strings.HasPrefix(name, "BOXKEEPER_")
}

// ValidInstance reports whether a name can be that of a provider instance: 1 to
// 40 of a-z, 0-9 and "-", not beginning with "-".
func ValidInstance(name string) bool { return instanceForm.MatchString(name) }

func unprintable(r rune) bool { return r <= ' ' || r == 127 }

// ValidateWorkspace refuses an id that is not 1 to 40 of a-z, 0-9 and "-".
// The form keeps ids usable as names at every provider.
func ValidateWorkspace(id string) error {
	if !workspaceForm.MatchString(id) {
		return Invalidf("workspace", "%q is not a workspace id; use 1 to 40 of a-z, 0-9 and \"-\"", id)
	}
	return nil
}

// Validate refuses a spec with the field named. A valid spec carries no
// secret: values whose name looks like one must be references.
func (s Spec) Validate() error {
	if s.Version != WireVersion {
		return Invalidf("version", "%d is not known to this program, which speaks %d; upgrade the older side", s.Version, WireVersion)
	}
	if err := ValidateWorkspace(s.Workspace); err != nil {
		return err
	}
	if !ValidInstance(s.Provider) {
		return Invalidf("provider", "%q is not the name of a provider instance; \"boxkeeper check\" lists those that are configured", s.Provider)
	}
	if !ownerForm.MatchString(s.Owner) {
		return Invalidf("owner", "use at most 128 letters, digits and @._:/+-; it is an opaque id, not a display name")
	}
	if s.Adopt != "" {
		if err := checkBoxID("adopt", s.Adopt); err != nil {
			return err
		}
	}
	if len(s.Image) > maxText || strings.ContainsFunc(s.Image, unprintable) {
		return Invalidf("image", "use at most %d printable characters without spaces", maxText)
	}
	for _, kind := range []struct {
		name       string
		have, most int
	}{{"labels", len(s.Labels), maxLabels}, {"env", len(s.Env), maxEnv}, {"secrets", len(s.Secrets), maxEnv}} {
		if kind.have > kind.most {
			return Invalidf(kind.name, "there are %d, and can be %d at most; it all goes into the history", kind.have, kind.most)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		switch {
		case !labelForm.MatchString(name):
			return Invalidf("labels."+name, "use 1 to 63 of a-z, A-Z, 0-9 and ._/- for the name of a label")
		case len(s.Labels[name]) > maxText || strings.ContainsFunc(s.Labels[name], func(r rune) bool { return r != ' ' && unprintable(r) }):
			return Invalidf("labels."+name, "use at most %d printable characters", maxText)
		case secretName.MatchString(name):
			return Invalidf("labels."+name, "looks like a secret; labels are stored in the clear")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		switch {
		case ReservedEnv(name):
			return Invalidf("env."+name, "is set by boxkeeper; leave it out")
		case len(s.Env[name]) > maxValue:
			return Invalidf("env."+name, "is longer than %d bytes; put it into a file in the image instead", maxValue)
		case !envForm.MatchString(name):
			return Invalidf("env."+name, "is not a name of an environment variable")
		case secretName.MatchString(name):
			return Invalidf("env."+name, "looks like a secret; put a reference such as env:%s under secrets instead", name)
		case strings.ContainsRune(s.Env[name], 0):
			return Invalidf("env."+name, "the value holds a NUL byte")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Secrets)) {
		switch {
		case !envForm.MatchString(name):
			return Invalidf("secrets."+name, "is not a name of an environment variable")
		case ReservedEnv(name):
			return Invalidf("secrets."+name, "is set by boxkeeper; leave it out")
		case len(s.Secrets[name]) > maxSecretRef:
			return Invalidf("secrets."+name, "is longer than %d characters; use a shorter reference", maxSecretRef)
		case !secretRefForm.MatchString(s.Secrets[name]):
			return Invalidf("secrets."+name, "must be a reference: env:NAME, file:/absolute/path or credential:NAME; the value itself never goes here")
		}
	}
	if data, err := json.Marshal(s); err != nil || len(data) > maxSpec {
		return Invalidf("spec", "is larger than %d bytes as it is written; put what is large into a file in the image", maxSpec)
	}
	return s.Policy.Validate()
}
