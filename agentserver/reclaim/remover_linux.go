package reclaim

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// judged adds what goes by the own rule of a layout.
func (g *gathering) judged(ctx context.Context, layout Remover) error {
	items, err := layout.Judge(ctx, g.place.Conversation, g.scope.accept)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		g.unread = append(g.unread, "judge what belongs to "+g.place.Conversation+": "+err.Error())
		return nil
	}
	allOrNone(items)
	for _, one := range items {
		entry := item{ReclaimItem: one, Own: true}
		entry.Skipped = cmp.Or(entry.Skipped, g.place.Busy)
		fd, names, err := g.r.tree.list(g.r.tree.fd, one.Path)
		if err != nil {
			entry.Skipped = cmp.Or(entry.Skipped, refusal(err))
			g.add(entry, nil)
			continue
		}
		sum, err := g.weigh(ctx, fd, names, lookNone)
		unix.Close(fd)
		if err != nil {
			return err
		}
		entry.Bytes, entry.LowerBound = sum.freed(), sum.lowerBound()
		g.add(entry, sum)
	}
	return nil
}

// removeOwn carries out the items that go by the own rule of their layout.
func (r *Reclaimer) removeOwn(ctx context.Context, accept bool, items []item, again bool) {
	of := map[string][]*item{}
	var conversations []string
	for i := range items {
		one := &items[i]
		if !one.Own || one.Skipped != "" || again && r.gone(one.Path) {
			continue
		}
		if of[one.ConversationID] == nil {
			conversations = append(conversations, one.ConversationID)
		}
		of[one.ConversationID] = append(of[one.ConversationID], one)
	}
	if len(conversations) == 0 {
		return
	}
	all, faults := r.places(ctx)
	for _, id := range conversations {
		at := slices.IndexFunc(all, func(p placed) bool {
			_, ok := p.layout.(Remover)
			return ok && p.Conversation == id
		})
		why := strings.Join(append([]string{"its conversation has no such place"}, faults...), "; ")
		if at >= 0 {
			why = r.removeOf(ctx, &all[at], accept, of[id])
		}
		for _, one := range of[id] {
			one.Skipped = cmp.Or(one.Skipped, why)
		}
	}
}

// removeOf removes the runtimes of one conversation; why is the reason for all
// that it did not decide on.
func (r *Reclaimer) removeOf(ctx context.Context, place *placed, accept bool, items []*item) (why string) {
	layout, _ := place.layout.(Remover)
	if place.Busy != "" {
		return place.Busy
	}
	// Once more before the mark, which is never taken back.
	fresh, err := layout.Judge(ctx, place.Conversation, accept)
	if err != nil {
		return "cannot be judged: " + err.Error()
	}
	allOrNone(fresh)
	if decide(items, fresh); !slices.ContainsFunc(items, func(i *item) bool { return i.Skipped == "" }) {
		return ""
	}
	release, busy, err := layout.Hold(ctx, place.Conversation)
	switch {
	case err != nil:
		return "cannot tell whether it is used: " + err.Error()
	case busy != "":
		return busy
	}
	err = layout.Archive(ctx, place.Conversation)
	release()
	if err != nil {
		return "could not be marked as conversation-archived: " + err.Error()
	}
	r.step("marked")
	done, err := layout.Remove(ctx, place.Conversation, accept)
	if err != nil {
		return "could not be removed: " + err.Error()
	}
	decide(items, done)
	return ""
}

// decide gives items what is said of them; one of which nothing is said is gone.
func decide(items []*item, said []box.ReclaimItem) {
	for _, one := range items {
		at := slices.IndexFunc(said, func(s box.ReclaimItem) bool { return s.Path == one.Path })
		switch {
		case at < 0:
			one.Skipped = cmp.Or(one.Skipped, "is gone already")
		case one.Skipped == "":
			one.Skipped, one.Evidence = said[at].Skipped, cmp.Or(said[at].Evidence, one.Evidence)
		}
	}
}

// removedOwn lists what Removers put into the trash.
func (r *Reclaimer) removedOwn() []trashed {
	fd, err := r.tree.openTrash()
	if err != nil {
		return nil // the sweep says so
	}
	defer unix.Close(fd)
	names, err := readDir(fd)
	if err != nil {
		return nil
	}
	var out []trashed
	for _, one := range names {
		if strings.HasPrefix(one.name, RemovedPrefix) {
			out = append(out, trashed{one.name, -1})
		}
	}
	return out
}
