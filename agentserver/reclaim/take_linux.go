package reclaim

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// party is what one pass takes of one place.
type party struct {
	place *placed
	items []*item
	names []string // in the trash, one for each item
	trash int
}

// parties sorts the items of a plan by the place that they belong to now. An
// item of which no place and no rule is left gets its reason.
func (r *Reclaimer) parties(ctx context.Context, id string, items []item, again bool) []*party {
	all, faults := r.places(ctx)
	byPlace := map[*placed]*party{}
	var out []*party
	for i := range items {
		entry := &items[i]
		if entry.Own || entry.Skipped != "" || again && r.gone(entry.Path) {
			continue // moved by the pass before; its trash is deleted, or was
		}
		var owner *placed
		for p := range all {
			// Of two layouts that know it, the one that forbids it counts.
			if all[p].rule(r.opts.Catalogue, entry) != nil && (owner == nil || all[p].Busy != "") {
				owner = &all[p]
			}
		}
		if owner == nil {
			entry.Skipped = strings.Join(append([]string{"no rule of this program is about it, or its conversation has no such place"}, faults...), "; ")
			continue
		}
		if byPlace[owner] == nil {
			byPlace[owner] = &party{place: owner}
			out = append(out, byPlace[owner])
		}
		one := byPlace[owner]
		one.items = append(one.items, entry)
		one.names = append(one.names, trashEntry(id, i))
	}
	return out
}

// gone reports whether nothing is at place any more.
func (r *Reclaimer) gone(place string) bool {
	fd, err := r.tree.open(r.tree.fd, place, unix.O_PATH)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.ENOENT)
}

// heldBound is how long git may take while a conversation is held; what it has not
// said by then stays.
const heldBound = 2 * time.Second

// take moves what is still as it was planned into the trash, while the
// conversation is held, and puts back what turns out to be used.
func (r *Reclaimer) take(ctx context.Context, p *party) {
	if p.place.Busy != "" {
		p.leave(p.place.Busy)
		return
	}
	// What is slow comes before the hold.
	ignored := r.stillIgnored(ctx, p.place, p.open(), nil)
	for _, entry := range p.open() {
		if entry.Tier == box.TierRuntime {
			if entry.Skipped = r.unsaved(ctx, p.place); entry.Skipped == "" {
				entry.Skipped = r.needs(ctx)(p.place)
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		p.leave("not reached: boxd ended")
		return
	case len(p.open()) == 0:
		return
	}
	if p.place.layout == nil {
		r.move(ctx, p)
	} else {
		release, busy, err := p.place.layout.Hold(ctx, p.place.Conversation)
		if err != nil {
			busy = "cannot tell whether it is used: " + err.Error()
		}
		if busy != "" {
			p.leave(busy)
			return
		}
		r.step("held")
		// Somebody may have added what is in it to the index since.
		asking, enough := context.WithTimeout(ctx, heldBound)
		r.stillIgnored(asking, p.place, p.open(), ignored)
		enough()
		r.move(ctx, p)
		release()
	}
	r.step("released")
	r.sync(p)
}

// move renames the items of a party; the caller holds the conversation.
func (r *Reclaimer) move(ctx context.Context, p *party) {
	for i, entry := range p.items {
		if entry.Skipped != "" {
			continue
		}
		entry.Skipped = r.moveAside(ctx, p, p.names[i], entry)
		r.step("moved")
	}
	r.returnUsed(p)
}

// open returns the items that are still to be taken.
func (p *party) open() []*item {
	return slices.DeleteFunc(slices.Clone(p.items), func(entry *item) bool { return entry.Skipped != "" })
}

// leave gives all items that are not left yet the reason.
func (p *party) leave(why string) {
	for _, entry := range p.open() {
		entry.Skipped = why
	}
}

// moveAside looks at one item again and renames it into the trash; it returns
// why the item was left, empty when it was taken.
func (r *Reclaimer) moveAside(ctx context.Context, p *party, name string, entry *item) (skipped string) {
	rule := p.place.rule(r.opts.Catalogue, entry)
	dir, base := path.Split(entry.Path)
	parent, err := r.tree.openDir(r.tree.fd, strings.TrimSuffix(dir, "/"))
	if err != nil {
		return refusal(err)
	}
	defer unix.Close(parent)
	fd, names, err := r.tree.list(parent, base)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "is gone already"
	case errors.Is(err, unix.ENOTDIR):
		return "changed since the plan"
	case err != nil:
		return refusal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return refusal(err)
	}
	// A runtime is the same whatever was written into it since.
	if !entry.same(&st) || rule.tier != box.TierRuntime && st.Mtim.Nano() != entry.MtimeNS {
		return "changed since the plan"
	}
	evidence, why := r.evidence(rule, p.place, entry.Path, fd, names)
	switch {
	case why != "":
		return why
	case evidence != entry.Evidence:
		return "changed since the plan"
	}
	// A directory that carries a mount can be renamed, and the mount moves along.
	mount, err := mountsBelow(r.abs(entry.Path))
	switch {
	case err != nil:
		return "cannot tell whether something is mounted inside: " + err.Error()
	case mount != "":
		return mountedInside
	}
	if rule.tier == box.TierRuntime {
		if why := r.archive(ctx, p, entry); why != "" {
			return why
		}
	}
	err = rename(parent, base, p.trash, name)
	if (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) && st.Mode&0o200 == 0 {
		// A directory without write permission cannot change its parent.
		if unix.Fchmod(fd, st.Mode&0o7777|0o700) == nil {
			if err = rename(parent, base, p.trash, name); err != nil {
				_ = unix.Fchmod(fd, st.Mode&0o7777)
			}
		}
	}
	switch {
	case errors.Is(err, unix.EXDEV):
		return inLayer
	case err != nil:
		return "cannot be moved aside: " + reason(err)
	}
	// The rename went by name: what lies in the trash must be what was looked at.
	if !r.holds(p.trash, name, entry) {
		return r.putBack(p.trash, name, parent, base)
	}
	return ""
}

// archive marks the conversation before its runtime moves. A crash between the
// two is made good by the next pass. What can be told before is told before,
// since the mark is never taken back.
func (r *Reclaimer) archive(ctx context.Context, p *party, entry *item) (skipped string) {
	if why := r.unsaved(ctx, p.place); why != "" {
		return why
	}
	// By name for now: what has a file open in it shows once it is in the trash.
	users, err := r.users(map[string]string{runtimeRule.id: r.abs(entry.Path)})
	switch {
	case err != nil:
		return "cannot tell whether it is used: " + err.Error()
	case users[runtimeRule.id] != "":
		return "in use by " + users[runtimeRule.id]
	}
	if p.place.layout == nil {
		return "has no layout that could mark it"
	}
	if err := p.place.layout.Archive(ctx, p.place.Conversation); err != nil {
		return "could not be marked as conversation-archived: " + err.Error()
	}
	r.step("marked")
	return ""
}

// putBack returns something that is not ours to take to where it was, or beside
// it when that is taken again. It must not stay in the trash.
func (r *Reclaimer) putBack(trash int, name string, parent int, base string) (skipped string) {
	if rename(trash, name, parent, base) == nil {
		return "changed while it was taken"
	}
	beside := base + ".kept-" + name
	if err := rename(trash, name, parent, beside); err != nil {
		r.opts.Log.Error("put back what took the place of a cache", "entry", name, "error", err)
		return "changed while it was taken, and could not be put back: " + err.Error()
	}
	return "changed while it was taken; what took its place is kept as " + beside
}

// holds reports whether the trash entry is the item's directory.
func (r *Reclaimer) holds(trash int, name string, entry *item) bool {
	fd, err := r.tree.open(trash, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && entry.same(&st)
}

func (i *item) remember(st *unix.Stat_t) {
	i.Dev, i.Ino, i.MtimeNS = uint64(st.Dev), st.Ino, st.Mtim.Nano() //nolint:unconvert // the width differs between architectures
}

func (i *item) same(st *unix.Stat_t) bool {
	return uint64(st.Dev) == i.Dev && st.Ino == i.Ino //nolint:unconvert // the width differs between architectures
}

// rename never replaces what has the new name.
func rename(fromDir int, from string, toDir int, to string) error {
	err := unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		return err
	}
	// A filesystem, kernel or filter of system calls without that. A directory can take only the place of
	// an empty one, and a new link takes nothing's place.
	var st unix.Stat_t
	if err := unix.Fstatat(fromDir, from, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.Renameat(fromDir, from, toDir, to)
	}
	if err := unix.Linkat(fromDir, from, toDir, to, 0); err != nil {
		return err
	}
	return unix.Unlinkat(fromDir, from, 0)
}

// sync makes the moves of a party durable.
func (r *Reclaimer) sync(p *party) {
	synced := map[string]bool{}
	for _, entry := range p.open() {
		dir := path.Dir(entry.Path)
		if synced[dir] {
			continue
		}
		synced[dir] = true
		if fd, err := r.tree.openDir(r.tree.fd, dir); err == nil {
			_ = unix.Fsync(fd)
			unix.Close(fd)
		}
	}
	if len(synced) > 0 {
		_ = unix.Fsync(p.trash)
	}
}
