package reclaim

import (
	"context"
	"time"
)

// Layout knows how an agent-server lays out its conversations on disk: which
// directories were made for each, and how to keep one still while something of
// it is moved. Each layout is a package of its own below agentserver/storage;
// a new one needs nothing else.
type Layout interface {
	// Places lists the conversations, the longest unused first. Paths are below
	// the box's root, none is a link, and none was chosen by a caller: what a
	// person pointed a conversation at is theirs. A place that can't be read is
	// listed with Busy set, never left out.
	Places(ctx context.Context) ([]Place, error)
	// Hold keeps a conversation still until release is called: it returns busy,
	// in words, when it is used or when that can't be told, and then release is
	// nil. It does not wait. Hold it for renames only: the agent-server waits
	// for the same locks.
	Hold(ctx context.Context, conversation string) (release func(), busy string, err error)
	// Archive records that a conversation is conversation-archived, on the disk
	// before it returns, and may be repeated. It comes before anything of tier
	// runtime moves; the caller holds the conversation.
	Archive(ctx context.Context, conversation string) error
}

// Place is where one conversation keeps what can be made again.
type Place struct {
	// Conversation is its id, 32 hexadecimal digits; empty for what belongs to
	// no single one.
	Conversation string
	// Home has caches in it as they lie below a $HOME; empty means none.
	Home string
	// Workspaces are where its dependencies may go.
	Workspaces []string
	// Runtime is what tier runtime takes as a whole; empty means nothing.
	Runtime string
	// LastActive is the time of its last use, from LastActiveFrom; a zero time
	// means unknown, which never counts as old.
	LastActive     time.Time
	LastActiveFrom string
	// Busy says why nothing of it may be taken; empty when it may.
	Busy string
	// Archived says that it is conversation-archived, since ArchivedAt when that
	// is known.
	Archived   bool
	ArchivedAt time.Time
}
