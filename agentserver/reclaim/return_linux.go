package reclaim

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// returnUsed puts back what a process still uses. After the rename no new look-up
// can enter, so what is found unused now stays so. Of what a tool installed into
// a workspace a process gives no sign (an interpreter holds none of its
// environment's files open), so there anybody who works in the workspace counts.
func (r *Reclaimer) returnUsed(p *party) {
	if len(p.open()) == 0 {
		return
	}
	users, err := r.users()
	var dirs []string
	for _, entry := range p.open() {
		switch rule := r.opts.Catalogue.rule(entry.Rule); {
		case entry.Tier == box.TierRuntime:
			dirs = append(dirs, r.abs(entry.Path))
		case rule.in == inWorkspace:
			dirs = append(dirs, r.abs(p.place.workspaceOf(entry.Path)))
		}
	}
	worker, workerErr := occupant(dirs...)
	for i, entry := range p.items {
		if entry.Skipped != "" {
			continue
		}
		user, fault := users[p.names[i]], err
		if rule := r.opts.Catalogue.rule(entry.Rule); user == "" && (entry.Tier == box.TierRuntime || rule.in == inWorkspace) {
			user, fault = worker, errors.Join(err, workerErr)
		}
		if fault != nil {
			user = "cannot tell: " + fault.Error()
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
	defer func() {
		r.mu.Lock()
		delete(r.unproven, name)
		r.mu.Unlock()
	}()
	rule := r.opts.Catalogue.rule(entry.Rule)
	if rule == nil || rule.look.below() == lookNone {
		return ""
	}
	trash, err := r.tree.openDir(r.tree.fd, trashName)
	if err != nil {
		return ""
	}
	defer unix.Close(trash)
	fd, names, err := r.tree.list(trash, name)
	if err != nil {
		return "" // gone already, or told when it is deleted
	}
	defer unix.Close(fd)
	why := r.tree.forbidden(fd, names, rule.look.below(), 0)
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

// mayGo reports whether an entry of the trash may be deleted by whoever tidies
// up there: not while the pass that moved it has not looked through it, and
// after a crash only once that was done here.
func (r *Reclaimer) mayGo(name string) bool {
	r.mu.Lock()
	waits := r.unproven[name]
	r.mu.Unlock()
	if waits {
		return false
	}
	id, number, _ := strings.Cut(name, "-")
	at, err := strconv.Atoi(number)
	if err != nil || !planForm.MatchString(id) {
		return true
	}
	plan, err := r.recall(id)
	if err != nil {
		return true
	}
	r.mu.Lock()
	cutOff := plan.State == applying && at >= 0 && at < len(plan.Items)
	var entry item
	if cutOff {
		entry = plan.Items[at]
	}
	r.mu.Unlock()
	return !cutOff || r.prove(name, &entry) == ""
}

// forbidden returns why a tree holds what must never go, by names alone.
func (t *tree) forbidden(fd int, names []dirEntry, look look, depth int) string {
	if depth > maxDepth {
		return "nested deeper than any cache is"
	}
	for _, entry := range names {
		if pattern, bad := look.mustStay(entry.name); bad {
			return "holds " + pattern + ", which no cache holds"
		}
		if entry.kind != unix.DT_DIR && entry.kind != unix.DT_UNKNOWN {
			continue
		}
		child, below, err := t.list(fd, entry.name)
		if err != nil {
			continue
		}
		why := t.forbidden(child, below, look, depth+1)
		unix.Close(child)
		if why != "" {
			return why
		}
	}
	return ""
}
