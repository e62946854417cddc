package cli_test

import (
	"os"
	"path/filepath"
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
