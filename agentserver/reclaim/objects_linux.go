package reclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// From when on git itself thinks that it is time for a "git gc": so many objects
// in one of the 256 directories that it keeps loose ones in, or so many packs.
const (
	manyLoose = 27
	manyPacks = 50
)

// ownHistory is why the objects of a repository are never taken, nor packed by us.
const ownHistory = "is the history of a repository: git gc makes it smaller, which boxd does not run, since that follows the repository's own settings and hooks"

// objects lists the objects of a repository that are worth a "git gc". Those of a
// linked worktree are elsewhere.
func (g *gathering) objects(ctx context.Context, repo string) error {
	t := g.r.tree
	place := repo + "/.git/objects"
	fd, names, err := t.list(t.fd, place)
	if err != nil {
		return nil // the look at what git ignores says what is wrong with it
	}
	defer unix.Close(fd)
	evidence := g.worthPacking(fd, names)
	if _, twice := g.at[place]; twice || evidence == "" {
		return nil
	}
	sum, err := g.weigh(ctx, fd, names, lookNone)
	if err != nil {
		return err
	}
	g.add(item{ReclaimItem: box.ReclaimItem{
		Path: place, Rule: ObjectsRule, Tier: box.TierCaches, ConversationID: g.place.Conversation,
		Bytes: sum.freed(), LowerBound: sum.lowerBound(), Evidence: evidence, Native: "git gc", Skipped: ownHistory,
	}}, sum)
	return nil
}

// worthPacking says in words what git would pack or drop, empty when it is not
// worth it. It looks into two directories, as git does.
func (g *gathering) worthPacking(fd int, names []dirEntry) string {
	within := func(dir string) []dirEntry {
		if !slices.ContainsFunc(names, func(entry dirEntry) bool { return entry.name == dir }) {
			return nil
		}
		below, inside, err := g.r.tree.list(fd, dir)
		if err != nil {
			return nil
		}
		unix.Close(below)
		return inside
	}
	loose, packs, broken := len(within("17")), 0, 0
	for _, one := range within("pack") {
		if strings.HasSuffix(one.name, ".pack") {
			packs++
		}
		if strings.HasPrefix(one.name, "tmp_") {
			broken++
		}
	}
	switch {
	case loose > manyLoose:
		return fmt.Sprintf("holds about %d loose objects", 256*loose)
	case packs > manyPacks:
		return fmt.Sprintf("holds %d packs", packs)
	case broken > 0:
		return "holds packs that were not finished"
	}
	return ""
}
