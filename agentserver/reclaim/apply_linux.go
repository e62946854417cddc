package reclaim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// syncBound is how long the filesystem may take to write back before it is
// measured without waiting for the rest.
const syncBound = 5 * time.Second

// apply carries out a plan, or answers what it did before.
func (r *Reclaimer) apply(ctx context.Context, id string) (box.ReclaimReport, error) {
	plan, err := r.begin(ctx, id)
	if err != nil {
		return box.ReclaimReport{}, err
	}
	timer := time.NewTimer(r.opts.Wait)
	defer timer.Stop()
	select {
	case <-plan.ended:
	case <-timer.C:
	case <-ctx.Done(): // what was moved is deleted all the same
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if plan.Report != nil {
		return *plan.Report, nil
	}
	for _, one := range r.busy {
		one.count()
	}
	report := plan.report()
	report.Pending = true
	report.FreedBytes = r.freed(plan.before, report.RemovedBytes)
	return report, nil
}

// begin moves what the plan says into the trash and starts to delete it, unless
// that was done before.
func (r *Reclaimer) begin(ctx context.Context, id string) (*record, error) {
	r.pass.Lock()
	defer r.pass.Unlock()
	plan, err := r.recall(id)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, box.Errorf(box.ClassCanceled, "apply the plan: %w", err)
	}
	r.mu.Lock()
	if plan.ended != nil {
		r.mu.Unlock()
		return plan, nil
	}
	ended := make(chan struct{})
	if plan.Report != nil {
		close(ended)
		plan.ended = ended
		r.mu.Unlock()
		return plan, nil
	}
	// From here on it is carried out to its end, whoever still waits: what a repeat
	// answers is what this one did.
	ctx, end := r.untilClosed(ctx)
	defer end()
	again := plan.State == applying
	plan.State = applying
	items := slices.Clone(plan.Items)
	r.mu.Unlock()
	// On the disk before anything moves, so that a crash is not taken for a
	// plan that never began.
	r.remember(plan)
	r.step("journaled")
	trash, err := r.tree.openTrash()
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "open the trash: %w", err)
	}
	defer unix.Close(trash)
	before := r.free()
	for _, one := range r.parties(ctx, id, items, again) {
		one.trash = trash
		r.take(ctx, one)
	}
	r.removeOwn(ctx, plan.Accept, items, again)
	taken := append(takenItems(id, items), r.removedOwn()...)
	r.own(plan, taken, true)
	r.mu.Lock()
	for i := range items {
		items[i].RemovedBytes = plan.Items[i].RemovedBytes // counted meanwhile
	}
	plan.Items, plan.before, plan.ended, plan.again = items, before, ended, again
	r.mu.Unlock()
	r.working.Go(func() {
		r.finish(plan, taken)
		close(ended)
		// What this pass or an earlier one had to leave in the trash may be free by
		// now.
		r.sweep()
	})
	return plan, nil
}

// untilClosed is ctx without its end; only Close ends it.
func (r *Reclaimer) untilClosed(ctx context.Context) (lasting context.Context, end func()) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(r.stopped, cancel)
	return lasting, func() {
		unwatch()
		cancel()
	}
}

// trashEntry names item i of a plan in the trash.
func trashEntry(id string, i int) string { return id + "-" + strconv.Itoa(i) }

// trashed is one item that lies in the trash.
type trashed struct {
	name string
	item int // -1 for what a Remover put there
}

// takenItems lists what the plan put into the trash.
func takenItems(id string, items []item) []trashed {
	var out []trashed
	for i := range items {
		if items[i].Skipped == "" && !items[i].Own {
			out = append(out, trashed{trashEntry(id, i), i})
		}
	}
	return out
}

// finish deletes what was taken and records the answer. Ended early by Close, it
// records nothing, and the plan goes on when it is asked for again.
func (r *Reclaimer) finish(plan *record, taken []trashed) {
	defer r.own(nil, taken, false)
	results := make([]removal, len(taken))
	kept := make([]string, len(taken))
	var heldBytes int64
	held := heldOpen()
	for i, t := range taken {
		r.step("proving")
		if t.item >= 0 {
			kept[i] = r.prove(t.name, &plan.Items[t.item])
		}
		if kept[i] == "" {
			r.step("deleting")
			r.discard(t.name, held, &results[i])
			heldBytes += results[i].held
		}
		if r.stopped.Err() != nil {
			r.noteProgress(true)
			return
		}
	}
	r.step("deleted")
	r.mu.Lock()
	removed := plan.report().RemovedBytes
	r.mu.Unlock()
	freed := r.freed(plan.before, removed)
	if freed < removed {
		r.settle()
		freed = r.freed(plan.before, removed)
	}
	r.mu.Lock()
	items := slices.Clone(plan.Items)
	for i, t := range taken {
		switch out := results[i]; {
		case t.item < 0: // what is left of it the sweep tries again
		case kept[i] != "":
			items[t.item].Skipped = kept[i]
		case out.left > 0:
			items[t.item].Skipped = fmt.Sprintf("removed in part, %d left: %s", out.left, strings.Join(out.faults, "; "))
		}
	}
	plan.Items = items
	report := plan.report()
	report.FreedBytes, report.HeldOpenBytes = freed, heldBytes
	plan.State, plan.Report = done, &report
	r.mu.Unlock()
	r.step("reporting")
	r.remember(plan)
}

// settle makes the filesystem write back, so that what it frees later is seen;
// a slow disk is not waited for.
func (r *Reclaimer) settle() {
	fd, err := r.tree.openTrash()
	if err != nil {
		return
	}
	synced := make(chan struct{})
	go func() {
		defer close(synced)
		_ = unix.Syncfs(fd)
		unix.Close(fd)
	}()
	timer := time.NewTimer(syncBound)
	defer timer.Stop()
	select {
	case <-synced:
	case <-timer.C:
	}
}

// freed is by how much free space grew since before, in bytes, never negative.
// When nothing was removed that growth is the work of others, and nothing was
// freed.
func (r *Reclaimer) freed(before, removed int64) int64 {
	if removed == 0 {
		return 0
	}
	return max(0, r.free()-before)
}

// free is what an unprivileged writer can use now, in bytes.
func (r *Reclaimer) free() int64 {
	disk, err := diskOf(r.root)
	if err != nil {
		return 0
	}
	return disk.FreeBytes
}
