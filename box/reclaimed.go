package box

import (
	"slices"
	"time"
)

// maxPasses bounds the passes that a repeat is recognised by.
const maxPasses = 8

// Pass is what one pass of reclaiming was counted with.
type Pass struct {
	PlanID string `json:"plan_id"`
	Bytes  int64  `json:"bytes"`
}

func (f *Facts) applyReclaimed(step Step, out Outcome, now time.Time) {
	f.countReclaimed(out.Reclaim)
	if step.Ask != nil {
		report := out.Reclaim
		f.finish(*step.Ask, Result{Reclaim: &report})
		return
	}
	f.Sequence.Reclaimed, f.Sequence.DrainedAt = true, now
}

// countReclaimed adds what a pass freed to the sum. A plan that is applied again
// answers its first report, by then perhaps with more, so that only the
// difference is added. What statfs tells of a pass that removed nothing is the
// work of other writers; an older boxd tells it all the same.
func (f *Facts) countReclaimed(r ReclaimReport) {
	if r.DryRun || r.RemovedBytes == 0 {
		return
	}
	i := slices.IndexFunc(f.Passes, func(p Pass) bool { return p.PlanID == r.PlanID })
	if i < 0 || r.PlanID == "" {
		f.Passes = append(f.Passes, Pass{PlanID: r.PlanID})
		f.Passes = f.Passes[max(0, len(f.Passes)-maxPasses):]
		i = len(f.Passes) - 1
	}
	more := max(0, r.FreedBytes-f.Passes[i].Bytes)
	f.Passes[i].Bytes += more
	f.Reclaimed += more
}
