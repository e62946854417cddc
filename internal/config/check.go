package config

import (
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

var (
	envNameForm   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	envAllowForm  = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\*?|\*)$`)
	credentialRef = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	hostForm      = regexp.MustCompile(`^([A-Za-z0-9._-]*|[0-9a-fA-F:.]+(%\w+)?)$`)
)

func checkInstance(field, name string) error {
	if !box.ValidInstance(name) {
		return box.Invalidf(printable(field), "%q is not a name for an instance; use 1 to 40 of a-z, 0-9 and \"-\"", printable(name))
	}
	return nil
}

// config builds and checks the configuration.
func (v *values) config() (Config, error) {
	data, err := filepath.Abs(v.text(settingData, DefaultDataDir))
	if err != nil {
		return Config{}, box.Invalidf(settingData, "resolve the path: %v", err)
	}
	c := Config{
		DataDir:            data,
		Exports:            v.text(settingExports, fileURL(filepath.Join(data, "exports"))),
		ExportSecrets:      box.SecretsPolicy(v.text(settingSecrets, string(box.SecretsKeep))),
		InstallationSecret: v.text(settingSecret, "file:"+filepath.Join(data, keyFile)),
		Log:                Log{Level: v.text(settingLogLevel, "info"), Format: v.text(settingLogFormat, "console")},
		Listen:             v.text(settingListen, DefaultListen),
		Recipients:         v.top[settingRecipients].list,
		Identities:         v.top[settingIdentities].list,
		SpecEnv:            v.top[settingSpecEnv].list,
		SpecFiles:          v.top[settingSpecFiles].list,
	}
	if c.Transfers, err = strconv.Atoi(v.text(settingTransfers, strconv.Itoa(DefaultTransfers))); err != nil || c.Transfers < 1 || c.Transfers > maxTransfers {
		return Config{}, box.Invalidf(v.field(settingTransfers), "must be a number from 1 to %d", maxTransfers)
	}
	if err := c.ExportSecrets.Validate(v.field(settingSecrets)); err != nil {
		return Config{}, err
	}
	for _, check := range []func(Config) error{v.checkExports, v.checkEncryption, v.checkSecret, v.checkLog, v.checkListen, v.checkSpecs} {
		if err := check(c); err != nil {
			return Config{}, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.named[sectionProviders])) {
		p, err := v.instance(name, data)
		if err != nil {
			return Config{}, err
		}
		c.Providers = append(c.Providers, p)
	}
	for _, name := range slices.Sorted(maps.Keys(v.named[sectionWebhooks])) {
		w, err := v.webhook(name)
		if err != nil {
			return Config{}, err
		}
		c.Webhooks = append(c.Webhooks, w)
	}
	if len(c.Webhooks) > maxWebhooks {
		return Config{}, box.Invalidf(sectionWebhooks, "there are %d; the most is %d", len(c.Webhooks), maxWebhooks)
	}
	return c, checkDirs(c.Providers)
}

func (v *values) text(key, otherwise string) string {
	if given, ok := v.top[key]; ok {
		return given.text
	}
	return otherwise
}

// field names a setting as the person wrote it.
func (v *values) field(key string) string {
	if given, ok := v.top[key]; ok {
		return given.from
	}
	return key
}

func fileURL(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

func (v *values) checkExports(c Config) error {
	u, err := url.Parse(c.Exports)
	switch {
	case err != nil || u.Scheme == "":
		return box.Invalidf(v.field(settingExports), "is not a URL; write it like file:///var/lib/boxkeeper/exports")
	case u.Scheme == "mem":
		// A box would be deleted on the word of a store that forgets.
		return box.Invalidf(v.field(settingExports), "mem:// forgets every history when the process ends; name a store that lasts, like file:///var/lib/boxkeeper/exports")
	case u.User != nil:
		return box.Invalidf(v.field(settingExports), "holds a user or password; credentials never go here")
	case u.Scheme != "file" && u.Scheme != "s3":
		return box.Invalidf(v.field(settingExports), "scheme %.20q is not known; use file:///absolute/path or s3://BUCKET", printable(u.Scheme))
	case u.Scheme == "file" && u.Host != "" && u.Host != "localhost":
		return box.Invalidf(v.field(settingExports), "%q stands where a host does, so it is no part of the path; a file URL has three slashes, like file:///var/lib/boxkeeper/exports", printable(u.Host))
	case u.Scheme == "file" && (!filepath.IsAbs(u.Path) || filepath.Clean(u.Path) == "/"):
		return box.Invalidf(v.field(settingExports), "needs the absolute path of a directory; write it like file:///var/lib/boxkeeper/exports")
	}
	return nil
}

func (v *values) checkEncryption(c Config) error {
	for _, key := range c.Recipients {
		// One that is secret must not be repeated, here or in the output of config.
		if !strings.HasPrefix(key, "age1") {
			return box.Invalidf(v.field(settingRecipients), "holds something that is not the public key of age, which begins with age1")
		}
	}
	for _, ref := range c.Identities {
		if _, _, err := splitRef(ref); err != nil {
			return box.Invalidf(v.field(settingIdentities), "%s", refForms)
		}
	}
	if len(c.Recipients) > 0 && len(c.Identities) == 0 {
		return box.Invalidf(settingIdentities, "is needed with %s: what is written is read back before it counts", settingRecipients)
	}
	return nil
}

func (v *values) checkSecret(c Config) error {
	// The value is not repeated: it may be the secret itself.
	if _, _, err := splitRef(c.InstallationSecret); err != nil {
		return box.Invalidf(v.field(settingSecret), "%s", refForms)
	}
	return nil
}

func (v *values) checkLog(c Config) error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		return box.Invalidf(v.field(settingLogLevel), "%q is not a level; use debug, info, warn or error", printable(c.Log.Level))
	}
	if !slices.Contains([]string{"console", "json"}, c.Log.Format) {
		return box.Invalidf(v.field(settingLogFormat), "%q is not a format; use console or json", printable(c.Log.Format))
	}
	return nil
}

func (v *values) checkListen(c Config) error {
	if c.Listen == ListenOff {
		return nil
	}
	host, port, err := net.SplitHostPort(c.Listen)
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || n < 0 || n > 65535 || !hostForm.MatchString(host) {
		return box.Invalidf(v.field(settingListen), "%q is not an address; write it like %s, or \"off\"", printable(c.Listen), DefaultListen)
	}
	return nil
}

func (v *values) checkSpecs(c Config) error {
	for _, name := range c.SpecEnv {
		if !envAllowForm.MatchString(name) {
			return box.Invalidf(v.field(settingSpecEnv), "%q is not a name of an environment variable; one may end with *", printable(name))
		}
	}
	for _, path := range c.SpecFiles {
		if !filepath.IsAbs(path) {
			return box.Invalidf(v.field(settingSpecFiles), "%q is not an absolute path", printable(path))
		}
	}
	return nil
}

// instance builds one provider instance.
func (v *values) instance(name, data string) (Provider, error) {
	given := v.named[sectionProviders][name]
	field := func(setting string) string { return v.namedField(sectionProviders, name, setting) }
	p := Provider{Name: name, Driver: name, AgentServer: given[SettingAgentServer].list}
	if g, ok := given[SettingDriver]; ok {
		p.Driver = g.text
	} else if !slices.Contains(Drivers(), name) {
		return p, box.Invalidf(field(SettingDriver), "is not set; name the driver of the instance, such as driver = %q", DriverLocal)
	}
	if !slices.Contains(Drivers(), p.Driver) {
		return p, box.Invalidf(field(SettingDriver), "%q is not a driver of this program; it has %s", printable(p.Driver), strings.Join(Drivers(), ", "))
	}
	for _, setting := range slices.Sorted(maps.Keys(given)) {
		row, _, _ := settingByKey(sectionProviders + "." + name + "." + setting)
		if len(row.Drivers) > 0 && !slices.Contains(row.Drivers, p.Driver) {
			return p, box.Invalidf(field(setting), "is no setting of driver %s but of %s; take it out, or change the driver", p.Driver, strings.Join(row.Drivers, ", "))
		}
		if err := row.check(field(setting), given[setting].text); err != nil {
			return p, err
		}
		switch setting {
		case SettingDriver, SettingDir, SettingSuspend, SettingAgentServer:
		default:
			if p.Set == nil {
				p.Set = map[string]string{}
			}
			p.Set[setting] = given[setting].text
		}
	}
	if p.Driver == DriverLocal {
		p.Dir = filepath.Join(data, "boxes", name)
	}
	if g, ok := given[SettingDir]; ok {
		p.Dir = filepath.Clean(g.text)
	}
	return p, v.instanceRuns(&p, given, field)
}

// check refuses a value of an instance that is not of its kind.
func (s Setting) check(field, text string) error {
	if len(s.words) > 0 && !slices.Contains(s.words, text) {
		return box.Invalidf(field, "%q is not known; use %s", printable(text), s.Form)
	}
	switch s.kind {
	case kindSecret: // the value is not repeated: it may be the secret itself
		if _, _, err := splitRef(text); err != nil {
			return box.Invalidf(field, "%s", refForms)
		}
	case kindNumber:
		if n, err := strconv.Atoi(text); err != nil || n < 1 {
			return box.Invalidf(field, "%q is not a number from 1 on", printable(text))
		}
	case kindDuration:
		_, err := box.ParseDuration(field, text)
		return err
	case kindText, kindPath, kindList:
	}
	return nil
}

// instanceRuns checks how the boxes of an instance run and are suspended.
func (v *values) instanceRuns(p *Provider, given map[string]value, field func(string) string) error {
	if suspend, _, _ := settingByKey(p.Field(SettingSuspend)); slices.Contains(suspend.Drivers, p.Driver) {
		p.Suspend = SuspendStop
	}
	if g, ok := given[SettingSuspend]; ok {
		p.Suspend = g.text
		if p.Suspend != SuspendStop && p.Suspend != SuspendFreeze {
			return box.Invalidf(field(SettingSuspend), "%q is not a way to suspend; use %q or %q", printable(p.Suspend), SuspendStop, SuspendFreeze)
		}
	}
	if p.AgentServer != nil && len(p.AgentServer) == 0 {
		return box.Invalidf(field(SettingAgentServer), "is empty; leave it out, or give the command and its arguments")
	}
	for _, arg := range p.AgentServer {
		if strings.ContainsRune(arg, 0) || p.AgentServer[0] == "" {
			return box.Invalidf(field(SettingAgentServer), "holds an empty command or a NUL byte")
		}
	}
	return nil
}

// namedField names a setting of an instance or a webhook as the person wrote it.
func (v *values) namedField(section, name, setting string) string {
	if given, ok := v.named[section][name][setting]; ok {
		return given.from
	}
	return section + "." + name + "." + setting
}

// checkDirs refuses two instances that would share boxes: each believes that
// what it finds in its directory is its own.
func checkDirs(providers []Provider) error {
	for i, a := range providers {
		for _, b := range providers[:i] {
			if a.Dir != "" && b.Dir != "" && (within(a.Dir, b.Dir) || within(b.Dir, a.Dir)) {
				return box.Invalidf("providers."+a.Name+".dir", "%s overlaps with the directory of instance %q; give each its own", a.Dir, b.Name)
			}
		}
	}
	return nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && (rel == "." || rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)))
}
