package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestAProofIsOfOneReceiptAndGrowsOld(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	receipt := box.Receipt{Workspace: "mine", Epoch: 1, Key: "k", SHA256: "s", Events: 3}
	var p proofs
	found := func(r box.Receipt, at time.Time) bool {
		_, ok := p.find(r, at)
		return ok
	}
	require.False(t, found(receipt, now))
	p.keep(exports.Report{Receipt: receipt}, now)
	require.True(t, found(receipt, now))
	require.True(t, found(receipt, now.Add(time.Hour)), "equal counts as young")
	require.False(t, found(receipt, now.Add(time.Hour+1)))
	require.False(t, found(receipt, now.Add(-2*time.Hour)), "the clock was set back: nobody knows how old it is")
	other := receipt
	other.Events++
	require.False(t, found(other, now), "another receipt for the same manifest")
	p.keep(exports.Report{Receipt: box.Receipt{Key: "k2"}}, now.Add(2*time.Hour))
	require.Len(t, p.of, 1, "old ones are dropped")
}
