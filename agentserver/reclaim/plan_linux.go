package reclaim

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// plan selects what a pass would take. It changes nothing.
func (r *Reclaimer) plan(ctx context.Context) (*record, error) {
	out := newRecord()
	union := newTally()
	for i := range catalogue {
		rule := &catalogue[i]
		dir, last := path.Split(rule.path)
		if last != "*" {
			if err := r.consider(ctx, rule, rule.path, out, union); err != nil {
				return nil, err
			}
			continue
		}
		dir = strings.TrimSuffix(dir, "/")
		fd, names, err := r.tree.list(r.tree.fd, dir)
		if err != nil {
			// A link or mount in the way was reported by the rules before.
			continue
		}
		for _, entry := range names {
			if claimed(dir, entry.name) {
				continue
			}
			if kind := r.tree.kindOf(fd, entry); kind != unix.DT_DIR && kind != unix.DT_LNK {
				continue
			}
			if err := r.consider(ctx, rule, path.Join(dir, entry.name), out, union); err != nil {
				unix.Close(fd)
				return nil, err
			}
		}
		unix.Close(fd)
	}
	slices.SortFunc(out.Items, func(a, b item) int { return strings.Compare(a.Path, b.Path) })
	out.PlannedBytes, out.PlannedInodes, out.LowerBound = union.freed(), union.inodes(), union.lowerBound()
	return out, nil
}

// consider adds the directory at place to the plan, taken or with the reason
// why not. What is not there is not mentioned.
func (r *Reclaimer) consider(ctx context.Context, rule *rule, place string, out *record, union *tally) error {
	entry := item{ReclaimItem: box.ReclaimItem{Path: place, Rule: rule.id, Tier: box.TierCaches}}
	fd, names, err := r.tree.list(r.tree.fd, place)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR) && !r.isLink(place):
		return nil
	case err != nil:
		entry.Skipped = refusal(err)
		if errors.Is(err, unix.ENOTDIR) {
			entry.Skipped = refusal(unix.ELOOP)
		}
		out.Items = append(out.Items, entry)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			out.unread = append(out.unread, place+": "+err.Error())
		}
		return nil
	}
	defer unix.Close(fd)
	if entry.Evidence, entry.Skipped = r.recognise(rule, fd, names); entry.Skipped != "" {
		out.Items = append(out.Items, entry)
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	entry.remember(&st)
	sum := newTally()
	if err := r.tree.measure(ctx, fd, names, rule.deep, sum); err != nil {
		return err
	}
	entry.Bytes, entry.LowerBound, entry.Skipped = sum.freed(), sum.lowerBound(), sum.stay
	for _, line := range sum.faults.lines() {
		out.unread = append(out.unread, place+": "+line)
	}
	if entry.Skipped == "" {
		union.add(sum)
	}
	out.Items = append(out.Items, entry)
	return nil
}

// recognise returns the evidence that the open directory is what the rule says,
// or the reason to leave it.
func (r *Reclaimer) recognise(rule *rule, fd int, names []dirEntry) (evidence, why string) {
	plain := make([]string, 0, len(names))
	for _, entry := range names {
		plain = append(plain, entry.name)
	}
	evidence, why = rule.judge(plain, r.tree.tagged(fd))
	switch {
	case why != "":
		return "", why
	case rule.keep != "":
		return "", rule.keep
	case rule.id == "uv" && r.uvLinks():
		return "", "uv is set to link packages from its cache into environments"
	}
	return evidence, ""
}

// uvLinks reports whether environments point into uv's cache by links, which
// deleting it would break.
func (r *Reclaimer) uvLinks() bool {
	if strings.EqualFold(r.opts.Env("UV_LINK_MODE"), "symlink") {
		return true
	}
	for _, place := range []string{"home/.config/uv/uv.toml", "home/.config/uv.toml"} {
		fd, err := r.tree.open(r.tree.fd, place, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			continue
		}
		head := make([]byte, 64<<10)
		n, err := unix.Read(fd, head)
		unix.Close(fd)
		if err != nil {
			return true // it is there and cannot be read: leave the cache
		}
		for line := range strings.Lines(string(head[:max(n, 0)])) {
			if strings.Contains(line, "link-mode") && strings.Contains(line, "symlink") {
				return true
			}
		}
	}
	return false
}

// isLink reports whether place is a link itself, which is worth a line in the
// plan; a plain file is not.
func (r *Reclaimer) isLink(place string) bool {
	dir, name := path.Split(place)
	at, err := r.tree.open(r.tree.fd, strings.TrimSuffix(dir, "/"), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer unix.Close(at)
	var st unix.Stat_t
	_, err = r.tree.statAt(at, name, &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// refusal says in words why a path was not opened.
func refusal(err error) string {
	switch {
	case errors.Is(err, unix.ELOOP):
		return "is a link, or lies behind one"
	case errors.Is(err, unix.EXDEV):
		return "is a mount, or lies behind one"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "cannot be read by this user: " + reason(err)
	}
	return "cannot be opened: " + reason(err)
}

// ruleOf returns the rule with this id, nil for one that a newer or older
// program wrote into the journal.
func ruleOf(id string) *rule {
	for i := range catalogue {
		if catalogue[i].id == id {
			return &catalogue[i]
		}
	}
	return nil
}
