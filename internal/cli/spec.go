package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

const maxSpecBytes = 1 << 20

// policyFlags binds one flag per field of a policy.
func policyFlags(c *cobra.Command, p *box.Policy) {
	for _, f := range policyFields(p) {
		c.Flags().Var(durationFlag{"policy." + strings.ReplaceAll(f.flag, "-", "_"), f.to}, f.flag, f.help)
	}
	c.Flags().StringVar((*string)(&p.OnExpiry), "on-expiry", "", "when the paused TTL is over: ask a person (default), or delete after a verified export; delete can be chosen at creation only")
	c.Flags().StringVar((*string)(&p.Lead), "lead", "", "who suspends an idle box first: ours, or provider where its own timer can; default: as the provider's row says")
	c.Flags().StringVar((*string)(&p.ExportSecrets), "export-secrets", "", "secrets in what is exported: keep them as they are, redact them (a workspace whose files hold one is left out), or block the export; default: as the worker is set")
}

type policyField struct {
	flag, help string
	to         *box.Duration
}

func policyFields(p *box.Policy) []policyField {
	return []policyField{
		{"idle", "from the last use to the suspend, or never (default 15m)", &p.Idle},
		{"paused-ttl", "from the suspend to the expiry, or never (default 30d)", &p.PausedTTL},
		{"deepen-after", "from the suspend to the end of its memory, where the provider keeps it and can give it up, or never (default 1h)", &p.DeepenAfter},
		{"notice", "how long before the expiry people are told (default 72h)", &p.Notice},
		{"grace", "least time between a notice and a deletion by policy (default 24h)", &p.Grace},
		{"token-ttl", "how long a confirmation token is good for (default 24h)", &p.TokenTTL},
		{"holder-lease", "a holder that is not renewed for so long is gone (default 2m)", &p.HolderLease},
		{"max-run", "longest awake time, whoever holds the box, or never (default 12h)", &p.MaxRun},
		{"undo", "from a confirmed deletion at expiry to the destroying call (default 24h)", &p.Undo},
		{"export-life", "how long an export stays after the box is deleted, or never to keep it (default 90d)", &p.ExportLife},
		{"dead-man", "margin of the provider's own timers over ours (default 15m)", &p.DeadMan},
	}
}

// specFlags are the fields of a spec that have a flag.
type specFlags struct {
	file                 string
	provider             string
	owner, image         string
	adopt                string
	env, secrets, labels []string
	policy               box.Policy
}

func (f *specFlags) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.file, "spec", "", "file with the whole spec as JSON, or - for standard input; no other flag of the spec beside it")
	flags.StringVar(&f.provider, "provider", "local", "name of a configured provider instance")
	flags.StringVar(&f.image, "image", "", "the provider's image or template")
	f.bindOwn(c)
}

// bindOwn adds the flags that say nothing of where the box is from.
func (f *specFlags) bindOwn(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.owner, "owner", "", "opaque id of the person or team; it is not encrypted")
	flags.StringArrayVar(&f.env, "env", nil, "NAME=VALUE: a setting for the box, never a secret (repeat)")
	flags.StringArrayVar(&f.secrets, "secret", nil, "NAME=REFERENCE: env:NAME, file:/path or credential:NAME on the worker (repeat)")
	flags.StringArrayVar(&f.labels, "label", nil, "NAME=VALUE (repeat)")
	policyFlags(c, &f.policy)
}

// build returns the spec of workspace, valid.
func (f *specFlags) build(c *cobra.Command, workspace string) (box.Spec, error) {
	if f.file != "" {
		return f.fromFile(c, workspace)
	}
	spec := box.Spec{
		Version: box.WireVersion, Workspace: workspace, Owner: f.owner, Provider: f.provider, Image: f.image, Policy: f.policy, Adopt: f.adopt,
	}
	var err error
	if spec.Env, err = pairs("env", f.env); err != nil {
		return spec, err
	}
	if spec.Secrets, err = pairs("secrets", f.secrets); err != nil {
		return spec, err
	}
	if spec.Labels, err = pairs("labels", f.labels); err != nil {
		return spec, err
	}
	return spec, spec.Validate()
}

func (f *specFlags) fromFile(c *cobra.Command, workspace string) (box.Spec, error) {
	other := []string{"provider", "owner", "image", "env", "secret", "label", "on-expiry", "lead", "export-secrets"}
	for _, p := range policyFields(&f.policy) {
		other = append(other, p.flag)
	}
	for _, name := range other {
		if c.Flags().Changed(name) {
			return box.Spec{}, box.Invalidf(name, "--spec holds the whole spec; put it there, or leave --spec out")
		}
	}
	in := c.InOrStdin()
	if f.file != "-" {
		file, err := os.Open(f.file)
		if err != nil {
			return box.Spec{}, box.Invalidf("spec", "open the file: %v", err)
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSpecBytes+1))
	switch {
	case err != nil:
		return box.Spec{}, box.Invalidf("spec", "read %s: %v", f.file, err)
	case len(data) > maxSpecBytes:
		return box.Spec{}, box.Invalidf("spec", "is larger than 1 MiB")
	}
	spec, err := decodeSpec(data)
	if err != nil {
		return spec, err
	}
	if workspace != "" && spec.Workspace != workspace {
		return spec, box.Invalidf("workspace", "the spec is of %q, the command of %q; make them the same", printable(spec.Workspace), workspace)
	}
	return spec, spec.Validate()
}

// decodeSpec reads a spec strictly: names as they are documented, each once,
// nothing beside them, and durations refused with their field named.
func decodeSpec(data []byte) (box.Spec, error) {
	var spec box.Spec
	if err := checkNames(data); err != nil {
		return spec, err
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil || top == nil {
		return spec, box.Invalidf("spec", "is not a JSON object")
	}
	if raw, ok := top["policy"]; ok {
		var policy map[string]json.RawMessage
		if err := json.Unmarshal(raw, &policy); err != nil || policy == nil {
			return spec, box.Invalidf("policy", "is not a JSON object")
		}
		for _, f := range policyFields(&box.Policy{}) {
			name := strings.ReplaceAll(f.flag, "-", "_")
			raw, ok := policy[name]
			if !ok {
				continue
			}
			var text string
			if json.Unmarshal(raw, &text) != nil || bytes.Equal(raw, []byte("null")) {
				return spec, box.Invalidf("policy."+name, "must be a text such as \"15m\" or \"30d\"")
			}
			if _, err := box.ParseDuration("policy."+name, text); err != nil {
				return spec, err
			}
		}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&spec); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return spec, box.Invalidf(printable(e.Field), "has the wrong type: %s, not %s", e.Value, e.Type)
		}
		// The library quotes the name only, never a value.
		return spec, box.Invalidf("spec", "%s", strings.TrimPrefix(printable(err.Error()), "json: "))
	}
	return spec, nil
}

// checkNames refuses what the JSON library would take silently: a name that is
// there twice, where the last one wins, one in other letters, and anything
// after the end.
func checkNames(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := names(d, "", 0); err != nil {
		if _, ours := errors.AsType[*box.Error](err); ours {
			return err
		}
		return box.Invalidf("spec", "is not valid JSON (at byte %d)", d.InputOffset())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return box.Invalidf("spec", "something follows the end of the JSON object")
	}
	return nil
}

func names(d *json.Decoder, at string, depth int) error {
	if depth > 20 {
		return box.Invalidf("spec", "is nested too deep")
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		inner := at
		if delim == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string)
			inner = strings.TrimPrefix(at+"."+name, ".")
			// Names of ours are lower case; those of variables and labels are free.
			free := at == "env" || at == "secrets" || at == "labels"
			if seen[name] {
				return box.Invalidf(printable(inner), "is there twice")
			}
			if !free && name != strings.ToLower(name) {
				return box.Invalidf(printable(inner), "is not a field of a spec; names are in lower case")
			}
			seen[name] = true
		}
		if err := names(d, inner, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// pairs reads NAME=VALUE flags. Values are not repeated in errors: one may be a
// secret in the wrong place.
func pairs(field string, given []string) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil //nolint:nilnil // no pairs, no map
	}
	out := make(map[string]string, len(given))
	for _, pair := range given {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, box.Invalidf(field, "write it as NAME=VALUE")
		}
		if _, twice := out[name]; twice {
			return nil, box.Invalidf(field+"."+printable(name), "is there twice")
		}
		out[name] = value
	}
	return out, nil
}
