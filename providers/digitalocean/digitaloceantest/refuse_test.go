package digitaloceantest_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	_, c := begin(t, digitaloceantest.Options{})
	config := configure(t, c)
	const form = "must be 1 to 64 letters"
	for name, row := range map[string]struct {
		in   godo.HostedAgentSessionFromEnvironmentRequest
		code int
		text string
	}{
		"an underscore at the end":       {godo.HostedAgentSessionFromEnvironmentRequest{Name: "box_", ConfigID: config}, 400, form},
		"a blank":                        {godo.HostedAgentSessionFromEnvironmentRequest{Name: "a b", ConfigID: config}, 400, form},
		"65 letters":                     {godo.HostedAgentSessionFromEnvironmentRequest{Name: strings.Repeat("a", 65), ConfigID: config}, 400, form},
		"a name like a UUID":             {godo.HostedAgentSessionFromEnvironmentRequest{Name: "01A0A8DE-0000-7000-8000-000000000000", ConfigID: config}, 400, "UUID"},
		"a configuration that isn't":     {godo.HostedAgentSessionFromEnvironmentRequest{Name: "box", ConfigID: "nothing"}, 404, "config"},
		"a workspace that isn't":         {godo.HostedAgentSessionFromEnvironmentRequest{Name: "box", ConfigID: config, WorkspaceID: "nothing"}, 404, "workspace"},
		"the region of another host":     {godo.HostedAgentSessionFromEnvironmentRequest{Name: "box", ConfigID: config, Region: "mem1"}, 400, "region_mismatch"},
		"a body that is too long":        {godo.HostedAgentSessionFromEnvironmentRequest{Name: strings.Repeat("a", 17<<10), ConfigID: config}, 413, "large"},
		"a manifest's name for a config": {godo.HostedAgentSessionFromEnvironmentRequest{Name: "box", ConfigID: "box"}, 404, "config"},
	} {
		_, _, err := c.HostedAgents.CreateSessionFromEnvironment(t.Context(), &row.in)
		assert.Equal(t, row.code, code(err), name)
		assert.Contains(t, message(err), row.text, name)
	}
	for _, name := range []string{"a", "A.b_c-9", strings.Repeat("a", 64)} {
		_, err := create(t, c, config, name)
		assert.NoError(t, err, name)
	}
}

func TestRawRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{Exec: nil})
	id := running(t, s, c, "oh-one")
	const p = "/v2/harness-runtime"
	for name, row := range map[string]struct {
		method, path, kind, body string
		code                     int
	}{
		"a field that nobody knows":   {"POST", p + "/sessions", "application/json", `{"name":"a","config_id":"b","idle_timeout_seconds":3}`, 400},
		"the body of another century": {"POST", p + "/sessions", "application/json", `{"agent_kind":"AGENT_KIND_CLAUDE_CODE"}`, 400},
		"no JSON":                     {"POST", p + "/sessions", "application/json", `{`, 400},
		"a form":                      {"POST", p + "/sessions", "application/x-www-form-urlencoded", "a=b", 415},
		"a manifest over 1 MiB":       {"POST", p + "/sessions", "text/yaml", "name: " + strings.Repeat("a", 1<<20), 413},
		"no page token":               {"GET", p + "/sessions?page_token=nonsense", "", "", 400},
		"no status":                   {"GET", p + "/sessions?status=READY", "", "", 400},
		"no page size":                {"GET", p + "/sessions?page_size=many", "", "", 400},
		"an empty patch":              {"PATCH", p + "/sessions/" + id, "application/json", `{}`, 400},
		"two patches in one":          {"PATCH", p + "/sessions/" + id, "application/json", `{"resume_on_topoff":true,"manifest_yaml":"env: {A: b}"}`, 400},
		"an unknown patch":            {"PATCH", p + "/sessions/" + id, "application/json", `{"name":"x"}`, 400},
		"a port below 1024":           {"GET", p + "/sessions/" + id + "/port-forward/80", "", "", 400},
		"a tunnel without WebSocket":  {"GET", p + "/sessions/" + id + "/port-forward/8000", "", "", 400},
		"an id with a path in it":     {"GET", p + "/sessions/a/b", "", "", 404},
		"below a prefix":              {"GET", "/edge" + p + "/sessions", "", "", 404},
		"another method":              {"PUT", p + "/sessions/" + id, "", "", 405},
		"exec without a hook":         {"POST", p + "/sessions/" + id + "/sandbox/exec", "application/json", `{"argv":["true"]}`, 501},
		"a stream of events":          {"GET", p + "/sessions/" + id + "/events", "", "", 501},
		"an upload":                   {"POST", p + "/sessions/" + id + "/workspace/upload?path=a", "", "", 501},
		"a template":                  {"GET", p + "/templates/x", "", "", 501},
		"what nobody has":             {"GET", p + "/nothing", "", "", 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), row.method, "https://api.digitalocean.com"+row.path, strings.NewReader(row.body))
		require.NoError(t, err)
		if row.kind != "" {
			req.Header.Set("Content-Type", row.kind)
		}
		_, err = c.Do(t.Context(), req, nil)
		assert.Equal(t, row.code, code(err), name)
	}
}
