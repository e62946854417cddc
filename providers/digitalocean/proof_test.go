package digitalocean_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	fake "github.com/openhands/boxkeeper/providers/digitalocean/digitaloceantest"
)

func TestAListWithoutTheBoxIsNoProof(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	p.service.Inject(fake.Fault{Op: fake.OpList, Stale: true, Skip: 1, Times: 8})
	p.service.Inject(fake.Fault{Op: fake.OpConfigSessions, Stale: true, Times: -1})
	ref := made(t, p, d, "w")
	found, err := d.List(t.Context(), installation)
	require.NoError(t, err)
	require.Empty(t, found, "the fault works")
	seen, err := d.Observe(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseRunning, seen.Phase)
	// A create that sees nothing is refused by the service, and says so.
	_, err = d.Create(t.Context(), createRequest("w"))
	require.Equal(t, box.ClassUnavailable, box.ClassOf(err), "%v", err)
	again, err := d.Create(t.Context(), createRequest("w"))
	for range 8 {
		if err == nil {
			break
		}
		again, err = d.Create(t.Context(), createRequest("w"))
	}
	require.NoError(t, err)
	require.Equal(t, ref, again.Ref)
	require.Len(t, p.sane(t).Created[ref.Name], 1)
}

// A list that is behind shows a session that is destroyed, whose environment is
// gone with it: that is no box of somebody else.
func TestAListThatStillHasTheBoxIsNoStranger(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	p.service.Inject(fake.Fault{Op: fake.OpList, Stale: true, Times: -1}) // as it was now
	gone, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, box.PhaseGone, gone.Phase)
	_, err = p.new(t, installation).Create(t.Context(), createRequest("w")) // by a worker that remembers nothing
	require.NotEqual(t, box.ClassAlreadyExists, box.ClassOf(err), "%v", err)
}

func TestTheWrongPlaceProvesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{
		Regions: []string{"ric1", "mem1"},
		Teams:   []fake.Team{{}, {Token: "dop_v1_other"}},
	})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	moved := p.new(t, installation, func(o *digitalocean.Options) { o.Region = "mem1" })
	others := p.new(t, installation, func(o *digitalocean.Options) { o.Token = "dop_v1_other" })
	for _, elsewhere := range []*digitalocean.Driver{moved, others} {
		now, err := elsewhere.Fingerprint(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, ref.Fingerprint, now)
		for _, fingerprint := range []string{ref.Fingerprint, now} {
			lied := ref
			lied.Fingerprint = fingerprint
			seen, err := elsewhere.Observe(t.Context(), lied)
			if fingerprint == ref.Fingerprint {
				require.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err), "%v", err)
			}
			require.NotEqual(t, ref.Fingerprint, seen.Ref.Fingerprint)
		}
		found, err := elsewhere.List(t.Context(), installation)
		require.NoError(t, err)
		require.Empty(t, found)
	}
	// The account behind the token changes while it is remembered: a 404 makes the
	// driver read it again.
	p.service.DestroyNow(ref.ID)
	p.service.SetTeam(poor, func(team *fake.Team) { team.UUID = "swapped" })
	p.service.Inject(fake.Fault{Op: fake.OpGet, Status: 404, Times: -1})
	_, err := d.Observe(t.Context(), ref)
	require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%v", err)
	_, err = d.Delete(t.Context(), ref)
	require.NotEqual(t, box.Class(""), box.ClassOf(err))
}

// A create of an earlier try may land after a deletion, and a list be behind it: the
// environment, which alone shows whose the session is, stays.
func TestAListThatIsBehindLeavesNoBoxWithoutAnOwner(t *testing.T) {
	t.Parallel()
	p := newPlace(t, fake.Options{})
	d := p.new(t, installation)
	ref := made(t, p, d, "w")
	_, err := d.Delete(t.Context(), ref)
	require.NoError(t, err)
	p.service.Inject(fake.Fault{Op: fake.OpConfigSessions, Stale: true, Times: 1})
	late := made(t, p, p.new(t, installation), "w")
	_, err = d.Delete(t.Context(), ref)
	require.NoError(t, err)
	found, err := p.new(t, installation).List(t.Context(), installation)
	require.NoError(t, err)
	require.Len(t, found, 1, "it is billed, and no worker knows any more whose it is")
	require.Equal(t, late.ID, found[0].Observation.Ref.ID)
}
