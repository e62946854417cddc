package digitalocean_test

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
)

// TestRequestsHoldWhatIsKnown holds each request of a whole life against what public
// sources say of its operation: method, fields of the body and of the query, and
// headers. Nothing else is sent.
func TestRequestsHoldWhatIsKnown(t *testing.T) {
	t.Parallel()
	type shape struct {
		method string
		body   []string // those that may be there; the first so many must
		must   int
		query  []string
	}
	pages := []string{"page_size", "page_token", "name", "status"}
	known := map[fake.Op]shape{
		fake.OpAccount:        {method: "GET"},
		fake.OpConfigCreate:   {method: "POST", body: []string{"manifest_yaml", "name"}, must: 2},
		fake.OpConfigGet:      {method: "GET"},
		fake.OpConfigList:     {method: "GET", query: pages},
		fake.OpConfigSessions: {method: "GET", query: pages},
		fake.OpConfigDelete:   {method: "DELETE"},
		fake.OpCreate:         {method: "POST", body: []string{"config_id", "name", "region", "resume_on_topoff"}, must: 2},
		fake.OpGet:            {method: "GET"},
		fake.OpList:           {method: "GET", query: pages},
		fake.OpIngress:        {method: "GET"},
		fake.OpCheckpointList: {method: "GET", query: pages},
		fake.OpPause:          {method: "POST"},
		fake.OpResume:         {method: "POST"},
		fake.OpDelete:         {method: "DELETE"},
	}
	service := fake.New(fake.Options{Teams: []fake.Team{{}}, Tick: 100 * time.Millisecond, Loopback: true})
	t.Cleanup(service.Close)
	d, err := digitalocean.New(installation, digitalocean.Options{Token: poor, BaseURL: service.URL(""), PollEvery: time.Millisecond})
	require.NoError(t, err)
	seen, err := d.Create(t.Context(), driver.CreateRequest{Identity: identity("w"), Start: driver.Start{
		SecretEnv: map[string]box.Secret{"OPENHANDS_LLM_API_KEY": "llm"}, SessionKey: "key",
	}})
	require.NoError(t, err)
	ref := seen.Ref
	require.Eventually(t, func() bool { _, err := d.Endpoint(t.Context(), ref); return err == nil }, 30*time.Second, 5*time.Millisecond)
	_, err = d.Suspend(t.Context(), ref)
	require.NoError(t, err)
	_, err = d.Resume(t.Context(), ref, driver.Start{})
	require.NoError(t, err)
	_, err = d.List(t.Context(), installation)
	require.NoError(t, err)
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)

	met := map[fake.Op]bool{}
	for _, r := range service.Requests() {
		want, ok := known[r.Op]
		require.True(t, ok, "%s %s is no call of this driver", r.Method, r.Path)
		met[r.Op] = true
		require.Equal(t, want.method, r.Method, r.Op)
		require.Contains(t, r.Headers, "Authorization", r.Op)
		query, err := url.ParseQuery(r.Query)
		require.NoError(t, err)
		for name := range query {
			require.Contains(t, want.query, name, r.Op)
		}
		var body map[string]any
		if r.Body != "" {
			require.NoError(t, json.Unmarshal([]byte(r.Body), &body), r.Op)
			require.Contains(t, r.Headers, "Content-Type", r.Op)
		}
		have := slices.Sorted(maps.Keys(body))
		for _, name := range have {
			require.Contains(t, want.body, name, r.Op)
		}
		for _, name := range want.body[:want.must] {
			require.Contains(t, have, name, r.Op)
		}
	}
	for op := range known {
		if op != fake.OpConfigGet {
			require.True(t, met[op], "%s was never sent, so nothing is known of it", op)
		}
	}
}
