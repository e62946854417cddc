package config_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

func TestInstancesThatAreNamedAreAllThatThereAre(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "x.toml"), "[providers.here]\ndriver = \"local\"\n[providers.do-prod]\ndriver = \"digitalocean\"\nregion = \"mem1\"\n")
	env, _ := with(t, map[string]string{"BOXKEEPER_PROVIDERS_DOCKER_IMAGE": "an/image:1", "BOXKEEPER_PROVIDERS_DO_PROD_SIZE": "mars-1vcpu-1gb"})
	names := func(c config.Config) (out []string) {
		for _, p := range c.Providers {
			out = append(out, p.Name+" of "+p.Driver)
		}
		return out
	}

	c, err := config.Load(path, env)
	require.NoError(t, err)
	assert.Equal(t, []string{"do-prod of digitalocean", "here of local"}, names(c))
	do, _ := c.Provider("do-prod")
	assert.Equal(t, map[string]string{"region": "mem1", "size": "mars-1vcpu-1gb"}, do.Set)
	assert.Empty(t, do.Dir)
	assert.Empty(t, do.Suspend)

	c, err = config.Load(path, env, "docker", "here")
	require.NoError(t, err)
	assert.Equal(t, []string{"docker of docker", "here of local"}, names(c))
	docker, _ := c.Provider("docker")
	assert.Equal(t, "an/image:1", docker.Set["image"], "an instance that the file does not have is as the environment says")
	assert.Equal(t, "stop", docker.Suspend)

	c, err = config.Load("", env, "digitalocean")
	require.NoError(t, err)
	assert.Equal(t, []string{"digitalocean of digitalocean"}, names(c), "the default instance is one for when none is named")

	_, err = config.Load(path, env, "cloud")
	assertField(t, err, "provider")
	assert.ErrorContains(t, err, "docker")
}

func TestSettingsBelongToTheirDriver(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct{ text, field string }{
		"another driver's":      {"[providers.docker]\nregion = \"ric1\"", "providers.docker.region"},
		"a directory elsewhere": {"[providers.digitalocean]\ndir = \"/x\"", "providers.digitalocean.dir"},
		"a token as it is":      {"[providers.digitalocean]\ntoken = \"hunter2\"", "providers.digitalocean.token"},
		"a key as it is":        {"[providers.runtimeapi]\napi_key = \"hunter2\"", "providers.runtimeapi.api_key"},
		"no number":             {"[providers.docker]\nprocesses = \"many\"", "providers.docker.processes"},
		"no duration":           {"[providers.runtimeapi]\npaused_life = \"60\"", "providers.runtimeapi.paused_life"},
		"a suspend":             {"[providers.docker]\nsuspend = \"pause\"", "providers.docker.suspend"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), row.text), lookup(nil))
			assertField(t, err, row.field)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestAnEmptySettingIsSaidToBeEmpty(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"[providers.docker]\nreach = \"\"", "[providers.digitalocean]\ntoken = \"\""} {
		_, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), text), lookup(nil))
		require.ErrorContains(t, err, "is empty; leave it out for the default, or give ", text)
		require.NotContains(t, err.Error(), "in quotes", "it is: %s", text)
	}
}

func TestProviderCredentials(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		text, name string
		env        map[string]string
		want       box.Secret
	}{
		"none is needed":              {"[providers.local]", "local", nil, ""},
		"where the tools have it":     {"[providers.x]\ndriver = \"digitalocean\"", "x", map[string]string{"DIGITALOCEAN_TOKEN": "one"}, "one"},
		"where doctl has it":          {"[providers.x]\ndriver = \"digitalocean\"", "x", map[string]string{"DIGITALOCEAN_ACCESS_TOKEN": "two"}, "two"},
		"an empty one is none":        {"[providers.x]\ndriver = \"digitalocean\"", "x", map[string]string{"DIGITALOCEAN_TOKEN": "", "DIGITALOCEAN_ACCESS_TOKEN": "two"}, "two"},
		"the first one wins":          {"[providers.x]\ndriver = \"digitalocean\"", "x", map[string]string{"DIGITALOCEAN_TOKEN": "one", "DIGITALOCEAN_ACCESS_TOKEN": "two"}, "one"},
		"where the setting says":      {"[providers.x]\ndriver = \"digitalocean\"\ntoken = \"env:MINE\"", "x", map[string]string{"DIGITALOCEAN_TOKEN": "one", "MINE": "three"}, "three"},
		"a runtime-api's":             {"[providers.x]\ndriver = \"runtimeapi\"", "x", map[string]string{"RUNTIME_API_KEY": "four"}, "four"},
		"it is not asked for another": {"[providers.local]", "local", map[string]string{"DIGITALOCEAN_TOKEN": "one"}, ""},
	} {
		c, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), row.text), lookup(row.env))
		require.NoError(t, err, what)
		p, _ := c.Provider(row.name)
		got, err := c.ProviderCredentials(p)
		require.NoError(t, err, what)
		assert.Equal(t, row.want.Reveal(), got.Secret.Reveal(), what)
	}
	c, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), "[providers.x]\ndriver = \"digitalocean\"\ntoken = \"env:MINE\""), lookup(map[string]string{"DIGITALOCEAN_TOKEN": "one"}))
	require.NoError(t, err)
	p, _ := c.Provider("x")
	_, err = c.ProviderCredentials(p)
	assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "what is set and missing is not replaced by another team's")
	require.ErrorContains(t, err, "providers.x.token")
	assert.ErrorContains(t, err, "env:MINE")
}

func TestNoSpecNamesAProvidersCredentials(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DIGITALOCEAN_TOKEN": "one", "DIGITALOCEAN_ACCESS_TOKEN": "one", "RUNTIME_API_KEY": "one", "MINE": "one", "OTHER": "one"}
	c, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), "[providers.x]\ndriver = \"digitalocean\"\ntoken = \"env:MINE\""), lookup(env))
	require.NoError(t, err)
	for name := range env {
		_, err := c.SpecSecret("env:" + name)
		assert.Equal(t, name != "OTHER", box.ClassOf(err) == box.ClassFailedPrecondition, "%s: %v", name, err)
	}
}

func TestNoSpecReadsWhatOpensAnEngine(t *testing.T) {
	t.Parallel()
	home, certs, store, xdg := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	doctl := filepath.Join(xdg, "doctl")
	if runtime.GOOS == "darwin" {
		doctl = filepath.Join(home, "Library", "Application Support", "doctl")
	}
	for _, path := range []string{
		filepath.Join(home, ".docker", "config.json"), filepath.Join(certs, "key.pem"), filepath.Join(store, "contexts", "tls", "x", "docker", "key.pem"),
		filepath.Join(doctl, "config.yaml"), filepath.Join(home, "other"),
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		write(t, path, "a-value")
		c, err := config.Load("", lookup(map[string]string{"HOME": home, "DOCKER_CERT_PATH": certs, "DOCKER_CONFIG": store, "XDG_CONFIG_HOME": xdg, "BOXKEEPER_DATA": t.TempDir()}))
		require.NoError(t, err)
		_, err = c.SpecSecret("file:" + path)
		assert.Equal(t, filepath.Base(path) != "other", box.ClassOf(err) == box.ClassFailedPrecondition, "%s: %v", path, err)
	}
}

func TestTheEnvironmentAloneAddsAnInstance(t *testing.T) {
	t.Parallel()
	names := func(c config.Config) (out []string) {
		for _, p := range c.Providers {
			out = append(out, p.Name+" of "+p.Driver)
		}
		return out
	}
	env, _ := with(t, map[string]string{
		"BOXKEEPER_PROVIDERS_DOCKER_DRIVER": "docker", "BOXKEEPER_PROVIDERS_DOCKER_IMAGE": "registry.example/box:1",
		"BOXKEEPER_PROVIDERS_OTHER_DRIVER": "docker",
	})
	c, err := config.Load("", env)
	require.NoError(t, err)
	require.Equal(t, []string{"docker of docker"}, names(c), "one that is named is not beside the default, and a name that is no driver's cannot be asked for")
	require.Equal(t, "registry.example/box:1", c.Providers[0].Set[config.SettingImage])

	path := write(t, filepath.Join(t.TempDir(), "x.toml"), "[providers.local]\n")
	c, err = config.Load(path, env)
	require.NoError(t, err)
	require.Equal(t, []string{"docker of docker", "local of local"}, names(c), "beside those of the file")

	c, err = config.Load(path, env, "local")
	require.NoError(t, err)
	require.Equal(t, []string{"local of local"}, names(c), "who names instances gets those")

	env, _ = with(t, map[string]string{"BOXKEEPER_PROVIDERS_DOCKER_DRIVER": ""})
	_, err = config.Load("", env)
	assertField(t, err, "BOXKEEPER_PROVIDERS_DOCKER_DRIVER")
}
