package config_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

// doctlHome is a home directory, and where doctl's configuration is in it.
func doctlHome(t *testing.T) (home, file string) {
	t.Helper()
	home = t.TempDir()
	file = filepath.Join(home, ".config", "doctl", "config.yaml")
	if runtime.GOOS == "darwin" {
		file = filepath.Join(home, "Library", "Application Support", "doctl", "config.yaml")
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	return home, file
}

func digitalOcean(t *testing.T, settings string, env map[string]string) (config.Config, config.Provider) {
	t.Helper()
	c, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), "[providers.x]\ndriver = \"digitalocean\"\n"+settings), lookup(env))
	require.NoError(t, err)
	p, _ := c.Provider("x")
	return c, p
}

func TestDoctlGivesTheToken(t *testing.T) {
	t.Parallel()
	const two = "access-token: dop_v1_one\ncontext: default\nauth-contexts:\n  default: \"true\"\n  work: dop_v1_two\noutput: text\n"
	for what, row := range map[string]struct{ text, context, want string }{
		"without a context":        {"access-token: dop_v1_one\n", "", "dop_v1_one"},
		"the default context":      {two, "", "dop_v1_one"},
		"the current context":      {strings.Replace(two, "context: default", "context: work", 1), "", "dop_v1_two"},
		"the variable wins":        {two, "work", "dop_v1_two"},
		"a variable of any case":   {two, "Work", "dop_v1_two"},
		"default by the variable":  {strings.Replace(two, "context: default", "context: work", 1), "default", "dop_v1_one"},
		"a key of any case":        {"Access-Token: dop_v1_one\n", "", "dop_v1_one"},
		"one that looks a number":  {"access-token: 0123456789012345\n", "", "0123456789012345"},
		"an empty current context": {"access-token: dop_v1_one\ncontext: \"\"\n", "", "dop_v1_one"},
		"an alias":                 {"a: &a dop_v1_one\naccess-token: *a\n", "", "dop_v1_one"},
	} {
		home, file := doctlHome(t)
		write(t, file, row.text)
		require.NoError(t, os.Chmod(file, 0o600))
		c, p := digitalOcean(t, "", map[string]string{"HOME": home, "DIGITALOCEAN_CONTEXT": row.context})
		got, err := c.ProviderCredentials(p)
		require.NoError(t, err, what)
		assert.Equal(t, row.want, got.Secret.Reveal(), what)
		assert.Contains(t, got.From, file)
		assert.NotContains(t, got.From, row.want)
		assert.Empty(t, got.Warning, what)
		assert.Empty(t, c.LacksCredentials(p))
	}
}

func TestDoctlComesLast(t *testing.T) {
	t.Parallel()
	home, file := doctlHome(t)
	write(t, file, "access-token: of-doctl\n")
	require.NoError(t, os.Chmod(file, 0o640))
	c, p := digitalOcean(t, "", map[string]string{"HOME": home, "DIGITALOCEAN_ACCESS_TOKEN": "of-the-environment"})
	got, err := c.ProviderCredentials(p)
	require.NoError(t, err)
	assert.Equal(t, config.Credentials{Secret: "of-the-environment"}, got)

	c, p = digitalOcean(t, "token = \"env:MINE\"", map[string]string{"HOME": home})
	_, err = c.ProviderCredentials(p)
	assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "what is set and missing is not replaced by another team's")
	assert.NotEmpty(t, c.LacksCredentials(p))

	c, p = digitalOcean(t, "", map[string]string{"HOME": home})
	got, err = c.ProviderCredentials(p)
	require.NoError(t, err)
	assert.Contains(t, got.Warning, "chmod 600 ", "a group may read it")
	assert.NotContains(t, got.Warning, "of-doctl")

	other, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), "[providers.x]\ndriver = \"runtimeapi\""), lookup(map[string]string{"HOME": home}))
	require.NoError(t, err)
	p, _ = other.Provider("x")
	_, err = other.ProviderCredentials(p)
	assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "it is of no other provider")

	if runtime.GOOS != "darwin" {
		xdg := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(xdg, "doctl"), 0o700))
		write(t, filepath.Join(xdg, "doctl", "config.yaml"), "access-token: of-xdg\n")
		c, p = digitalOcean(t, "", map[string]string{"HOME": home, "XDG_CONFIG_HOME": xdg})
		got, err = c.ProviderCredentials(p)
		require.NoError(t, err)
		assert.Equal(t, "of-xdg", got.Secret.Reveal())
		c, p = digitalOcean(t, "", map[string]string{"HOME": "/dev/null"})
		_, err = c.ProviderCredentials(p)
		assert.Equal(t, box.ClassNotFound, box.ClassOf(err))
		require.ErrorContains(t, err, "doctl has no configuration at /dev/null/.config/doctl/config.yaml")
	}
}

func TestABrokenDoctlIsNamedAndNotRepeated(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for what, row := range map[string]struct{ text, context, says string }{
		"no yaml":              {"access-token: [" + secret, "", "not YAML"},
		"an unknown anchor":    {"access-token: *" + secret, "", "not YAML"},
		"no map":               {"- " + secret, "", "no map"},
		"nothing":              {"", "", "no map"},
		"a list":               {"access-token: [" + secret + "]", "", "access-token: "},
		"a boolean":            {"access-token: true\nx: " + secret, "", "access-token: "},
		"null":                 {"access-token: null\nx: " + secret, "", "access-token: "},
		"twice":                {"access-token: " + secret + "\nACCESS-TOKEN: x", "", "access-token: "},
		"no token":             {"output: " + secret, "", "access-token: "},
		"two lines":            {"access-token: |\n  " + secret + "\n  x", "", "access-token: "},
		"a wrong context":      {"context: [" + secret + "]\naccess-token: x", "", "config.yaml, context: "},
		"no contexts":          {"access-token: " + secret, "work", "auth-contexts: "},
		"contexts of a kind":   {"auth-contexts: " + secret, "work", "auth-contexts: "},
		"another context":      {"auth-contexts: {home: " + secret + "}", "work", "auth-contexts: "},
		"a context's wrong":    {"auth-contexts: {work: {x: " + secret + "}}", "work", "auth-contexts: "},
		"an alias of itself":   {"auth-contexts: &a {work: *a, x: " + secret + "}", "work", "auth-contexts: "},
		"huge":                 {"access-token: " + secret + "\nx: " + strings.Repeat("y", 1<<20), "", "larger than"},
		"deep":                 {"access-token: " + strings.Repeat("[", 100000) + secret, "", "not YAML"},
		"a token in its place": {secret, "", "no map"},
	} {
		home, file := doctlHome(t)
		write(t, file, row.text)
		c, p := digitalOcean(t, "", map[string]string{"HOME": home, "DIGITALOCEAN_CONTEXT": row.context})
		_, err := c.ProviderCredentials(p)
		assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "%s: %v", what, err)
		require.ErrorContains(t, err, row.says, what)
		require.ErrorContains(t, err, file, what)
		require.ErrorContains(t, err, "providers.x.token", what)
		assert.NotContains(t, err.Error(), secret, what)
	}
	for what, make := range map[string]func(file string) error{
		"a loop":      func(file string) error { return os.Symlink(file, file) },
		"a directory": func(file string) error { return os.Mkdir(file, 0o700) },
		"a pipe":      func(file string) error { return syscall.Mkfifo(file, 0o600) },
		"a device":    func(file string) error { return os.Symlink("/dev/zero", file) },
	} {
		home, file := doctlHome(t)
		require.NoError(t, make(file))
		c, p := digitalOcean(t, "", map[string]string{"HOME": home})
		_, err := c.ProviderCredentials(p)
		assert.Equal(t, box.ClassNotFound, box.ClassOf(err), "%s: %v", what, err)
		require.ErrorContains(t, err, file+": it has no credentials", what)
	}
}

func TestWhoOnlyAsksLeavesDoctlClosed(t *testing.T) {
	t.Parallel()
	home, file := doctlHome(t)
	c, p := digitalOcean(t, "", map[string]string{"HOME": home})
	assert.NotEmpty(t, c.LacksCredentials(p))
	write(t, file, "not: [yaml")
	assert.Empty(t, c.LacksCredentials(p), "it is there; what is in it is for the worker")
}

func FuzzDoctl(f *testing.F) {
	f.Add("access-token: hunter2\ncontext: work\nauth-contexts: {work: hunter2}", "work")
	f.Add("a: &a [*a]\naccess-token: *a", "")
	home := f.TempDir()
	file := filepath.Join(home, ".config", "doctl", "config.yaml")
	if runtime.GOOS == "darwin" {
		file = filepath.Join(home, "Library", "Application Support", "doctl", "config.yaml")
	}
	require.NoError(f, os.MkdirAll(filepath.Dir(file), 0o700))
	f.Fuzz(func(t *testing.T, text, context string) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		c, p := digitalOcean(t, "", map[string]string{"HOME": home, "DIGITALOCEAN_CONTEXT": context})
		got, err := c.ProviderCredentials(p)
		if err != nil {
			assert.Equal(t, box.ClassNotFound, box.ClassOf(err))
			return
		}
		assert.NotEmpty(t, got.Secret.Reveal())
		assert.NotContains(t, got.Secret.Reveal(), "\n")
	})
}
