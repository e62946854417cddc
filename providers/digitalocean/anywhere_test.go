package digitalocean_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/race"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
	"github.com/openhands/boxkeeper/providers/driver"
)

func TestFaultsOfEveryKindAnywhere(t *testing.T) {
	t.Parallel()
	ops := []fake.Op{
		fake.OpAccount, fake.OpCreate, fake.OpGet, fake.OpList, fake.OpPause, fake.OpResume, fake.OpDelete, fake.OpIngress, fake.OpCheckpointList,
		fake.OpConfigCreate, fake.OpConfigGet, fake.OpConfigList, fake.OpConfigDelete, fake.OpConfigSessions,
	}
	kinds := map[string]fake.Fault{
		"cut before": {Cut: true}, "cut after": {Cut: true, After: true}, "503 after": {Status: 503, After: true}, "late": {Status: 500, Late: time.Second},
		"500": {Status: 500}, "429": {Status: 429, RetryAfter: time.Second}, "a page": fake.BadGateway(""), "a login": fake.LoginPage(""),
		"empty": {Status: 200, Body: " "}, "null": {Status: 200, Body: "null"}, "nothing in it": {Status: 200, Body: "{}"},
		"401": {Status: 401}, "403": {Status: 403}, "404 page": {Status: 404, Body: "404 page not found"},
	}
	for _, op := range ops {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			for what, f := range kinds {
				for skip := range max(1, 2/race.Slowness) {
					f.Op, f.Skip = op, skip
					lifeUnder(t, what, f)
				}
			}
		})
	}
}

// lifeUnder runs a whole life in which one request goes wrong, and repeats each
// step until it is done.
func lifeUnder(t *testing.T, what string, f fake.Fault) {
	t.Helper()
	p := newPlace(t, fake.Options{Tick: time.Second})
	d := p.new(t, installation)
	neighbour := p.stray(t, "somebodys")
	p.service.Inject(f)
	step := func(name string, call func() error) {
		for range 4 {
			err := call()
			if err == nil {
				return
			}
			class := box.ClassOf(err)
			// An answer that is a lie about this very box can look like the truth; it
			// is never taken for gone.
			require.NotContains(t, []box.Class{box.ClassNotFound, box.ClassInternal, box.ClassInvalid, ""}, class, "%s: %s: %v", what, name, err)
		}
		t.Fatalf("%s at %s: %s is never done", what, f.Op, name)
	}
	var ref box.Ref
	step("create", func() error {
		seen, err := d.Create(t.Context(), createRequest("w"))
		ref = seen.Ref
		return err
	})
	observe := func() error {
		seen, err := d.Observe(t.Context(), ref)
		if err == nil {
			require.NotEqual(t, box.PhaseGone, seen.Phase, what)
		}
		return err
	}
	step("observe", observe)
	step("list", func() error { _, err := d.List(t.Context(), installation); return err })
	step("suspend", func() error { _, err := d.Suspend(t.Context(), ref); return err })
	step("observe", observe)
	step("resume", func() error { _, err := d.Resume(t.Context(), ref, driver.Start{}); return err })
	step("endpoint", func() error { _, err := d.Endpoint(t.Context(), ref); return err })
	require.True(t, p.statement(t, ref.ID).Alive(), what)
	step("delete", func() error { _, err := d.Delete(t.Context(), ref); return err })
	p.service.Advance(time.Hour)
	audit := p.sane(t)
	require.Equal(t, []string{"somebodys"}, audit.Alive, what)
	require.Len(t, audit.Created[ref.Name], 1, what)
	require.False(t, slices.Contains(audit.Deleted, "somebodys"))
	require.True(t, p.statement(t, neighbour).Alive())
}
