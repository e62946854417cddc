package reclaim

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// progressEvery is how often what a deletion has counted so far is journaled, and
// progressBytes are as many bytes as are worth a line in between: a kill loses the
// count of less.
const (
	progressEvery = 250 * time.Millisecond
	progressBytes = 1 << 20
)

// deletion is one trash entry that is being deleted.
type deletion struct {
	ended chan struct{}
	// soFar is how many bytes came free with what was unlinked until now.
	soFar func() int64
	// plan is the one that moved the item with this number there, -1 for what a
	// [Remover] moved; nil when nobody counts it.
	plan *record
	item int
	// counted is what the plan has of soFar.
	counted int64
}

// count adds what came free since the last time to the plan. The caller holds mu.
func (one *deletion) count() {
	now := one.soFar()
	more := now - one.counted
	one.counted = now
	switch {
	case one.plan == nil || more == 0:
		return
	case one.item < 0:
		one.plan.OwnBytes += more
	default:
		one.plan.Items[one.item].RemovedBytes += more
	}
	one.plan.uncounted += more
}

// planOf returns the plan that counts what comes free with a trash entry, nil
// when none does: who has answered answers the same for ever.
func (r *Reclaimer) planOf(name string) (plan *record, at int) {
	r.mu.Lock()
	plan = r.owned[name]
	r.mu.Unlock()
	parts := entryForm.FindStringSubmatch(name)
	if parts == nil {
		if plan == nil && strings.HasPrefix(name, RemovedPrefix) {
			plan = r.interrupted()
		}
		return plan, -1
	}
	plan, err := r.recall(parts[1])
	if err != nil {
		return nil, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at, err = strconv.Atoi(parts[2])
	if err != nil || at >= len(plan.Items) || plan.State != applying {
		return nil, 0
	}
	return plan, at
}

// interrupted returns the plan of an earlier process whose [Remover] put things
// into the trash; nil when it may have been one of several.
func (r *Reclaimer) interrupted() *record {
	var found []*record
	for _, id := range r.cutOff {
		plan, err := r.recall(id)
		if err != nil {
			continue
		}
		r.mu.Lock()
		if plan.State == applying && slices.ContainsFunc(plan.Items, func(i item) bool { return i.Own && i.Skipped == "" }) {
			found = append(found, plan)
		}
		r.mu.Unlock()
	}
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

// noteProgress journals what is counted of deletions that are under way, at most
// every progressEvery or for progressBytes; always when all is true.
func (r *Reclaimer) noteProgress(all bool) {
	r.mu.Lock()
	for _, one := range r.busy {
		one.count()
	}
	late := time.Since(r.noted) >= progressEvery
	var due []*record
	for _, plan := range r.plans {
		if plan.uncounted > 0 && plan.State == applying && (all || late || plan.uncounted >= progressBytes) {
			plan.uncounted = 0
			due = append(due, plan)
		}
	}
	if len(due) > 0 {
		r.noted = time.Now()
	}
	r.mu.Unlock()
	for _, plan := range due {
		r.remember(plan)
	}
}

// noting journals the progress of a deletion until end is called.
func (r *Reclaimer) noting() (end func()) {
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.noteProgress(false)
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-over
	}
}
