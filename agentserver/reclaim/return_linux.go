package reclaim

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// returnUsed puts back what a process still uses. After the rename no new look-up
// can enter, so what is found unused now stays so.
func (r *Reclaimer) returnUsed(p *party) {
	if len(p.open()) == 0 {
		return
	}
	users, err := r.users(r.usedBy(p))
	for i, entry := range p.items {
		if entry.Skipped != "" {
			continue
		}
		user := users[p.names[i]]
		if err != nil {
			user = "cannot tell: " + err.Error()
		}
		if user == "" {
			continue
		}
		entry.Skipped = "in use by " + user
		if err := r.restore(p.trash, p.names[i], entry); err != nil && !errors.Is(err, unix.ENOENT) {
			// A new one took its place. It stays in the trash until nobody uses it.
			entry.Skipped += "; it stays moved aside until then, since a new one took its place"
		}
	}
}

// usedBy returns, for what a party has in the trash, the path by which a process
// uses it without having anything of it open. An interpreter in an environment
// is a link to one outside, and what is installed beside a program is read when
// it is needed: of a workspace it is enough to work anywhere in it.
func (r *Reclaimer) usedBy(p *party) map[string]string {
	out := map[string]string{}
	for i, entry := range p.items {
		if entry.Skipped != "" {
			continue
		}
		place := entry.Path
		if rule := r.opts.Catalogue.rule(entry.Rule); rule.in == inWorkspace {
			place = p.place.workspaceOf(entry.Path)
		}
		out[p.names[i]] = r.abs(place)
	}
	return out
}

// restore renames an entry of the trash to where it was.
func (r *Reclaimer) restore(trash int, name string, entry *item) error {
	parent, err := r.tree.openDir(r.tree.fd, path.Dir(entry.Path))
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := rename(trash, name, parent, path.Base(entry.Path)); err != nil {
		return err
	}
	_ = unix.Fsync(parent)
	return nil
}

// prove looks through what was moved aside before it is deleted, for what must
// never go: between the plan and the move something may have been put deep
// inside. Nothing can be put there any more. A hit is put back; the reason is
// returned, empty when it may go.
func (r *Reclaimer) prove(name string, entry *item) (kept string) {
	rule := r.opts.Catalogue.rule(entry.Rule)
	if rule == nil || rule.look.below() == lookNone {
		return ""
	}
	trash, err := r.tree.openTrash()
	if err != nil {
		return ""
	}
	defer unix.Close(trash)
	fd, names, err := r.tree.list(trash, name)
	if err != nil {
		return "" // gone already, or told when it is deleted
	}
	defer unix.Close(fd)
	sum := newTally()
	if err := r.tree.walk(r.stopped, fd, names, rule.look.below(), sum); err != nil {
		return "" // ended early: the next start looks again
	}
	why := sum.stay
	if why == "" && rule.id == mavenRule {
		why = r.tree.builtHere(r.stopped, fd, names, 0)
	}
	if why == "" || r.stopped.Err() != nil {
		return ""
	}
	if err := r.restore(trash, name, entry); err == nil {
		return why
	}
	parent, err := r.tree.openDir(r.tree.fd, path.Dir(entry.Path))
	if err != nil {
		return why + "; it could not be put back: " + err.Error()
	}
	defer unix.Close(parent)
	beside := path.Base(entry.Path) + ".kept-" + name
	if err := rename(trash, name, parent, beside); err != nil {
		return why + "; it could not be put back: " + err.Error()
	}
	return why + "; a new one took its place, so it is kept as " + beside
}
