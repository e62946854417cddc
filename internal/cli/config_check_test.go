package cli_test

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigRefusesWhatAWorkerWouldNotStartWith(t *testing.T) {
	t.Parallel()
	for field, settings := range map[string]string{
		"providers.far.url":         "driver = \"runtimeapi\"\nurl = \"http://far.example\"\nimage = \"x\"\n",
		"providers.far.account":     "driver = \"runtimeapi\"\nurl = \"https://far.example\"\nimage = \"x\"\naccount = \"Not Allowed\"\n",
		"providers.far.region":      "driver = \"digitalocean\"\nregion = \"no region\"\n",
		"providers.far.size":        "driver = \"digitalocean\"\nsize = \"no size\"\n",
		"providers.far.host":        "driver = \"docker\"\nhost = \"nowhere\"\n",
		"providers.far.network":     "driver = \"docker\"\nhost = \"unix:///nowhere.sock\"\nnetwork = \"host\"\n",
		"providers.far.memory":      "driver = \"docker\"\nhost = \"unix:///nowhere.sock\"\nmemory = \"much\"\n",
		"providers.far.idle_reaper": "driver = \"runtimeapi\"\nurl = \"https://far.example\"\nimage = \"x\"\nidle_reaper = \"soon\"\n",
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "boxkeeper.toml"), []byte("[providers.far]\n"+settings), 0o600))
			got := runIn(t, nil, dir, "", "config")
			assert.Equal(t, 2, got.code, got.stdout)
			assert.Contains(t, got.stderr, field)
		})
	}
	for name, settings := range map[string]string{
		"one that is off":             "driver = \"digitalocean\"\nregion = \"ric1\"\n",
		"one that nobody answers for": "driver = \"docker\"\nhost = \"unix:///nowhere.sock\"\nimage = \"x\"\n",
		"one of this machine":         "driver = \"local\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "boxkeeper.toml"), []byte("[providers.far]\n"+settings), 0o600))
			got := runIn(t, nil, dir, "", "config")
			require.Equal(t, 0, got.code, got.stderr)
			there, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, there, 1, "it makes nothing")
		})
	}
}

// What only the start of a worker would find wrong is found before, and nothing
// is made for it.
func TestConfigLooksAtWhatSettingsName(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settings   string
		flags      []string
		file, text string
		mode       os.FileMode
		field      string
		says       string
	}{
		"a data directory that is a file": {
			flags: []string{"--data", "DIR/taken/data"}, field: "data", says: "something above it is a file",
			file: "taken", text: "",
		},
		"an export store that is a file": {
			settings: "exports = \"file://DIR/taken\"\n", field: "exports", says: "is a file; name another",
			file: "taken", text: "",
		},
		"an export store with a query": {
			settings: "exports = \"file://DIR/store?region=x\"\n", field: "exports", says: "takes no query",
		},
		"a bucket with a word that is none": {
			settings: "exports = \"s3://bucket?nonsense=1\"\n", field: "exports", says: "nonsense",
		},
		"boxes where a file is": {
			settings: "[providers.local]\ndir = \"DIR/taken\"\n", field: "providers.local.dir", says: "is a file",
			file: "taken", text: "",
		},
		"an installation secret that is not there": {
			settings: "installation_secret = \"file:DIR/none\"\n", field: "installation_secret", says: "there is no file",
		},
		"one that is too short": {
			settings: "installation_secret = \"file:DIR/short\"\n", field: "installation_secret", says: "holds 5 bytes",
			file: "short", text: "short",
		},
		"one that was lost": {
			field: "installation_secret", says: "restore it from a backup",
			file: "installation.id", text: "0a1b2c3d\n",
		},
		"an identity that is not there": {
			settings: "[encryption]\nidentities = [\"file:DIR/none\"]\n", field: "encryption.identities", says: "there is no file",
		},
		"an identity that is none": {
			settings: "[encryption]\nidentities = [\"file:DIR/key\"]\n", field: "encryption.identities", says: "AGE-SECRET-KEY-",
			file: "key", text: "hunter2",
		},
		"credentials that others may read": {
			settings: "[providers.far]\ndriver = \"digitalocean\"\ntoken = \"credential:do\"\n", field: "providers.far: ", says: "chmod 600",
			file: "credentials/do", text: "hunter2", mode: 0o644,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if tc.file != "" {
				put(t, filepath.Join(dir, tc.file), tc.text, cmp.Or(tc.mode, 0o600))
			}
			put(t, filepath.Join(dir, "boxkeeper.toml"), strings.ReplaceAll(tc.settings, "DIR", dir), 0o600)
			before := listed(t, dir)
			args := []string{"config", "--config", filepath.Join(dir, "boxkeeper.toml")}
			for _, flag := range tc.flags {
				args = append(args, strings.ReplaceAll(flag, "DIR", dir))
			}
			got := runIn(t, nil, dir, "", args...)
			assert.Equal(t, 2, got.code, got.stdout)
			assert.Contains(t, got.stderr, tc.field)
			assert.Contains(t, got.stderr, tc.says)
			assert.NotContains(t, got.stderr, "hunter2")
			assert.Equal(t, before, listed(t, dir), "it makes nothing")
		})
	}
}

func TestConfigNotesWhatAWorkerWarnsOf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "boxkeeper.toml"), `
[providers.prod]
driver = "digitalocean"
[providers.local]
agent_server = ["`+dir+`/no-agent-server"]
[webhooks.ops]
url = "https://canvas.example/hooks"
keys = ["credential:hook"]
`, 0o600)
	got := runIn(t, nil, dir, "", "config")
	require.Equal(t, 0, got.code, got.stderr)
	for _, says := range []string{
		"Note: provider prod is off: it has no credentials", "Note: webhooks.ops.keys: secret credential:hook: there is no file", "providers.local.agent_server",
	} {
		assert.Contains(t, got.stderr, says)
	}
	if os.Geteuid() != 0 { // who is root may write everywhere
		require.NoError(t, os.Chmod(dir, 0o500))
		t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		got = runIn(t, nil, dir, "", "config")
		assert.Equal(t, 2, got.code)
		assert.Contains(t, got.stderr, "may not write in "+dir)
	}
}

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), mode))
}

// listed names everything below a directory.
func listed(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		out = append(out, path)
		return err
	}))
	return out
}
