package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/telemetry"
)

// toolHome is a home directory with a context of docker and a configuration of doctl.
func toolHome(t *testing.T, host, doctl string) string {
	t.Helper()
	home := t.TempDir()
	sum := sha256.Sum256([]byte("boxes"))
	file := filepath.Join(".config", "doctl", "config.yaml")
	if runtime.GOOS == "darwin" {
		file = filepath.Join("Library", "Application Support", "doctl", "config.yaml")
	}
	for path, text := range map[string]string{
		filepath.Join(".docker", "config.json"):                                               `{"currentContext":"boxes"}`,
		filepath.Join(".docker", "contexts", "meta", hex.EncodeToString(sum[:]), "meta.json"): `{"Endpoints":{"docker":{"Host":"` + host + `"}}}`,
		file: doctl,
	} {
		path = filepath.Join(home, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return home
}

func TestFilesOfToolsConfigureInstances(t *testing.T) {
	t.Parallel()
	const text = "[providers.local]\n[providers.engine]\ndriver = \"docker\"\n[providers.do]\ndriver = \"digitalocean\"\n"
	here := config.Installation{ID: "0a1b2c3d", Secret: box.Secret(strings.Repeat("k", 32))}
	start := func(host, doctl string) (served, off []string, log string) {
		t.Helper()
		var out bytes.Buffer
		redactor := &telemetry.Redactor{}
		logger, err := telemetry.NewLogger(&out, telemetry.LogOptions{Level: "info", Format: "json", Redactor: redactor})
		require.NoError(t, err)
		cfg := configured(t, text, map[string]string{"HOME": toolHome(t, host, doctl)})
		opened, off, err := openProviders(cfg, here, logger, redactor)
		require.NoError(t, err)
		for _, p := range cfg.Providers {
			_, err := checkSettings(cfg, p)
			require.NoError(t, err, "the command config goes on without them, too")
		}
		logger.Info("it says hunter2-of-a-team")
		return instanceNames(opened), off, out.String()
	}

	served, off, log := start("unix:///run/boxes.sock", "access-token: hunter2-of-a-team\n")
	assert.Equal(t, []string{"do", "engine", "local"}, served)
	assert.Empty(t, off)
	assert.Equal(t, 1, strings.Count(log, "the Docker engine is unix:///run/boxes.sock"), log)
	assert.Contains(t, log, `docker context \"boxes\"`)
	assert.Contains(t, log, `context \"default\" of doctl`)
	assert.Contains(t, log, "chmod 600 ", "others may read the token")
	assert.NotContains(t, log, "hunter2")

	served, off, _ = start("ssh://me:hunter2@far", "access-token: [hunter2-of-a-team\n")
	assert.Equal(t, []string{"local"}, served, "one that is broken takes no other one with it")
	require.Len(t, off, 2)
	assert.Contains(t, off[0], "provider do is off: ")
	assert.Contains(t, off[0], "config.yaml")
	assert.Contains(t, off[1], "provider engine is off: ")
	assert.Contains(t, off[1], "ssh -L")
	assert.Contains(t, off[1], "providers.engine.host")
	assert.NotContains(t, strings.Join(off, ""), "hunter2", "what is not read is not masked, so nobody may say it")
}

func TestAFarEngineOfAContextIsNamed(t *testing.T) {
	t.Parallel()
	cfg := configured(t, "[providers.engine]\ndriver = \"docker\"\n", map[string]string{"HOME": toolHome(t, "tcp://10.0.0.7:2375", "")})
	p, _ := cfg.Provider("engine")
	_, err := checkSettings(cfg, p)
	assert.Equal(t, box.ClassInvalid, box.ClassOf(err))
	require.ErrorContains(t, err, "providers.engine.publish_on")
	assert.ErrorContains(t, err, "10.0.0.7", "whose address is far is said")
}
