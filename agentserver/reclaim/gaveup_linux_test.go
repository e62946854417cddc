//go:build linux

package reclaim_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// A caller whose connection breaks off asks again with the same plan, and gets
// what was done: it must not be that nothing was, since it went away.
func TestAPlanIsCarriedOutThoughItsCallerGaveUp(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o700))
	place := npm(t, root, 3)
	ctx, giveUp := context.WithCancel(t.Context())
	r, err := reclaim.Open(root, reclaim.WithFault(reclaim.Options{Layouts: []reclaim.Layout{patient{}}}, func(step string) {
		if step == "journaled" {
			giveUp()
		}
	}))
	require.NoError(t, err)
	t.Cleanup(r.Close)
	plan := do(t, r, box.ReclaimRequest{DryRun: true})
	_, err = r.Do(ctx, box.ReclaimRequest{PlanID: plan.PlanID})
	require.NoError(t, err)
	require.Error(t, ctx.Err(), "nobody gave up")
	again := do(t, r, box.ReclaimRequest{PlanID: plan.PlanID})
	require.Empty(t, itemOf(t, again, place).Skipped)
	require.NoDirExists(t, filepath.Join(root, place))
	require.Positive(t, again.RemovedBytes)
}

// patient is a layout without conversations that answers while anybody waits.
type patient struct{}

func (patient) Places(ctx context.Context) ([]reclaim.Place, error) { return nil, ctx.Err() }

func (patient) Hold(context.Context, string) (release func(), busy string, err error) {
	return nil, "nobody is there", nil
}

func (patient) Archive(context.Context, string) error { return nil }
