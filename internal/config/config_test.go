package config_test

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

var update = flag.Bool("update", false, "write generated files")

func lookup(env map[string]string) config.Lookup {
	return func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
}

// with returns env with the data directory in a fresh place.
func with(t *testing.T, env map[string]string) (config.Lookup, string) {
	t.Helper()
	dir := t.TempDir()
	full := map[string]string{"BOXKEEPER_DATA": dir}
	maps.Copy(full, env)
	return lookup(full), dir
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDefaultsAreWhole(t *testing.T) {
	t.Parallel()
	env, dir := with(t, nil)
	c, err := config.Load("", env)
	require.NoError(t, err)
	assert.Empty(t, c.File)
	assert.Equal(t, dir, c.DataDir)
	assert.Equal(t, "file://"+dir+"/exports", c.Exports)
	assert.Equal(t, box.SecretsKeep, c.ExportSecrets)
	assert.Equal(t, 8, c.Transfers)
	assert.Equal(t, "file:"+dir+"/installation.key", c.InstallationSecret)
	assert.Equal(t, config.Log{Level: "info", Format: "console"}, c.Log)
	assert.Equal(t, "127.0.0.1:9464", c.Listen)
	assert.Equal(t, []config.Provider{{Name: "local", Driver: "local", Dir: filepath.Join(dir, "boxes", "local"), Suspend: "stop"}}, c.Providers)
}

func TestDataDirectoryIsBelowTheWorkingDirectoryByDefault(t *testing.T) {
	t.Chdir(t.TempDir())
	c, err := config.Load("", nil)
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(here, ".boxkeeper"), c.DataDir)
}

func TestExampleOfTheReferenceLoads(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "x.toml"), config.Example)
	c, err := config.Load(path, lookup(nil))
	require.NoError(t, err)
	assert.Equal(t, path, c.File)
	assert.Equal(t, "/var/lib/boxkeeper", c.DataDir)
	assert.Equal(t, []string{"BOX_*"}, c.SpecEnv)
	assert.Equal(t, "freeze", c.Providers[0].Suspend)
	assert.Equal(t, []string{"/opt/openhands/bin/agent-server"}, c.Providers[0].AgentServer)
}

func TestEnvironmentWinsOverTheFile(t *testing.T) {
	t.Parallel()
	env, _ := with(t, map[string]string{
		"BOXKEEPER_LISTEN":                         "off",
		"BOXKEEPER_TRANSFERS":                      "3",
		"BOXKEEPER_PROVIDERS_BIG_ONE_SUSPEND":      "freeze",
		"BOXKEEPER_PROVIDERS_BIG_ONE_AGENT_SERVER": `["/bin/server", "--flag=a b"]`,
		"BOXKEEPER_SPECS_ENV":                      `[]`,
	})
	path := write(t, filepath.Join(t.TempDir(), "x.toml"), `
data = "/elsewhere"
listen = "127.0.0.1:1"
transfers = 5
[specs]
env = ["ANY"]
[providers.big-one]
driver = "local"
dir = "boxes"
suspend = "stop"
agent_server = ["/other"]
`)
	c, err := config.Load(path, env)
	require.NoError(t, err)
	assert.Equal(t, "off", c.Listen)
	assert.Equal(t, 3, c.Transfers)
	assert.NotEqual(t, "/elsewhere", c.DataDir)
	require.Len(t, c.Providers, 1)
	assert.Equal(t, "freeze", c.Providers[0].Suspend)
	assert.Equal(t, []string{"/bin/server", "--flag=a b"}, c.Providers[0].AgentServer)
	assert.Equal(t, filepath.Join(filepath.Dir(path), "boxes"), c.Providers[0].Dir, "a relative path in a file counts from the file")
	_, err = c.SpecSecret("env:ANY")
	assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "an empty list allows none")
}

func TestFileIsFoundInTheDataDirectory(t *testing.T) {
	t.Parallel()
	env, dir := with(t, nil)
	path := write(t, filepath.Join(dir, config.FileName), `listen = "off"`)
	c, err := config.Load("", env)
	require.NoError(t, err)
	assert.Equal(t, path, c.File)
	assert.Equal(t, "off", c.Listen)

	write(t, path, `data = "/elsewhere"`)
	_, err = config.Load("", env)
	assertField(t, err, "data")
	_, err = config.Load(path, lookup(nil))
	assert.NoError(t, err, "named, it may move the data directory")
}

func TestNamedFileMustBeThere(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.toml")
	_, err := config.Load(missing, lookup(nil))
	assertField(t, err, "config")
	_, err = config.Load("", lookup(map[string]string{"BOXKEEPER_CONFIG": missing}))
	assertField(t, err, "config")
	_, err = config.Load(filepath.Dir(missing), lookup(nil))
	assertField(t, err, "config")
}

func assertField(t *testing.T, err error, field string) {
	t.Helper()
	require.Error(t, err)
	e, ok := err.(*box.Error) //nolint:errorlint // it is returned as it is
	require.True(t, ok, "%v", err)
	assert.Equal(t, box.ClassInvalid, e.Class, "%v", err)
	assert.Equal(t, field, e.Field, "%v", err)
}

func TestBadFilesNameTheSetting(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ text, field string }{
		"a key that is not known":            {`lisen = "off"`, "lisen"},
		"a section that is not known":        {"[logs]\nlevel = \"info\"", "logs"},
		"a key below a section":              {"[log]\nlevle = \"info\"", "log.levle"}, //nolint:misspell // that is the point
		"a key of an instance":               {"[providers.local]\nsuspand = \"stop\"", "providers.local.suspand"},
		"a section below an instance":        {"[providers.local.deep]\nx = \"y\"", "providers.local.deep"},
		"a value of the wrong type":          {`listen = 9464`, "listen"},
		"an empty value":                     {`listen = ""`, "listen"},
		"a list of numbers":                  {"[providers.local]\nagent_server = [1]", "providers.local.agent_server"},
		"a text for a list":                  {"[providers.local]\nagent_server = \"a b\"", "providers.local.agent_server"},
		"an empty command":                   {"[providers.local]\nagent_server = []", "providers.local.agent_server"},
		"a command with an empty first word": {"[providers.local]\nagent_server = [\"\"]", "providers.local.agent_server"},
		"an instance with a bad name":        {"[providers.\"Big One\"]\ndriver = \"local\"", "providers.Big One"},
		"an instance without a driver":       {"[providers.other]\nsuspend = \"stop\"", "providers.other.driver"},
		"a driver that is not there":         {"[providers.x]\ndriver = \"cloud\"", "providers.x.driver"},
		"a suspend kind that is not there":   {"[providers.local]\nsuspend = \"sleep\"", "providers.local.suspend"},
		"a text where a section belongs":     {`log = "info"`, "log"},
		"a level that is not there":          {"[log]\nlevel = \"loud\"", "log.level"},
		"a format that is not there":         {"[log]\nformat = \"xml\"", "log.format"},
		"a port that is not one":             {`listen = "127.0.0.1:http"`, "listen"},
		"a port that is too large":           {`listen = "127.0.0.1:70000"`, "listen"},
		"an address with a path":             {`listen = "http://x/:80"`, "listen"},
		"exports that are no URL":            {`exports = "/var/exports"`, "exports"},
		"exports with a password":            {`exports = "s3://me:pass@bucket"`, "exports"},
		"a relative exports URL":             {`exports = "file:exports"`, "exports"},
		"transfers of which there are none":  {`transfers = 0`, "transfers"},
		"transfers that are no number":       {`transfers = "many"`, "transfers"},
		"more transfers than a worker can":   {`transfers = 1000`, "transfers"},
		"exports that are forgotten":         {`exports = "mem://"`, "exports"},
		"exports in a relative directory":    {`exports = "file://relative/x"`, "exports"},
		"exports in the root directory":      {`exports = "file:///"`, "exports"},
		"exports in an unknown store":        {`exports = "gs://bucket"`, "exports"},
		"a recipient that is none":           {"[encryption]\nrecipients = [\"hunter2\"]\nidentities = [\"env:A\"]", "encryption.recipients"},
		"an identity that is no reference":   {"[encryption]\nidentities = [\"hunter2\"]", "encryption.identities"},
		"recipients without an identity":     {"[encryption]\nrecipients = [\"age1x\"]", "encryption.identities"},
		"a secret in place of a reference":   {`installation_secret = "hunter2hunter2hunter2"`, "installation_secret"},
		"a relative file reference":          {`installation_secret = "file:key"`, "installation_secret"},
		"an allowed file that is relative":   {"[specs]\nfiles = [\"secrets\"]", "specs.files"},
		"an allowed name that is none":       {"[specs]\nenv = [\"A-B\"]", "specs.env"},
		"not TOML":                           {`listen = `, "config"},
		"a key that is there twice":          {"listen = \"off\"\nlisten = \"off\"", "config"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), row.text), lookup(nil))
			assertField(t, err, row.field)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestBadEnvironmentNamesTheVariable(t *testing.T) {
	t.Parallel()
	for variable, value := range map[string]string{
		"BOXKEEPER_LISTEN":                       "nowhere",
		"BOXKEEPER_LOG_LEVEL":                    "loud",
		"BOXKEEPER_LOG_FORMAT":                   "xml",
		"BOXKEEPER_EXPORTS":                      "exports",
		"BOXKEEPER_EXPORT_SECRETS":               "hide",
		"BOXKEEPER_TRANSFERS":                    "1.5",
		"BOXKEEPER_INSTALLATION_SECRET":          "hunter2",
		"BOXKEEPER_SPECS_ENV":                    "A,B",
		"BOXKEEPER_SPECS_FILES":                  `["relative"]`,
		"BOXKEEPER_PROVIDERS_LOCAL_SUSPEND":      "",
		"BOXKEEPER_PROVIDERS_LOCAL_DRIVER":       "cloud",
		"BOXKEEPER_PROVIDERS_LOCAL_AGENT_SERVER": "server --flag",
	} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			env, _ := with(t, map[string]string{variable: value})
			_, err := config.Load("", env)
			assertField(t, err, variable)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestInstancesNeverShareADirectory(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "x.toml"), `
[providers.a]
driver = "local"
dir = "/srv/boxes"
[providers.b]
driver = "local"
dir = "/srv/boxes/b"
`)
	_, err := config.Load(path, lookup(nil))
	assertField(t, err, "providers.b.dir")
}

func TestEveryVariableIsItsOwn(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range config.Settings() {
		names = append(names, s.Env)
		for field, text := range map[string]string{"default": s.Default, "form": s.Form, "what": s.What, "when": s.When} {
			assert.NotEmpty(t, text, "%s has no %s", s.Key, field)
		}
	}
	slices.Sort(names)
	assert.Len(t, slices.Compact(names), len(config.Settings()))
}

func TestReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "configuration.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(config.Reference()), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, config.Reference(), string(have), "docs/configuration.md is stale; run: go test ./internal/config -run TestReferenceIsCurrent -update")
	for _, s := range config.Settings() {
		assert.Contains(t, string(have), s.Env)
	}
	assert.True(t, strings.HasSuffix(string(have), "\n"))
}

func FuzzLoadNeverPanics(f *testing.F) {
	f.Add(config.Example)
	f.Add("[providers]\nlocal = 1")
	f.Add("providers.local.suspend.x = [{}]")
	f.Fuzz(func(t *testing.T, text string) {
		path := write(t, filepath.Join(t.TempDir(), "x.toml"), text)
		_, err := config.Load(path, lookup(nil))
		if err != nil && box.ClassOf(err) != box.ClassInvalid {
			t.Fatalf("class %s: %v", box.ClassOf(err), err)
		}
	})
}
