package config_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
)

func TestWebhooks(t *testing.T) {
	t.Parallel()
	env, _ := with(t, map[string]string{
		"BOXKEEPER_WEBHOOKS_CANVAS_KEYS": `["env:NEW", "env:OLD"]`,
		"BOXKEEPER_WEBHOOKS_DEFAULT_URL": "http://[::1]:9000/", "BOXKEEPER_WEBHOOKS_DEFAULT_KEYS": `["env:KEY"]`,
	})
	path := write(t, filepath.Join(t.TempDir(), "x.toml"), `
[webhooks.canvas]
url = "https://canvas.example/hooks?token=hunter2"
keys = ["credential:a"]
events = ["expiry-notice", "box-archived"]
[webhooks.far]
url = "http://far.example/"
keys = ["credential:a"]
plain_http = "allow"
`)
	c, err := config.Load(path, env)
	require.NoError(t, err)
	require.Equal(t, []config.Webhook{
		{
			Name: "canvas", URL: "https://canvas.example/hooks?token=hunter2", Keys: []string{"env:NEW", "env:OLD"}, PlainHTTP: "refuse",
			Events: []box.EventKind{box.EventExpiryNotice, box.EventBoxArchived},
		},
		{Name: "default", URL: "http://[::1]:9000/", Keys: []string{"env:KEY"}, PlainHTTP: "refuse"},
		{Name: "far", URL: "http://far.example/", Keys: []string{"credential:a"}, PlainHTTP: "allow"},
	}, c.Webhooks)
	assert.Equal(t, "https://canvas.example/hooks", c.Webhooks[0].Address())

	none, _ := with(t, nil)
	c, err = config.Load("", none)
	require.NoError(t, err)
	require.Empty(t, c.Webhooks)
}

func TestBadWebhooksNameTheSetting(t *testing.T) {
	t.Parallel()
	const ok = "url = \"https://x.example/\"\nkeys = [\"env:KEY\"]\n"
	for name, row := range map[string]struct{ text, field string }{
		"no URL":                           {`keys = ["env:KEY"]`, "url"},
		"no key":                           {`url = "https://x.example/"`, "keys"},
		"a list with no key":               {"url = \"https://x.example/\"\nkeys = []", "keys"},
		"three keys":                       {"url = \"https://x.example/\"\nkeys = [\"env:A\", \"env:B\", \"env:C\"]", "keys"},
		"a key in place of a reference":    {"url = \"https://x.example/\"\nkeys = [\"whsec_hunter2hunter2hunter2hunter2\"]", "keys"},
		"a password in the URL":            {"url = \"https://me:hunter2@x.example/\"\nkeys = [\"env:KEY\"]", "url"},
		"plain HTTP to another machine":    {"url = \"http://x.example/?t=hunter2\"\nkeys = [\"env:KEY\"]", "url"},
		"plain HTTP to a name like here":   {"url = \"http://localhost.example/\"\nkeys = [\"env:KEY\"]", "url"},
		"plain HTTP to an address in here": {"url = \"http://127.0.0.1.example/\"\nkeys = [\"env:KEY\"]", "url"},
		"another scheme":                   {"url = \"ftp://x.example/\"\nkeys = [\"env:KEY\"]", "url"},
		"no host":                          {"url = \"https:///hooks\"\nkeys = [\"env:KEY\"]", "url"},
		"a port and no host":               {"url = \"https://:443/hooks\"\nkeys = [\"env:KEY\"]", "url"},
		"a path":                           {"url = \"/hooks/hunter2\"\nkeys = [\"env:KEY\"]", "url"},
		"a fragment":                       {"url = \"https://x.example/#hunter2\"\nkeys = [\"env:KEY\"]", "url"},
		"an event that is not there":       {ok + `events = ["deleted"]`, "events"},
		"no events":                        {ok + `events = []`, "events"},
		"half a permission":                {ok + `plain_http = "maybe"`, "plain_http"},
		"a setting that is not there":      {ok + `retries = "3"`, "retries"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), "[webhooks.ops]\n"+row.text), lookup(nil))
			assertField(t, err, "webhooks.ops."+row.field)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
	_, err := config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), "[webhooks.\"My Hook\"]\n"+ok), lookup(nil))
	assertField(t, err, "webhooks.My Hook")
	var many strings.Builder
	for i := range 9 {
		fmt.Fprintf(&many, "[webhooks.w%d]\n%s", i, ok)
	}
	_, err = config.Load(write(t, filepath.Join(t.TempDir(), "x.toml"), many.String()), lookup(nil))
	assertField(t, err, "webhooks")
	for variable, value := range map[string]string{
		"BOXKEEPER_WEBHOOKS_DEFAULT_URL": "nowhere", "BOXKEEPER_WEBHOOKS_DEFAULT_KEYS": "env:KEY", "BOXKEEPER_WEBHOOKS_DEFAULT_PLAIN_HTTP": "",
	} {
		env := map[string]string{"BOXKEEPER_WEBHOOKS_DEFAULT_URL": "https://x.example/", "BOXKEEPER_WEBHOOKS_DEFAULT_KEYS": `["env:KEY"]`}
		env[variable] = value
		from, _ := with(t, env)
		_, err := config.Load("", from)
		assertField(t, err, variable)
	}
}

// Who writes a spec could otherwise read the key and forge events.
func TestASpecCannotReadTheKeyOfAWebhook(t *testing.T) {
	t.Parallel()
	file := write(t, filepath.Join(t.TempDir(), "hook.key"), "whsec_file")
	env, dir := with(t, map[string]string{
		"HOOK_KEY": "whsec_env", "FREE": "free",
		"BOXKEEPER_WEBHOOKS_DEFAULT_URL": "https://x.example/", "BOXKEEPER_WEBHOOKS_DEFAULT_KEYS": `["env:HOOK_KEY", "file:` + file + `"]`,
	})
	c, err := config.Load("", env)
	require.NoError(t, err)
	for _, ref := range []string{"env:HOOK_KEY", "file:" + file, "file:" + filepath.Dir(file) + "/./hook.key"} {
		_, err := c.SpecSecret(ref)
		assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%s", ref)
	}
	got, err := c.ResolveSecret("env:HOOK_KEY")
	require.NoError(t, err)
	assert.Equal(t, "whsec_env", got.Reveal())
	_, err = c.SpecSecret("env:FREE")
	require.NoError(t, err)

	write(t, filepath.Join(dir, "credentials", "hook"), "whsec_credential")
	write(t, filepath.Join(dir, "credentials", "model"), "free")
	other, _ := with(t, map[string]string{
		"BOXKEEPER_DATA":                 dir,
		"BOXKEEPER_WEBHOOKS_DEFAULT_URL": "https://x.example/", "BOXKEEPER_WEBHOOKS_DEFAULT_KEYS": `["credential:hook"]`,
	})
	c, err = config.Load("", other)
	require.NoError(t, err)
	_, err = c.SpecSecret("credential:hook")
	assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	_, err = c.SpecSecret("credential:model")
	require.NoError(t, err)
}
