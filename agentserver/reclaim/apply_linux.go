package reclaim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
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
	report := plan.report()
	report.Pending = true
	report.FreedBytes = max(0, r.free()-plan.before)
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
	again := plan.State == applying
	plan.State = applying
	items := slices.Clone(plan.Items)
	r.mu.Unlock()
	// On the disk before anything moves, so that a crash is not taken for a
	// plan that never began.
	r.remember(plan)
	trash, err := r.tree.openTrash()
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "open the trash: %w", err)
	}
	defer unix.Close(trash)
	before := r.free()
	for i := range items {
		entry := &items[i]
		switch {
		case entry.Skipped != "":
		case ctx.Err() != nil:
			entry.Skipped = "not reached: the caller gave up"
		default:
			entry.Skipped = r.moveAside(trash, trashEntry(id, i), entry, again)
		}
	}
	r.returnUsed(trash, id, items)
	taken := takenItems(id, items)
	r.own(taken, true)
	r.mu.Lock()
	plan.Items, plan.before, plan.ended = items, before, ended
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

// trashEntry names item i of a plan in the trash.
func trashEntry(id string, i int) string { return id + "-" + strconv.Itoa(i) }

// trashed is one item that lies in the trash.
type trashed struct {
	name string
	item int
}

// takenItems lists what the plan put into the trash.
func takenItems(id string, items []item) []trashed {
	var out []trashed
	for i := range items {
		if items[i].Skipped == "" {
			out = append(out, trashed{trashEntry(id, i), i})
		}
	}
	return out
}

// moveAside looks at one item again and renames it into the trash; it returns
// why the item was left, empty when it was taken. again says that a pass which
// did not end may have moved it already.
func (r *Reclaimer) moveAside(trash int, name string, entry *item, again bool) (skipped string) {
	rule := ruleOf(entry.Rule)
	if rule == nil || !rule.covers(entry.Path) {
		return "no rule of this program is about it"
	}
	dir, base := path.Split(entry.Path)
	parent, err := r.tree.openDir(r.tree.fd, strings.TrimSuffix(dir, "/"))
	if err != nil {
		return refusal(err)
	}
	defer unix.Close(parent)
	fd, names, err := r.tree.list(parent, base)
	if err != nil {
		if errors.Is(err, unix.ENOENT) && again {
			return "" // moved by the pass before; its trash is deleted, or was
		}
		if errors.Is(err, unix.ENOENT) {
			return "is gone already"
		}
		if errors.Is(err, unix.ENOTDIR) {
			return "changed since the plan"
		}
		return refusal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return refusal(err)
	}
	if !entry.same(&st) || st.Mtim.Nano() != entry.MtimeNS {
		return "changed since the plan"
	}
	if _, why := r.recognise(rule, fd, names); why != "" {
		return why
	}
	// A directory that carries a mount can be renamed, and the mount moves along.
	mount, err := mountsBelow(filepath.Join(r.tree.path, entry.Path))
	switch {
	case err != nil:
		return "cannot tell whether something is mounted inside: " + err.Error()
	case mount != "":
		return "another filesystem is mounted inside"
	}
	err = rename(parent, base, trash, name)
	if (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) && st.Mode&0o200 == 0 {
		// A directory without write permission cannot change its parent.
		if unix.Fchmod(fd, st.Mode&0o7777|0o700) == nil {
			if err = rename(parent, base, trash, name); err != nil {
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
	if !r.holds(trash, name, entry) {
		return r.putBack(trash, name, parent, base)
	}
	_ = unix.Fsync(parent)
	_ = unix.Fsync(trash)
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

// covers reports whether the rule is about this path, so that a journal cannot
// name any other.
func (r *rule) covers(place string) bool {
	if dir, last := path.Split(r.path); last == "*" {
		at, name := path.Split(place)
		return at == dir && name != "" && name != "." && name != ".." && !claimed(strings.TrimSuffix(dir, "/"), name)
	}
	return r.path == place
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

// returnUsed puts back what a process still uses.
func (r *Reclaimer) returnUsed(trash int, id string, items []item) {
	users, err := r.users(usedBy(r.tree.path, id, items))
	for _, t := range takenItems(id, items) {
		entry := &items[t.item]
		user := users[t.name]
		if err != nil {
			user = "cannot tell: " + err.Error()
		}
		if user == "" {
			continue
		}
		entry.Skipped = "in use by " + user
		dir, base := path.Split(entry.Path)
		parent, openErr := r.tree.openDir(r.tree.fd, strings.TrimSuffix(dir, "/"))
		if openErr == nil {
			openErr = rename(trash, t.name, parent, base)
			_ = unix.Fsync(parent)
			unix.Close(parent)
		}
		if openErr != nil && !errors.Is(openErr, unix.ENOENT) {
			// A new one took its place. It stays in the trash until nobody uses it.
			entry.Skipped += "; it stays moved aside until then, since a new one took its place"
		}
	}
}

// finish deletes what was taken and records the answer. Ended early by Close, it
// records nothing, and the plan goes on when it is asked for again.
func (r *Reclaimer) finish(plan *record, taken []trashed) {
	defer r.own(taken, false)
	results := make([]removal, len(taken))
	var removed, heldBytes int64
	held := heldOpen()
	for i, t := range taken {
		r.discard(t.name, held, &results[i])
		removed += results[i].bytes
		heldBytes += results[i].held
		if r.stopped.Err() != nil {
			return
		}
	}
	freed := r.free() - plan.before
	if freed < removed {
		r.settle()
		freed = r.free() - plan.before
	}
	r.mu.Lock()
	items := slices.Clone(plan.Items)
	for i, t := range taken {
		if out := results[i]; out.left > 0 {
			items[t.item].Skipped = fmt.Sprintf("removed in part, %d left: %s", out.left, strings.Join(out.faults, "; "))
		}
	}
	plan.Items = items
	report := plan.report()
	report.FreedBytes, report.RemovedBytes, report.HeldOpenBytes = max(0, freed), removed, heldBytes
	plan.State, plan.Report = done, &report
	r.mu.Unlock()
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

// free is what an unprivileged writer can use now, in bytes.
func (r *Reclaimer) free() int64 {
	disk, err := diskOf(r.root)
	if err != nil {
		return 0
	}
	return disk.FreeBytes
}
