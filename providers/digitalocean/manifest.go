package digitalocean

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	// environmentMark begins the names of our environments. A session that is made
	// from a manifest gets an environment of the session's own name, so this is not
	// how our sessions are called.
	environmentMark = "bkc-"
	digestDigits    = 16

	// keyVariable is where the agent-server looks for its key.
	keyVariable = "OH_SESSION_API_KEYS_0"

	// unwatched is the idle timeout of a box that no one is to suspend for being
	// idle: without one the service takes 15 minutes [docs 21 Sep 2026], and
	// keep_warm would make every suspend fail.
	unwatched = 24 * time.Hour

	mostManifest = 1 << 20 // the service's limit [openapi Jul 2026]
)

// manifest is an environment spec in the flat format; the service refuses keys
// that it does not know [docs 23 Sep 2026].
type manifest struct {
	Name        string            `yaml:"name"`
	Agent       string            `yaml:"agent"`
	Template    string            `yaml:"template"` // without it nothing serves port 8000
	Size        string            `yaml:"size,omitempty"`
	KeepWarm    bool              `yaml:"keep_warm"` // must be said: openhands would be kept warm, is billed for ever then, and can't be paused
	IdleTimeout string            `yaml:"idle_timeout"`
	Env         map[string]string `yaml:"env,omitempty"`
	Secrets     map[string]hidden `yaml:"secrets,omitempty"`
}

// hidden is a secret, which the service gives back to nobody.
type hidden struct {
	Value string `yaml:"value"`
}

// wanted is an environment that a box is made from.
type wanted struct {
	name     string
	manifest []byte
	hide     []string // secrets in it
}

// environmentFor writes the manifest of a box. Its name says for which box it is
// and what is in it. The box's own key is a part of that, so a secret that is easy
// to guess cannot be tried against the name.
func (d *Driver) environmentFor(req driver.CreateRequest) (wanted, error) {
	if _, err := req.Start.Variables(nil); err != nil {
		return wanted{}, err
	}
	m := manifest{
		Name:     req.Identity.Name(),
		Agent:    d.opts.AgentKind,
		Template: d.opts.Template,
		Size:     d.opts.Size,
		Env:      req.Start.Env,
		Secrets:  map[string]hidden{},
	}
	if req.Image != "" {
		if !wordForm.MatchString(req.Image) {
			return wanted{}, box.Invalidf("image", "%q is not the name of a sandbox template of DigitalOcean", req.Image)
		}
		m.Template = req.Image
	}
	m.IdleTimeout = idleText(req.Native.Idle.Std())
	var hide []string
	add := func(name string, value box.Secret) {
		if value != "" {
			hide = append(hide, value.Reveal())
		}
		m.Secrets[name] = hidden{Value: value.Reveal()}
	}
	for _, name := range slices.Sorted(maps.Keys(req.Start.Env)) {
		if taken(name) {
			return wanted{}, box.Invalidf("env."+name, "is set by DigitalOcean; leave it out")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(req.Start.SecretEnv)) {
		if taken(name) {
			return wanted{}, box.Invalidf("secrets."+name, "is set by DigitalOcean; leave it out")
		}
		add(name, req.Start.SecretEnv[name])
	}
	if req.Start.SessionKey != "" {
		add(keyVariable, req.Start.SessionKey)
	}
	text, err := yaml.Marshal(m)
	if err != nil {
		return wanted{}, box.Errorf(box.ClassInternal, "write the manifest of box %s: it cannot be encoded", m.Name)
	}
	if len(text) > mostManifest {
		return wanted{}, box.Invalidf("env", "the manifest of the box has %d bytes with its variables and secrets, and can have %d at most", len(text), mostManifest)
	}
	return wanted{
		name:     d.environmentPrefix(m.Name) + digest(string(text)),
		manifest: text,
		hide:     hide,
	}, nil
}

// environmentPrefix begins the names of the environments of one box.
func (d *Driver) environmentPrefix(name string) string {
	return environmentMark + d.installation + "-" + digest(name) + "-"
}

// taken reports whether a variable is the service's [openapi Jul 2026].
func taken(name string) bool {
	return name == "TEAM_ID" || name == "SESSION_ID" || name == "SANDBOX_ID"
}

// idleText writes the idle timeout as the docs do where it can be: 10m. Parts of
// a second are rounded up.
func idleText(idle time.Duration) string {
	if idle <= 0 {
		idle = unwatched
	}
	seconds := int64((idle + time.Second - 1) / time.Second)
	if seconds%60 == 0 {
		return strconv.FormatInt(seconds/60, 10) + "m"
	}
	return strconv.FormatInt(seconds, 10) + "s"
}
