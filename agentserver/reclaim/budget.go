package reclaim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/openhands/boxkeeper/box"
)

// Budget is how much of the disk the box may fill before a pass sheds what can
// be made again. The zero value is none.
type Budget struct {
	// High is the part of the filesystem, of its bytes or of its inodes, above
	// which a pass sheds; more than 0, at most 1. Zero means no limit.
	High float64
	// Low is the part that it sheds down to; zero means High.
	Low float64
	// Bytes bounds what lies below the root, in allocated bytes, for boxes that
	// share a filesystem with others. Zero means no limit. It is measured by
	// reading the whole tree.
	Bytes int64
}

// Set reports whether there is a budget.
func (b Budget) Set() bool { return b.High > 0 || b.Bytes > 0 }

// Check returns ClassInvalid with the field at fault.
func (b Budget) Check() error {
	switch {
	case math.IsNaN(b.High) || b.High < 0 || b.High > 1:
		return box.Invalidf("budget.high", "%g is no part of a disk; use more than 0 and at most 1", b.High)
	case math.IsNaN(b.Low) || b.Low < 0 || b.Low > b.High:
		return box.Invalidf("budget.low", "%g must be more than 0 and at most the high mark, %g", b.Low, b.High)
	case b.Bytes < 0:
		return box.Invalidf("budget.bytes", "%d must be more than 0", b.Bytes)
	}
	return nil
}

// Pass does what is due: it finishes conversations that were marked as archived
// and not moved, and when the box is over its budget it sheds caches of idle
// conversations, then the box's own, then dependencies, each longest unused
// first, until it is under. Nothing that is used goes. It may be repeated, and
// costs one look at the filesystem when nothing is due. Over the budget with
// nothing left to shed it warns once in the log, and again only after it was
// under. ClassUnsupported means that this system cannot delete safely,
// ClassUnavailable that Close was called.
func (r *Reclaimer) Pass(ctx context.Context) error {
	if err := r.tree.usable(); err != nil {
		return err
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	all, faults := r.places(ctx)
	for _, fault := range faults {
		r.opts.Log.Warn("a pass leaves a layout out", "why", fault)
	}
	for i := range all {
		if _, own := all[i].layout.(Remover); all[i].Archived && (all[i].Runtime != "" || own) && all[i].Busy == "" {
			if _, err := r.shed(ctx, &all[i], box.TierRuntime); err != nil {
				return err
			}
		}
	}
	if !r.opts.Budget.Set() {
		return nil
	}
	over, err := r.excess(ctx, r.opts.Budget.High)
	if err == nil && over != "" {
		r.opts.Log.Info("the box is over its budget", "why", over)
		over, err = r.shedUntilLow(ctx, all, over)
	}
	if err == nil {
		r.warnOnce(over)
	}
	return err
}

// shedUntilLow sheds from a box that is over its budget, as over says, until it is
// under the low mark, and returns why it still is over with nothing left to shed.
func (r *Reclaimer) shedUntilLow(ctx context.Context, all []placed, over string) (string, error) {
	byUse(all)
	low := cmp.Or(r.opts.Budget.Low, r.opts.Budget.High)
	for _, tier := range []box.Tier{box.TierCaches, box.TierDependencies} {
		for i := range all {
			if all[i].Busy != "" {
				continue
			}
			took, err := r.shed(ctx, &all[i], tier)
			if err != nil {
				return "", err
			}
			if !took {
				continue // to measure again may cost a walk over everything
			}
			if over, err = r.excess(ctx, low); err != nil || over == "" {
				return "", err
			}
		}
	}
	return over, nil
}

// byUse sorts places, the longest unused first. An unknown time never counts as
// old, and what belongs to no conversation comes after those that do.
func byUse(all []placed) {
	slices.SortStableFunc(all, func(a, b placed) int {
		switch {
		case (a.Conversation == "") != (b.Conversation == ""):
			return boolOrder(a.Conversation == "")
		case a.LastActive.IsZero() != b.LastActive.IsZero():
			return boolOrder(a.LastActive.IsZero())
		}
		return a.LastActive.Compare(b.LastActive)
	})
}

func boolOrder(later bool) int {
	if later {
		return 1
	}
	return -1
}

// shed takes what the tier has at one place and waits until it is deleted; it
// reports whether there was anything.
func (r *Reclaimer) shed(ctx context.Context, place *placed, tier box.Tier) (took bool, err error) {
	plan, err := r.plan(ctx, scope{tier: tier, place: place})
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(plan.Items, func(i item) bool { return i.Skipped == "" }) {
		return false, nil // a plan of nothing would push another out of the journal
	}
	r.remember(plan)
	plan, err = r.begin(ctx, plan.ID)
	if err != nil {
		return false, err
	}
	select {
	case <-plan.ended:
	case <-r.stopped.Done():
		return false, box.Errorf(box.ClassCanceled, "shed %s: the box is closed", tier)
	case <-ctx.Done():
		return false, box.Errorf(box.ClassCanceled, "shed %s: %w", tier, ctx.Err())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if plan.Report != nil {
		r.opts.Log.Info("shed", "tier", tier, "conversation", place.Conversation, "freed_bytes", plan.Report.RemovedBytes)
	}
	return true, nil
}

// warnOnce tells that the box stays over its budget; an empty why that it is
// under it again.
func (r *Reclaimer) warnOnce(why string) {
	r.mu.Lock()
	first := why != "" && !r.warned
	r.warned = why != ""
	r.mu.Unlock()
	if first {
		r.opts.Log.Warn("the box is over its budget and nothing is left that may be shed", "why", why)
	}
}

// excess says by what the box is over a part of its budget, empty when it is
// not.
func (r *Reclaimer) excess(ctx context.Context, part float64) (string, error) {
	disk, err := diskOf(r.root)
	if err != nil {
		return "", fmt.Errorf("read the size of the disk: %w", err)
	}
	if r.opts.Budget.High > 0 {
		if used := share(disk.UsedBytes, disk.UsedBytes+disk.FreeBytes); used > part {
			return fmt.Sprintf("%.1f %% of the bytes are used, of %.1f %%", 100*used, 100*part), nil
		}
		if used := share(disk.TotalInodes-disk.FreeInodes, disk.TotalInodes); used > part {
			return fmt.Sprintf("%.1f %% of the inodes are used, of %.1f %%", 100*used, 100*part), nil
		}
	}
	if r.opts.Budget.Bytes > 0 {
		used, err := r.usedBytes(ctx)
		if err != nil {
			return "", err
		}
		if used > r.opts.Budget.Bytes {
			return fmt.Sprintf("%d bytes lie below the box, of %d", used, r.opts.Budget.Bytes), nil
		}
	}
	return "", nil
}

// share is part of whole; nothing is used of what has no limit.
func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
