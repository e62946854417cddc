package reclaim

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// candidate is a directory that was looked at, with what deleting it frees.
type candidate struct {
	item
	sum *tally // nil when it was not measured
}

// gathering collects candidates.
type gathering struct {
	r      *Reclaimer
	scope  scope
	place  *placed
	found  []candidate
	at     map[string]int // index in found by path
	unread []string
	// unmeasured leaves sizes, and the search for what must never go, to others.
	unmeasured bool
	// needs is what needs what, once somebody has looked.
	needs func(*placed) string
}

// plan selects what a pass would take. It changes nothing.
func (r *Reclaimer) plan(ctx context.Context, limits scope) (*record, error) {
	found, err := r.gather(ctx, limits)
	if err != nil {
		return nil, err
	}
	out := newRecord()
	out.Accept = limits.accept
	out.Errors = told(found.unread)
	for _, one := range found.listed(limits.tier) {
		out.Items = append(out.Items, one.item)
	}
	sum := union(found.taken(limits.tier))
	out.PlannedBytes, out.PlannedInodes, out.LowerBound = sum.freed(), sum.inodes(), sum.lowerBound()
	return out, nil
}

// gather looks at every directory in the scope that a rule may be about.
func (r *Reclaimer) gather(ctx context.Context, limits scope) (*gathering, error) {
	var all []placed
	var faults []string
	if limits.place != nil {
		all = []placed{*limits.place}
	} else {
		all, faults = r.places(ctx)
	}
	g := &gathering{r: r, scope: limits, at: map[string]int{}, unread: faults}
	return g, g.among(ctx, all)
}

// among looks around the places that are in the scope.
func (g *gathering) among(ctx context.Context, all []placed) error {
	for i := range all {
		g.place = &all[i]
		if !g.scope.wants(g.place) {
			continue
		}
		if err := g.lookAround(ctx); err != nil {
			return err
		}
	}
	slices.SortFunc(g.found, func(a, b candidate) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// lookAround goes over one place.
func (g *gathering) lookAround(ctx context.Context) error {
	if g.place.Runtime != "" && level(g.scope.tier) >= level(box.TierRuntime) {
		if err := g.consider(ctx, &runtimeRule, g.place.Runtime); err != nil {
			return err
		}
	}
	if layout, ok := g.place.layout.(Remover); ok && level(g.scope.tier) >= level(box.TierRuntime) {
		if err := g.judged(ctx, layout); err != nil {
			return err
		}
	}
	if g.place.Home != "" {
		if err := g.home(ctx); err != nil {
			return err
		}
	}
	for _, workspace := range g.place.Workspaces {
		if err := g.workspace(ctx, workspace); err != nil {
			return err
		}
	}
	return nil
}

func (g *gathering) home(ctx context.Context) error {
	c := g.r.opts.Catalogue
	for i := range c.rules {
		rule := &c.rules[i]
		if rule.in != inHome || level(rule.tier) > level(g.scope.tier) {
			continue
		}
		dir, last := path.Split(rule.path)
		if last != "*" {
			if err := g.consider(ctx, rule, path.Join(g.place.Home, rule.path)); err != nil {
				return err
			}
			continue
		}
		dir = strings.TrimSuffix(dir, "/")
		fd, names, err := g.r.tree.list(g.r.tree.fd, path.Join(g.place.Home, dir))
		if err != nil {
			// A link or mount in the way was reported by the rules before.
			continue
		}
		for _, entry := range names {
			if c.claimed(dir, entry.name) {
				continue
			}
			if kind := g.r.tree.kindOf(fd, entry); kind != unix.DT_DIR && kind != unix.DT_LNK {
				continue
			}
			if err := g.consider(ctx, rule, path.Join(g.place.Home, dir, entry.name)); err != nil {
				unix.Close(fd)
				return err
			}
		}
		unix.Close(fd)
	}
	return nil
}

// consider adds the directory at place, taken or with the reason why not. What
// is not there is not mentioned.
func (g *gathering) consider(ctx context.Context, rule *rule, place string) error {
	entry := item{ReclaimItem: box.ReclaimItem{
		Path: place, Rule: rule.id, Tier: rule.tier, ConversationID: g.place.Conversation, Native: rule.native,
	}}
	if i, twice := g.at[place]; twice && (g.found[i].Evidence != "" || g.found[i].Rule == rule.id) {
		// Of two layouts that know it, the one that forbids it counts.
		g.found[i].Skipped = cmp.Or(g.found[i].Skipped, g.place.Busy)
		return nil
	}
	t := g.r.tree
	fd, names, err := t.list(t.fd, place)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR) && !g.r.isLink(place):
		return nil
	case err != nil:
		if errors.Is(err, unix.ENOTDIR) {
			err = unix.ELOOP
		}
		entry.Skipped = cmp.Or(g.place.Busy, refusal(err))
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			g.unread = append(g.unread, place+": "+err.Error())
		}
		g.add(entry, nil)
		return nil
	}
	defer unix.Close(fd)
	var kept string
	entry.Evidence, kept = g.r.evidence(rule, g.place, place, fd, names)
	if entry.Evidence == "" {
		entry.Skipped = kept
		g.add(entry, nil)
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	entry.remember(&st)
	sum, err := g.weigh(ctx, fd, names, rule.look.below())
	if err != nil {
		return err
	}
	entry.Bytes, entry.LowerBound, entry.Skipped = sum.freed(), sum.lowerBound(), cmp.Or(kept, sum.stay)
	for _, line := range sum.faults.lines() {
		g.unread = append(g.unread, place+": "+line)
	}
	switch {
	case entry.Skipped != "":
	case g.place.Busy != "":
		entry.Skipped = g.place.Busy
	default:
		entry.Skipped = g.deepFault(ctx, rule, g.place, fd, names)
	}
	g.add(entry, sum)
	return nil
}

// weigh measures the open directory, unless others do.
func (g *gathering) weigh(ctx context.Context, fd int, names []dirEntry, how look) (*tally, error) {
	sum := newTally()
	if g.unmeasured {
		sum.stay = unfit(fd)
		return sum, nil
	}
	return sum, g.r.tree.measure(ctx, fd, names, how, sum)
}

// deepFault looks for reasons to leave a recognised directory that are slow to
// find.
func (g *gathering) deepFault(ctx context.Context, rule *rule, place *placed, fd int, names []dirEntry) string {
	r := g.r
	switch {
	case rule.tier == box.TierRuntime:
		if why := r.unsaved(ctx, place); why != "" {
			return why
		}
		if g.needs == nil {
			g.needs = r.needs(ctx)
		}
		return g.needs(place)
	case rule.id == mavenRule:
		return r.tree.builtHere(ctx, fd, names, 0)
	}
	return ""
}

// unsaved says which work would be lost with the runtime of a place. One that is
// conversation-archived already is asked for again: what lies there now may be of
// somebody who came after it.
func (r *Reclaimer) unsaved(ctx context.Context, place *placed) string {
	workspaces := slices.Concat(place.Workspaces, place.elsewhere)
	if len(workspaces) == 0 {
		return ""
	}
	if r.opts.Unsaved == nil {
		return "nobody can tell whether its workspace holds unsaved work"
	}
	for _, workspace := range workspaces {
		why, err := r.opts.Unsaved(ctx, r.abs(workspace))
		switch {
		case err != nil:
			return "cannot tell whether its workspace holds unsaved work: " + err.Error()
		case why != "":
			return "holds unsaved work: " + why
		}
	}
	return ""
}

// needs looks once what cannot do without something elsewhere, and returns what
// says so of a place.
func (r *Reclaimer) needs(ctx context.Context) func(*placed) string {
	of := r.opts.Needs.Of(ctx)
	return func(place *placed) string {
		dirs := place.tops()
		for i, top := range dirs {
			dirs[i] = r.abs(top)
		}
		return of(dirs...)
	}
}

// add takes a directory; of two rules about one of that name, the one counts that
// recognises it.
func (g *gathering) add(entry item, sum *tally) {
	if i, twice := g.at[entry.Path]; twice {
		if entry.Evidence != "" {
			g.found[i] = candidate{entry, sum}
		}
		return
	}
	g.at[entry.Path] = len(g.found)
	g.found = append(g.found, candidate{entry, sum})
}

// taken returns what a pass of the tier takes.
func (g *gathering) taken(tier box.Tier) []*candidate {
	return outermost(g.found, func(c *candidate) bool { return c.Skipped == "" && level(c.Tier) <= level(tier) }, func(c *candidate) string { return c.Path })
}

// listed returns what a plan shows: all but what goes with something else.
func (g *gathering) listed(tier box.Tier) []*candidate {
	outer := map[string]bool{}
	for _, one := range g.taken(tier) {
		outer[one.Path] = true
	}
	var out []*candidate
	for i := range g.found {
		one := &g.found[i]
		if level(one.Tier) <= level(tier) && !insideOf(outer, one.Path) {
			out = append(out, one)
		}
	}
	return out
}

// union is what taking these frees, each file counted once. It uses their sums up,
// since a second copy of a million links would be too much.
func union(taken []*candidate) *tally {
	sum := newTally()
	for _, one := range taken {
		sum.add(one.sum)
	}
	return sum
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
