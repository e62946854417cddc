package digitaloceantest_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

func TestConfigs(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{})
	ctx := t.Context()
	cfg, resp, err := c.HostedAgents.CreateEnvironment(ctx, &godo.HostedEnvironmentCreateRequest{Name: "box", ManifestYAML: manifest})
	require.NoError(t, err)
	assert.Equal(t, http.StatusCreated, resp.StatusCode)
	assert.Equal(t, "https://api-ric1.digitalocean.com/v2/agents/configs/"+cfg.ID, cfg.Location)
	assert.NotContains(t, string(cfg.Manifest), "sk-very-secret")
	assert.Contains(t, string(cfg.Manifest), `"idle_timeout":"10m"`)
	assert.Equal(t, []godo.HostedEnvironmentCredentialSlot{{Name: "OPENHANDS_LLM_API_KEY", Source: "tenantSecret"}}, cfg.Credentials)
	got, _, err := c.HostedAgents.GetEnvironment(ctx, cfg.ID)
	require.NoError(t, err)
	assert.Equal(t, cfg.ContentHash, got.ContentHash)

	req, err := c.NewRequest(ctx, http.MethodPost, "/v2/agents/configs/"+cfg.ID+"/clone", map[string]string{"name": "copy"})
	require.NoError(t, err)
	var clone struct{ Config godo.HostedEnvironment }
	_, err = c.Do(ctx, req, &clone)
	require.NoError(t, err)
	assert.Empty(t, clone.Config.Credentials, "a clone has no credentials")
	list, _, err := c.HostedAgents.ListEnvironments(ctx, &godo.HostedEnvironmentListOptions{PageSize: 1})
	require.NoError(t, err)
	require.Len(t, list.Configs, 1)
	assert.Equal(t, "copy", list.Configs[0].Name)
	list, _, err = c.HostedAgents.ListEnvironments(ctx, &godo.HostedEnvironmentListOptions{PageSize: 1, PageToken: list.NextPageToken})
	require.NoError(t, err)
	assert.Equal(t, "box", list.Configs[0].Name)
	assert.Empty(t, list.NextPageToken)

	ses, err := create(t, c, cfg.ID, "oh-one")
	require.NoError(t, err)
	s.Advance(time.Second)
	require.NoError(t, try(c.HostedAgents.DeleteEnvironment(ctx, cfg.ID)))
	_, _, err = c.HostedAgents.GetEnvironment(ctx, cfg.ID)
	assert.Equal(t, http.StatusNotFound, code(err))
	assert.Equal(t, http.StatusNotFound, code(try(c.HostedAgents.DeleteEnvironment(ctx, cfg.ID))))
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, ses.SessionID), "its sessions go on")
	of, _, err := c.HostedAgents.ListEnvironmentSessions(ctx, cfg.ID, nil)
	require.NoError(t, err)
	assert.Len(t, of.Sessions, 1)
	_, err = create(t, c, cfg.ID, "oh-two")
	assert.Equal(t, http.StatusNotFound, code(err))
}

func TestConfigsInUseCanBeHeld(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{HoldConfigs: true})
	config := configure(t, c)
	_, err := create(t, c, config, "oh-one")
	require.NoError(t, err)
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.DeleteEnvironment(t.Context(), config))))
	s.DestroyNow("oh-one")
	assert.NoError(t, try(c.HostedAgents.DeleteEnvironment(t.Context(), config)))
}

func TestManifests(t *testing.T) {
	t.Parallel()
	_, c := begin(t, digitaloceantest.Options{MinIdle: time.Minute, MaxIdle: 24 * time.Hour})
	for text, problem := range map[string]string{
		"agent: openhands": "",
		"agent: openhands\nenv: {A: b}\negress: [a.com]":  "",
		"agent: claude-code\nsize: mars-1vcpu-1gb":        "",
		"agent: opencode\nsecrets: {KEY: sk-very-secret}": "",
		"agent: hermes\npermissions: {default: ask}":      "",
		"":                                   "not a YAML mapping",
		"[]":                                 "not a YAML mapping",
		"agent: openhands\nagent: openhands": "not a YAML mapping",
		"agent: openhands\n---\nagent: openhands": "more than one document",
		"name: a":                                           `"agent"`,
		"agent: nobody":                                     `"agent"`,
		"agent: openhands\nidle-timeout: 10m":               `unknown field "idle-timeout"`,
		"agent: openhands\nidle_timeout: soon":              `"idle_timeout"`,
		"agent: openhands\nidle_timeout: -1m":               `"idle_timeout"`,
		"agent: openhands\nidle_timeout: 30s":               "out of bounds",
		"agent: openhands\nidle_timeout: 25h":               "out of bounds",
		"agent: openhands\nkeep_warm: [sk-very-secret]":     `"keep_warm" has the wrong type`,
		"agent: openhands\nsize: huge":                      `"size"`,
		"agent: openhands\nenv: {SESSION_ID: a}":            "SESSION_ID is reserved",
		"agent: openhands\npermissions: {all: yes}":         `unknown field "permissions.all"`,
		"agent: openhands\nsecrets: {K: {valu: sk-very-x}}": `unknown field "secrets.K.valu"`,
		"agent: openhands\nsecrets: {K: {source: other}}":   `"K" has no value`,
		"agent: openhands\nsecrets: [sk-very-secret]":       `"secrets" has the wrong type`,
		"apiVersion: agents.digitalocean.com/v1alpha1":      "older format",
	} {
		_, _, err := c.HostedAgents.CreateEnvironment(t.Context(), &godo.HostedEnvironmentCreateRequest{Name: "x", ManifestYAML: text})
		if problem == "" {
			require.NoError(t, err, text)
			continue
		}
		assert.Equal(t, http.StatusBadRequest, code(err), text)
		assert.Contains(t, message(err), problem, text)
		assert.NotContains(t, message(err), "sk-very", "an error never quotes a value")
	}
}

func TestKeepWarm(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{KeepWarmPause: http.StatusUnprocessableEntity})
	ctx := t.Context()
	ses, _, err := c.HostedAgents.CreateSessionFromManifest(ctx, []byte("name: warm\nagent: openhands\ntemplate: openhands"), nil)
	require.NoError(t, err, "keep_warm is what openhands does unless told otherwise")
	cold, _, err := c.HostedAgents.CreateSessionFromManifest(ctx, []byte("name: cold\nagent: claude-code"), nil)
	require.NoError(t, err)
	s.Advance(48 * time.Hour)
	assert.Equal(t, "SESSION_STATUS_READY", status(t, c, ses.SessionID))
	assert.Equal(t, http.StatusUnprocessableEntity, code(try(c.HostedAgents.PauseSession(ctx, ses.SessionID))))
	assert.True(t, s.IdleAt("warm").IsZero())
	got, _, err := c.HostedAgents.GetSession(ctx, cold.SessionID)
	require.NoError(t, err)
	assert.EqualValues(t, "idle", got.PauseReason, "fifteen minutes unless told otherwise")
	bill := s.Bill()
	assert.Equal(t, 48*time.Hour-digitaloceantest.DefaultBoot, bill[0].Running)
	assert.Equal(t, digitaloceantest.DefaultIdle, bill[1].Running)
}

func TestCreateFromManifest(t *testing.T) {
	t.Parallel()
	_, c := begin(t, digitaloceantest.Options{CreateStatus: http.StatusOK, PrefixedIDs: true})
	ctx := t.Context()
	ses, resp, err := c.HostedAgents.CreateSessionFromManifest(ctx, []byte(manifest), &godo.HostedAgentManifestCreateOptions{ResumeOnTopoff: true})
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.True(t, ses.ResumeOnTopoff)
	assert.True(t, strings.HasPrefix(ses.SessionID, "sess_"))
	cfg, _, err := c.HostedAgents.GetEnvironment(ctx, ses.ConfigID)
	require.NoError(t, err, "a configuration is kept, named after the session")
	assert.Equal(t, "box", cfg.Name)
	_, _, err = c.HostedAgents.CreateSessionFromManifest(ctx, []byte(manifest), nil)
	assert.Equal(t, http.StatusConflict, code(err))
	list, _, err := c.HostedAgents.ListEnvironments(ctx, nil)
	require.NoError(t, err)
	assert.Len(t, list.Configs, 1, "a create that was refused keeps none")
}

func TestValidate(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{})
	result, _, err := c.HostedAgents.ValidatePolicy(t.Context(), []byte(manifest))
	require.NoError(t, err)
	assert.True(t, result.OK)
	assert.Equal(t, "openhands", result.Agent)
	_, _, err = c.HostedAgents.ValidatePolicy(t.Context(), []byte(strings.Replace(manifest, "sk-very-secret", "${KEY}", 1)))
	assert.Equal(t, http.StatusBadRequest, code(err))
	_, _, err = c.HostedAgents.ValidatePolicy(t.Context(), []byte("agent: openhands\nagents: 1"))
	assert.Equal(t, http.StatusBadRequest, code(err))
	assert.Empty(t, s.Bill())

	sizes, _, err := c.HostedAgents.ListSandboxSizes(t.Context())
	require.NoError(t, err)
	require.Len(t, sizes.Sizes, 5)
	assert.Equal(t, "mars-2vcpu-4gb", sizes.Sizes[2].Slug)
}

func TestServiceThatCannotCreate(t *testing.T) {
	t.Parallel()
	s, c := begin(t, digitaloceantest.Options{})
	ctx := t.Context()
	config := configure(t, c)
	s.SecretsDown(true)
	_, err := create(t, c, config, "oh-one")
	assert.Equal(t, http.StatusServiceUnavailable, code(err))
	s.SecretsDown(false)
	_, _, err = c.HostedAgents.CreateSessionFromManifest(ctx, []byte("agent: openhands\nsecrets: {GH: {source: oauth, provider: github}}"), nil)
	assert.Equal(t, http.StatusNotImplemented, code(err))

	s.FailBoots(1)
	ses, err := create(t, c, config, "oh-one")
	require.NoError(t, err)
	s.Advance(time.Second)
	assert.Equal(t, "SESSION_STATUS_FAILED", status(t, c, ses.SessionID))
	assert.Equal(t, http.StatusConflict, code(try(c.HostedAgents.PauseSession(ctx, ses.SessionID))))
	_, _, err = c.HostedAgents.UpdateSession(ctx, ses.SessionID, &godo.HostedAgentSessionUpdateRequest{ResumeOnTopoff: new(true)})
	assert.Equal(t, http.StatusConflict, code(err))
	require.NoError(t, try(c.HostedAgents.DestroySession(ctx, ses.SessionID)))
	assert.Equal(t, "SESSION_STATUS_DESTROYED", status(t, c, ses.SessionID))
	assert.Zero(t, s.Bill()[0].Running)
}
