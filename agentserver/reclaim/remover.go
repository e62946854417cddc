package reclaim

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// Remover is a Layout whose runtimes go by a rule of its own and not by a move
// alone, such as worktrees, which a repository knows of. Items are of tier
// runtime, with paths relative to the box's root. accept says that a person gives
// up what is nowhere else; what is in doubt stays all the same.
type Remover interface {
	Layout
	// Judge says of each runtime of a conversation why Remove would leave it. It
	// removes nothing.
	Judge(ctx context.Context, conversation string, accept bool) ([]box.ReclaimItem, error)
	// Remove looks again and moves them into the trash, under names that begin
	// with [RemovedPrefix]. It may be repeated. The caller marked the conversation
	// as conversation-archived.
	Remove(ctx context.Context, conversation string, accept bool) ([]box.ReclaimItem, error)
}

// RemovedPrefix begins the names in the trash of what a Remover put there.
const RemovedPrefix = "removed-"

// allOrNone leaves all when one of them stays: a conversation whose other worktree
// is somebody's work is not archived.
func allOrNone(items []box.ReclaimItem) {
	for i := range items {
		if items[i].Skipped == "" {
			continue
		}
		for j := range items {
			if items[j].Skipped == "" {
				items[j].Skipped = "stays with " + items[i].Path
			}
		}
		return
	}
}
