package providers_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// adopter answers an adoption with what it is told.
type adopter struct {
	*fakebox.Driver
	answer func(seen *box.Observation)
}

func (a adopter) Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error) {
	seen, err := a.Driver.Adopt(ctx, id, as)
	a.answer(&seen)
	return seen, err
}

func claim(id string) providers.Claim {
	return providers.Claim{ID: id, Workspace: "found", Epoch: 2, Least: 1}
}

func TestAdoptBelievesNoAnswerThatProvesNothing(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		class  box.Class
		answer func(*box.Observation)
	}{
		"a whole one":                   {"", func(*box.Observation) {}},
		"one without an id":             {box.ClassUnknown, func(o *box.Observation) { o.Ref.ID = "" }},
		"one without an epoch":          {box.ClassUnknown, func(o *box.Observation) { o.Ref.Epoch = 0 }},
		"one about another box":         {box.ClassUnknown, func(o *box.Observation) { o.Ref.Name = strings.Replace(o.Ref.Name, "found", "other", 1) }},
		"one from another place":        {box.ClassUnknown, func(o *box.Observation) { o.Ref.Fingerprint = "elsewhere" }},
		"one that says that it is gone": {box.ClassUnknown, func(o *box.Observation) { o.Phase = box.PhaseGone }},
		"one that says nothing":         {box.ClassUnknown, func(o *box.Observation) { o.Phase = box.PhaseUnknown }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cloud := fakebox.New(nil)
			cloud.Plant("stray")
			p := over(t, adopter{cloud.Driver(installation), row.answer})
			seen, err := p.Adopt(t.Context(), claim(cloud.ID("stray")))
			require.Equal(t, row.class, box.ClassOf(err), err)
			if err == nil {
				require.Equal(t, "fake", seen.Ref.Provider)
				require.Equal(t, 2, seen.Ref.Epoch)
			}
		})
	}
}

func TestAdoptRefusesBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	p := over(t, cloud.Driver(installation))
	for _, bad := range []providers.Claim{
		{ID: "", Workspace: "found", Epoch: 1, Least: 1},
		{ID: "a b", Workspace: "found", Epoch: 1, Least: 1},
		{ID: "x", Workspace: "Not A Workspace", Epoch: 1, Least: 1},
		{ID: "x", Workspace: "found", Epoch: 0, Least: 1},
	} {
		_, err := p.Adopt(t.Context(), bad)
		wantClass(t, "adopt", err, box.ClassInvalid)
	}
	require.Empty(t, cloud.Calls())
	row := fakebox.DefaultRow()
	row.Adopt = box.No
	cloud = fakebox.New(&fakebox.Options{Row: row})
	_, err := over(t, cloud.Driver(installation)).Adopt(t.Context(), claim("x"))
	wantClass(t, "adopt", err, box.ClassUnsupported)
	require.Empty(t, cloud.Calls())
}

// bareDriver hides the optional interfaces of a driver.
type bareDriver struct{ driver.Driver }

func TestADriverThatClaimsToAdoptMustBeAbleTo(t *testing.T) {
	t.Parallel()
	row := fakebox.DefaultRow()
	row.List, row.Watch = box.No, box.No
	d := bareDriver{fakebox.New(&fakebox.Options{Row: row}).Driver(installation)}
	_, err := providers.New("fake", d, &providers.Options{Installation: installation, Keys: keys(t)})
	wantClass(t, "new", err, box.ClassInternal)
	require.ErrorContains(t, err, "claims Adopt")
}

func TestABoxOfAReplacedEpochIsNotAdopted(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	p := over(t, cloud.Driver(installation))
	ref := made(t, p, "found")
	late := claim(ref.ID)
	late.Epoch, late.Least = 3, 2
	_, err := p.Adopt(t.Context(), late)
	wantClass(t, "adopt", err, box.ClassFailedPrecondition)
	require.ErrorContains(t, err, "epoch 1, which was replaced")
	seen, err := p.Adopt(t.Context(), claim(ref.ID))
	require.NoError(t, err)
	require.Equal(t, ref, seen.Ref, "one of ours keeps its epoch")
}
