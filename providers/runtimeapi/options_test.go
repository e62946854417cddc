package runtimeapi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
)

const minute = time.Minute

func good() runtimeapi.Options {
	return runtimeapi.Options{URL: "https://runtime.example", APIKey: "canary-api-key-0815", PausedLife: box.Duration(60 * 24 * time.Hour)}
}

func TestSettingsAreCheckedWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	_, err := runtimeapi.New(installation, good())
	require.NoError(t, err)
	for name, row := range map[string]struct {
		field string
		set   func(*runtimeapi.Options)
	}{
		"no address":               {"url", func(o *runtimeapi.Options) { o.URL = "" }},
		"an address without host":  {"url", func(o *runtimeapi.Options) { o.URL = "https:///x" }},
		"another scheme":           {"url", func(o *runtimeapi.Options) { o.URL = "ftp://runtime.example" }},
		"an address that is none":  {"url", func(o *runtimeapi.Options) { o.URL = "https://a b" }},
		"a user in the address":    {"url", func(o *runtimeapi.Options) { o.URL = "https://canary-api-key-0815@runtime.example" }},
		"a query in the address":   {"url", func(o *runtimeapi.Options) { o.URL = "https://runtime.example?key=canary-api-key-0815" }},
		"http beyond this machine": {"url", func(o *runtimeapi.Options) { o.URL = "http://runtime.example" }},
		"http to a like name":      {"url", func(o *runtimeapi.Options) { o.URL = "http://localhost.example" }},
		"no key":                   {"api_key", func(o *runtimeapi.Options) { o.APIKey = "" }},
		"a key with a line break":  {"api_key", func(o *runtimeapi.Options) { o.APIKey += "\n" }},
		"an account with a space":  {"account", func(o *runtimeapi.Options) { o.Account = "team a" }},
		"an image with a space":    {"image", func(o *runtimeapi.Options) { o.Image = "a b" }},
		"a relative command":       {"agent_server", func(o *runtimeapi.Options) { o.Command = []string{"agent-server"} }},
		"a relative directory":     {"working_dir", func(o *runtimeapi.Options) { o.WorkingDir = "work" }},
		"a size between sizes":     {"resource_factor", func(o *runtimeapi.Options) { o.ResourceFactor = 3 }},
		"a class with a slash":     {"runtime_class", func(o *runtimeapi.Options) { o.RuntimeClass = "a/b" }},
		"no retention":             {"paused_life", func(o *runtimeapi.Options) { o.PausedLife = 0 }},
		"a short retention":        {"paused_life", func(o *runtimeapi.Options) { o.PausedLife = box.Duration(time.Second) }},
		"a negative reaper":        {"idle_reaper", func(o *runtimeapi.Options) { o.IdleReaper = -5 }},
		"a short cap":              {"max_run", func(o *runtimeapi.Options) { o.MaxRun = box.Duration(time.Second) }},
	} {
		opts := good()
		row.set(&opts)
		_, err := runtimeapi.New(installation, opts)
		e, ok := errors.AsType[*box.Error](err)
		require.True(t, ok && e.Class == box.ClassInvalid && e.Field == row.field, "%s: %v", name, err)
		require.NotContains(t, err.Error(), "0815", name)
	}
	_, err = runtimeapi.New("XYZ", good())
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
	for _, url := range []string{"http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "http://a.localhost:3"} {
		opts := good()
		opts.URL = url
		_, err = runtimeapi.New(installation, opts)
		require.NoError(t, err)
	}
	opts := good()
	opts.URL = "http://runtime.example"
	_, err = runtimeapi.New(installation, opts)
	require.ErrorContains(t, err, "plain_http", "the setting as a person writes it")
	opts = good()
	opts.URL, opts.AllowHTTP = "http://runtime.example", true
	_, err = runtimeapi.New(installation, opts)
	require.NoError(t, err)
}

func TestTheFingerprintIsThePlaceAndTheAccount(t *testing.T) {
	t.Parallel()
	print := func(set func(*runtimeapi.Options)) string {
		opts := good()
		set(&opts)
		d, err := runtimeapi.New(installation, opts)
		require.NoError(t, err)
		out, err := d.Fingerprint(t.Context())
		require.NoError(t, err)
		require.NotContains(t, out, "0815")
		require.NotContains(t, fmt.Sprintf("%v %+v %#v %v %+v %#v", opts, opts, opts, d, d, d), "0815")
		return out
	}
	same := print(func(*runtimeapi.Options) {})
	require.Equal(t, same, print(func(o *runtimeapi.Options) { o.URL = "https://RUNTIME.example//" }))
	require.Equal(t, same, print(func(o *runtimeapi.Options) { o.Image, o.MaxRun = "other", box.Never }))
	other := map[string]string{
		"the first":       same,
		"another key":     print(func(o *runtimeapi.Options) { o.APIKey += "x" }),
		"another host":    print(func(o *runtimeapi.Options) { o.URL = "https://runtime.eval.example" }),
		"another path":    print(func(o *runtimeapi.Options) { o.URL += "/api" }),
		"another account": print(func(o *runtimeapi.Options) { o.Account = "team-b" }),
		"a named account": print(func(o *runtimeapi.Options) { o.Account = "team-a" }),
	}
	seen := map[string]bool{}
	for name, one := range other {
		require.False(t, seen[one], name)
		seen[one] = true
	}
	digest := func(print string) string { return print[strings.LastIndex(print, " ")+1:] }
	require.NotEqual(t, digest(same), digest(other["another host"]), "the digest of a key belongs to one place")
	require.Equal(t, other["a named account"], print(func(o *runtimeapi.Options) { o.Account, o.APIKey = "team-a", "a-new-key-0815" }), "the key of a named account can be changed")
}

func TestTheRowFollowsTheInstall(t *testing.T) {
	t.Parallel()
	row := runtimeapi.Row(runtimeapi.Options{})
	require.Empty(t, row.Missing())
	require.Equal(t, []box.Span{box.Span(20 * minute), box.Span(20 * minute), box.Span(12 * time.Hour), box.Span(60 * 24 * time.Hour)},
		[]box.Span{row.NativeIdleLeast, row.NativeIdleMost, row.MaxRun, row.PausedLife})
	require.Equal(t, box.LeadProvider, row.Lead)
	require.Equal(t, []box.Tri{box.Yes, box.No}, []box.Tri{row.NativeIdle, row.List})
	none := runtimeapi.Row(runtimeapi.Options{IdleReaper: box.Never, PausedLife: box.Never, MaxRun: box.Never, ListsFailed: true})
	require.Empty(t, none.Missing())
	require.Zero(t, none.NativeIdleLeast+none.NativeIdleMost+none.MaxRun+none.PausedLife)
	require.Equal(t, box.LeadOurs, none.Lead)
	require.Equal(t, []box.Tri{box.No, box.Yes}, []box.Tri{none.NativeIdle, none.List})

	// The reaper leads where the policy is its time, and else ours comes before it.
	plan, err := box.Plan(box.Policy{Idle: box.Duration(20 * minute)}, row)
	require.NoError(t, err)
	require.Contains(t, plan.Watches, box.Watch{Name: "idle", By: "provider", After: box.Duration(20 * minute), Action: "suspend"})
	plan, err = box.Plan(box.Policy{}, row)
	require.NoError(t, err)
	require.Equal(t, box.Duration(10*minute), plan.Policy.Idle)
	require.Contains(t, strings.Join(plan.Risks, "\n"), "idle is 10m")
	require.Equal(t, box.Duration(12*time.Hour-15*minute), plan.Policy.MaxRun)
}

func TestAnImageMustComeFromSomewhere(t *testing.T) {
	t.Parallel()
	d, err := runtimeapi.New(installation, good())
	require.NoError(t, err)
	_, err = create(t, d, "no-image")
	e, ok := errors.AsType[*box.Error](err)
	require.True(t, ok && e.Class == box.ClassInvalid && e.Field == "image", "%v", err)
}
