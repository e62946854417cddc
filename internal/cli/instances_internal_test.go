package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/telemetry"
	"github.com/openhands/boxkeeper/providers/all"
	"github.com/openhands/boxkeeper/providers/docker"
)

// configured is the configuration of a text and an environment, in a directory of
// its own.
func configured(t *testing.T, text string, env map[string]string) config.Config {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "x.toml")
	require.NoError(t, os.WriteFile(path, []byte("data = \"data\"\n"+text), 0o600))
	cfg, err := config.Load(path, func(name string) (string, bool) { value, ok := env[name]; return value, ok })
	require.NoError(t, err)
	return cfg
}

func TestEveryDriverCanBeConfigured(t *testing.T) {
	t.Parallel()
	assert.Equal(t, config.Drivers(), all.Names(), "what the configuration knows is what there is")
	for _, name := range config.Drivers() {
		p, ok := configured(t, "[providers."+name+"]", nil).Provider(name)
		require.True(t, ok)
		settings, err := rowSettings(p)
		require.NoError(t, err)
		assert.Equal(t, name, all.Row(p.Driver, settings).Driver)
		assert.Empty(t, all.Row(p.Driver, settings).Missing())
	}
}

func TestSettingsReachTheDriver(t *testing.T) {
	t.Parallel()
	p, _ := configured(t, `
[providers.here]
driver = "docker"
host = "tcp://10.0.0.7:2376"
boxd = "/opt/boxkeeper"
agent_server = ["/bin/agent", "--flag"]
image = "an/image:1"
pull = "never"
network = "boxes"
publish_on = "10.0.0.7"
reach = "docker.internal"
ports = "20000-20999"
suspend = "freeze"
memory = "4GiB"
cpus = "1.5"
processes = 4096
`, nil).Provider("here")
	got, err := rowSettings(p)
	require.NoError(t, err)
	assert.Equal(t, docker.Options{
		Host: "tcp://10.0.0.7:2376", Boxd: []string{"/opt/boxkeeper", "boxd"}, AgentServer: []string{"/bin/agent", "--flag"},
		DefaultImage: "an/image:1", Pull: docker.PullNever, Network: "boxes", PublishOn: "10.0.0.7", Reach: "docker.internal",
		Ports: docker.Ports{First: 20000, Last: 20999}, Suspend: docker.SuspendPause,
		Limits: docker.Limits{MemoryBytes: 4 << 30, CPUs: 1.5, Processes: 4096},
	}, got.Docker)

	p, _ = configured(t, `
[providers.evals]
driver = "runtimeapi"
url = "https://runtime.example"
account = "evals"
resource_factor = 2
idle_reaper = "never"
paused_life = "60d"
max_run = "6h"
lists_failed = "yes"
plain_http = "allow"
`, nil).Provider("evals")
	got, err = rowSettings(p)
	require.NoError(t, err)
	far := got.RuntimeAPI
	assert.Equal(t, "https://runtime.example evals", far.URL+" "+far.Account)
	assert.Equal(t, 2, far.ResourceFactor)
	assert.Equal(t, []box.Duration{box.Never, box.Duration(60 * 24 * time.Hour), box.Duration(6 * time.Hour)}, []box.Duration{far.IdleReaper, far.PausedLife, far.MaxRun})
	assert.True(t, far.ListsFailed && far.AllowHTTP)
}

func TestBadSettingsAreNamed(t *testing.T) {
	t.Parallel()
	for setting, value := range map[string]string{
		"docker.ports": `"9-1"`, "docker.memory": `"lots"`, "docker.cpus": `"NaN"`, "docker.publish_on": `"nowhere"`, "docker.pull": `"sometimes"`, "docker.host": `"ssh://x"`,
		"runtimeapi.url": `"ftp://x"`, "runtimeapi.agent_server": `["agent-server"]`, "runtimeapi.resource_factor": "3", "runtimeapi.runtime_class": `"A b"`, "runtimeapi.account": `"A B"`,
		"digitalocean.region": `"NOT A SLUG"`, "digitalocean.size": `"a b"`, "digitalocean.template": `"a b"`,
	} {
		name, key, _ := strings.Cut(setting, ".")
		more := ""
		if name == "runtimeapi" {
			more = "\npaused_life = \"60d\""
			if key != "url" {
				more += "\nurl = \"https://runtime.example\""
			}
		}
		cfg := configured(t, "[providers."+name+"]\n"+key+" = "+value+more, map[string]string{"DIGITALOCEAN_TOKEN": "hunter2", "RUNTIME_API_KEY": "hunter2"})
		_, _, err := openProviders(cfg, config.Installation{ID: "0a1b2c3d", Secret: box.Secret(strings.Repeat("k", 32))}, zap.NewNop(), &telemetry.Redactor{})
		assert.Equal(t, box.ClassInvalid, box.ClassOf(err), "%s: %v", setting, err)
		require.ErrorContains(t, err, "providers."+setting+": ")
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestAnInstanceWithoutCredentialsIsOff(t *testing.T) {
	t.Parallel()
	here := config.Installation{ID: "0a1b2c3d", Secret: box.Secret(strings.Repeat("k", 32))}
	const text = "[providers.local]\n[providers.do-prod]\ndriver = \"digitalocean\"\n[providers.evals]\ndriver = \"runtimeapi\"\nurl = \"https://runtime.example\"\npaused_life = \"60d\"\n"
	opened, off, err := openProviders(configured(t, text, map[string]string{"RUNTIME_API_KEY": "hunter2"}), here, zap.NewNop(), &telemetry.Redactor{})
	require.NoError(t, err)
	assert.Equal(t, []string{"evals", "local"}, instanceNames(opened))
	require.Len(t, off, 1)
	assert.Equal(t, "provider do-prod is off: it has no credentials: nothing is at env:DIGITALOCEAN_TOKEN or env:DIGITALOCEAN_ACCESS_TOKEN; set it, or providers.do-prod.token to where they are", off[0])

	_, _, err = openProviders(configured(t, "[providers.do-prod]\ndriver = \"digitalocean\"\n", nil), here, zap.NewNop(), &telemetry.Redactor{})
	assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "there is nothing left to serve")
	require.ErrorContains(t, err, "providers.do-prod.token")

	// What is masked in the log is what was resolved.
	var out bytes.Buffer
	redactor := &telemetry.Redactor{}
	logger, err := telemetry.NewLogger(&out, telemetry.LogOptions{Level: "info", Format: "json", Redactor: redactor})
	require.NoError(t, err)
	_, _, err = openProviders(configured(t, "[providers.do-prod]\ndriver = \"digitalocean\"\n", map[string]string{"DIGITALOCEAN_TOKEN": "a-token-of-a-team"}), here, logger, redactor)
	require.NoError(t, err)
	logger.Info("it says a-token-of-a-team")
	assert.NotContains(t, out.String(), "a-token-of-a-team")
	assert.Contains(t, out.String(), "it says")
}

func TestBoxdOfContainersIsLookedAtBeforeABoxIsMade(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "boxd")
	require.NoError(t, os.WriteFile(text, []byte("#!/bin/sh\n"), 0o700))
	problems := ProgramProblems(configured(t, "[providers.docker]\nboxd = \""+text+"\"\n", nil))
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0], "boxd of docker: no box can be made")
	assert.Contains(t, problems[0], "CGO_ENABLED=0")
	assert.Contains(t, problems[0], "providers.docker.boxd")
}
