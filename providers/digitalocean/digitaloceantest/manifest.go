package digitaloceantest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// schemaVersion is the only one that a source prints; what a flat manifest is
// told with is unknown.
const schemaVersion = "agents.digitalocean.com/v1alpha1"

// spec is what a manifest means [environment spec, docs 23 Sep 2026].
type spec struct {
	name, agent, kind string
	idle              time.Duration
	keepWarm          bool
	openhands         bool // the agent is OpenHands, so there is ingress
	served            bool // the template has an agent-server on port 8000
	oauth             bool
	placeholder       bool // a ${...} is in it
	env, secrets      map[string]string
	slots             []map[string]string // credentials, without their values
	manifest          map[string]any      // without the values of secrets
}

// kinds are the agents that are known, and how sessions tell them. What
// OpenHands sessions report is unknown.
func kinds() map[string]string {
	return map[string]string{
		"claude-code": "AGENT_KIND_CLAUDE_CODE", "opencode": "AGENT_KIND_OPENCODE", "codex": "AGENT_KIND_CODEX_CLI",
		"cursor": "AGENT_KIND_CURSOR_CLI", "none": "AGENT_KIND_NONE", "hermes": "AGENT_KIND_HERMES",
		"openhands": "AGENT_KIND_OPENHANDS",
	}
}

var expansion = regexp.MustCompile(`\$\{[^}]*\}`)

func isYAML(r *http.Request) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return slices.Contains(yamlTypes, kind)
}

// parseManifest reads a manifest strictly: a key that is not known is an error.
// Errors name keys and never quote values, which may be secret.
func (s *Server) parseManifest(text []byte) (*spec, error) {
	if len(text) > maxYAML {
		return nil, errors.New("manifest is too large")
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc map[string]yaml.Node
	if err := d.Decode(&doc); err != nil {
		return nil, errors.New("manifest is not a YAML mapping")
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("manifest holds more than one document")
	}
	if _, legacy := doc["apiVersion"]; legacy {
		return nil, errors.New("manifest is in the older format, which the fake leaves out")
	}
	sp := &spec{
		idle: s.opts.Idle, env: map[string]string{}, secrets: map[string]string{}, manifest: map[string]any{},
		placeholder: expansion.Match(text),
	}
	p := parser{spec: sp, size: defaultSize}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		node := doc[key]
		if err := p.key(key, &node); err != nil {
			return nil, err
		}
	}
	if err := p.finish(s.opts); err != nil {
		return nil, err
	}
	return sp, nil
}

// parser collects what needs more than one key.
type parser struct {
	spec     *spec
	size     string
	template string
	idle     string
	keepWarm *bool
}

// manifestKeys are the keys of the top level that are known.
func manifestKeys() []string {
	return []string{
		"name", "agent", "size", "idle_timeout", "template", "keep_warm", "env", "persistent_workspace", "egress", "tools", "skills",
		"permissions", "secrets",
	}
}

// key reads one entry of the top level.
func (p *parser) key(key string, node *yaml.Node) error {
	var loose any
	var to any
	switch key {
	case "name":
		to = &p.spec.name
	case "agent":
		to = &p.spec.agent
	case "size":
		to = &p.size
	case "idle_timeout":
		to = &p.idle
	case "template":
		to = &p.template
	case "keep_warm":
		to = &p.keepWarm
	case "env":
		to = &p.spec.env
	case "persistent_workspace":
		to = new(bool)
	case "egress":
		to = new([]any)
	case "tools", "skills":
		to = new(any)
	case "permissions":
		to = new(map[string]any)
	case "secrets":
		return p.secrets(node)
	default:
		return fmt.Errorf("manifest: unknown field %q", key)
	}
	if node.Decode(to) != nil || node.Decode(&loose) != nil {
		return fmt.Errorf("manifest: field %q has the wrong type", key)
	}
	if permissions, is := to.(*map[string]any); is {
		for name := range *permissions {
			if !slices.Contains([]string{"default", "rules", "filesystem"}, name) {
				return fmt.Errorf("manifest: unknown field %q", "permissions."+name)
			}
		}
	}
	p.spec.manifest[key] = loose
	return nil
}

// secrets reads the credentials: NAME: value, or NAME: with the field value.
func (p *parser) secrets(node *yaml.Node) error {
	var entries map[string]yaml.Node
	if node.Decode(&entries) != nil {
		return errors.New(`manifest: field "secrets" has the wrong type`)
	}
	told := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		entry := entries[name]
		fields := map[string]string{}
		if entry.Kind == yaml.ScalarNode {
			fields["value"] = entry.Value
		} else if entry.Decode(&fields) != nil {
			return fmt.Errorf("manifest: field %q has the wrong type", "secrets."+name)
		}
		slot := map[string]string{"name": name, "source": "tenantSecret"}
		for field, value := range fields {
			switch field {
			case "value":
				p.spec.secrets[name] = value
			case "source", "provider":
				slot[field] = value
			default:
				return fmt.Errorf("manifest: unknown field %q", "secrets."+name+"."+field)
			}
		}
		p.spec.oauth = p.spec.oauth || slot["source"] == "oauth"
		if _, valued := fields["value"]; !valued && slot["source"] != "oauth" {
			return fmt.Errorf("manifest: secret %q has no value", name)
		}
		p.spec.slots = append(p.spec.slots, slot)
		told[name] = map[string]any{"source": slot["source"]}
	}
	p.spec.manifest["secrets"] = told
	return nil
}

// finish checks what the keys mean together.
func (p *parser) finish(opts Options) error {
	sp := p.spec
	kind, known := kinds()[sp.agent]
	if !known {
		return errors.New(`manifest: field "agent" names no agent`)
	}
	if !slices.ContainsFunc(sizeList(), func(s size) bool { return s.Slug == p.size }) {
		return errors.New(`manifest: field "size" names no size`)
	}
	sp.kind, sp.openhands = kind, sp.agent == "openhands"
	sp.served = sp.openhands && p.template == "openhands"
	sp.keepWarm = sp.openhands || sp.agent == "hermes"
	if p.keepWarm != nil {
		sp.keepWarm = *p.keepWarm
	}
	if p.idle != "" {
		idle, err := time.ParseDuration(p.idle)
		switch {
		case err != nil || idle <= 0:
			return errors.New(`manifest: field "idle_timeout" is not a positive duration`)
		case opts.MinIdle > 0 && idle < opts.MinIdle, opts.MaxIdle > 0 && idle > opts.MaxIdle:
			return errors.New(`manifest: field "idle_timeout" is out of bounds`)
		}
		sp.idle = idle
	}
	for _, reserved := range []string{"TEAM_ID", "SESSION_ID", "SANDBOX_ID"} {
		_, inEnv := sp.env[reserved]
		if _, inSecrets := sp.secrets[reserved]; inEnv || inSecrets {
			return fmt.Errorf("manifest: %s is reserved", reserved)
		}
	}
	return nil
}

// guestEnv is the environment in the sandbox.
func (sp *spec) guestEnv() map[string]string {
	env := maps.Clone(sp.env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, sp.secrets)
	return env
}

// masked is a manifest as it may be recorded: without values of secrets.
func masked(text string) string {
	var doc map[string]any
	if yaml.Unmarshal([]byte(text), &doc) != nil {
		return "(not a manifest)"
	}
	if secrets, ok := doc["secrets"].(map[string]any); ok {
		for name := range secrets {
			secrets[name] = mask
		}
	} else if _, there := doc["secrets"]; there {
		doc["secrets"] = mask
	}
	for key := range doc {
		// A slip of the pen, such as "secret", must not bring out a value.
		if !slices.Contains(manifestKeys(), key) {
			doc[key] = mask
		}
	}
	raw, err := yaml.Marshal(doc)
	if err != nil {
		return "(not a manifest)"
	}
	return strings.TrimSpace(string(raw))
}
