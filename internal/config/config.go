package config

import (
	"os"
	"path/filepath"

	"github.com/openhands/boxkeeper/box"
)

const (
	// DefaultDataDir is the data directory when none is named, below the
	// working directory.
	DefaultDataDir = ".boxkeeper"
	// DefaultListen is where a worker serves health and metrics.
	DefaultListen = "127.0.0.1:9464"
	// DefaultTransfers is how many histories a worker moves at a time.
	DefaultTransfers = 8
	maxTransfers     = 64
	// ListenOff is the listen setting that serves nothing.
	ListenOff = "off"

	// SuspendStop suspends a box by the end of its processes.
	SuspendStop = "stop"
	// SuspendFreeze suspends a box whose processes stay in memory.
	SuspendFreeze = "freeze"

	// FileName is the name of the configuration file that is read from the data
	// directory when no other is named.
	FileName = "boxkeeper.toml"

	keyFile         = "installation.key"
	idFile          = "installation.id"
	credentialsDir  = "credentials"
	defaultProvider = "local"
)

// Config is everything that can be set, with defaults filled in and paths
// absolute.
type Config struct {
	// File is the configuration file that was read; empty when there was none.
	File string
	// DataDir is where this machine keeps what it writes.
	DataDir string
	// Exports is the URL of the store of exports and ledgers.
	Exports string
	// Recipients are the public keys of age that exports and ledgers are
	// encrypted for, and Identities references to the secret ones that open them.
	Recipients []string
	Identities []string
	// ExportSecrets is what is done about secrets in a history where the policy of
	// a box says nothing.
	ExportSecrets box.SecretsPolicy
	// Transfers is how many histories a worker moves at a time.
	Transfers int
	// InstallationSecret is a reference to the secret that the keys of boxes
	// are derived from.
	InstallationSecret string
	Log                Log
	// Listen is where health and metrics are served, or "off".
	Listen string
	// SpecEnv and SpecFiles, when set, are all that specs may refer to by env:
	// and file:. SpecEnv holds names, or prefixes that end with "*"; SpecFiles
	// holds absolute files or directories.
	SpecEnv   []string
	SpecFiles []string
	// Providers are the configured instances, sorted by name.
	Providers []Provider
	// Webhooks are who is told of notices and events, sorted by name.
	Webhooks []Webhook

	lookup Lookup
}

// Lookup finds an environment variable.
type Lookup = func(name string) (string, bool)

// Log says what is logged and how.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // console or json
}

// Provider is one configured instance of a provider.
type Provider struct {
	Name   string
	Driver string
	// Dir is where the boxes of a local instance are; empty for other drivers.
	Dir string
	// Suspend is how the instance suspends, where there is a choice: "stop" or
	// "freeze".
	Suspend string
	// AgentServer is the command of the agent-server in a box; empty runs the
	// built-in server, which serves histories only.
	AgentServer []string
	// Set are the further settings that were given, by their names. They hold
	// references to secrets, never a secret.
	Set map[string]string
}

// Field names a setting of the instance, for an error.
func (p Provider) Field(setting string) string {
	return sectionProviders + "." + p.Name + "." + setting
}

// Load reads file, then the environment, which wins. An empty file means the
// one that BOXKEEPER_CONFIG names, else boxkeeper.toml in the data directory if
// it is there. Relative paths in a file count from the file's directory, others
// from the working directory. When instances are named, those are all that the
// configuration has: one that the file does not describe is of the driver of
// that name, with what the environment says. Every error is Invalid and names
// the setting.
func Load(file string, env Lookup, instances ...string) (Config, error) {
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	values := newValues()
	if err := values.fromEnv(env); err != nil {
		return Config{}, err
	}
	path, found, err := locate(file, env, values)
	if err != nil {
		return Config{}, err
	}
	if path != "" {
		if err := values.fromFile(path, found); err != nil {
			return Config{}, err
		}
	}
	values.instancesFromEnv(env)
	if err := values.only(instances); err != nil {
		return Config{}, err
	}
	// Names of instances and webhooks are known now, so that their variables can be asked
	// for.
	if err := values.namedFromEnv(env); err != nil {
		return Config{}, err
	}
	c, err := values.config()
	if err != nil {
		return Config{}, err
	}
	c.File, c.lookup = path, env
	return c, nil
}

// locate returns the configuration file to read, if any, and whether it was
// found in the data directory instead of being named.
func locate(file string, env Lookup, values *values) (path string, found bool, err error) {
	field := "config"
	if file == "" {
		if name, ok := env("BOXKEEPER_CONFIG"); ok && name != "" {
			file, field = name, "BOXKEEPER_CONFIG"
		}
	}
	if file == "" {
		dir := DefaultDataDir
		if v, ok := values.top[settingData]; ok {
			dir = v.text
		}
		file = filepath.Join(dir, FileName)
		if _, err := os.Lstat(file); err != nil {
			return "", false, nil //nolint:nilerr // there is no such file, or no way to it: defaults apply
		}
		found = true
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", false, box.Invalidf(field, "resolve the path of the configuration file: %v", err)
	}
	return abs, found, nil
}

// Provider returns the instance of that name.
func (c Config) Provider(name string) (Provider, bool) {
	for _, p := range c.Providers {
		if p.Name == name {
			return p, true
		}
	}
	return Provider{}, false
}
