package box

// Tier is how deep a reclaim pass goes; each includes the ones before it.
type Tier string

// The tiers, and the level of each.
const (
	TierCaches       Tier = "caches"       // rebuilt by their tools on demand
	TierDependencies Tier = "dependencies" // installed again from a lockfile
	TierRuntime      Tier = "runtime"      // conversation-archived: home and workspace go, history stays
)

// StorageStatus is the answer of GET /api/storage: what the disk of a box
// holds. Asking never moves the idle clock. Sizes are allocated bytes, with
// hard links counted once.
type StorageStatus struct {
	Disk          Disk                  `json:"disk"`
	Conversations []ConversationStorage `json:"conversations"`
	// Reclaimable is what a pass of tier caches would free now, in bytes.
	Reclaimable int64 `json:"reclaimable_bytes"`
	// ByTier is what a pass of each tier would free now, in bytes; a deeper tier
	// includes the ones before it.
	ByTier map[Tier]int64 `json:"reclaimable_by_tier,omitzero"`
	// Left lists what a pass would leave, each with the reason.
	Left []ReclaimItem `json:"left,omitzero"`
	// TrashBytes are moved aside already and are being deleted.
	TrashBytes int64 `json:"trash_bytes,omitzero"`
	Partial    bool  `json:"partial,omitzero"` // something could not be read; see Errors
	// Errors lists what could not be read, without file contents.
	Errors []string `json:"errors,omitzero"`
}

// Disk is the filesystem that the box's state lives on, as statfs answers.
type Disk struct {
	TotalBytes int64   `json:"total_bytes"`
	UsedBytes  int64   `json:"used_bytes"`
	FreeBytes  int64   `json:"free_bytes"` // free to an unprivileged writer
	Budget     float64 `json:"budget,omitzero"`
	// TreeBudgetBytes is how much may lie below the box's root, where a budget of
	// that kind is set; Budget is of the whole filesystem.
	TreeBudgetBytes int64 `json:"tree_budget_bytes,omitzero"`
	// A filesystem can be full of files while bytes are free. Zero total means
	// that it has no limit.
	TotalInodes int64 `json:"total_inodes,omitzero"`
	FreeInodes  int64 `json:"free_inodes,omitzero"`
}

// ConversationStorage is one conversation's part of the disk.
type ConversationStorage struct {
	ID     string `json:"id"`
	State  string `json:"state"` // execution_status, or "archived"
	Events int    `json:"events"`
	// IdleSeconds is the age of its last use, taken from LastActiveFrom.
	IdleSeconds int64 `json:"idle_seconds"`
	// LastActiveFrom names what the age was taken from, such as
	// "base_state.json" or "newest event"; empty means the start of boxd.
	LastActiveFrom string `json:"last_active_from,omitzero"`
	HistoryBytes   int64  `json:"history_bytes"`
	// CachesBytes, DependenciesBytes and WorkspaceBytes are what lies in its home
	// and workspace; the last is what is left without the other two.
	CachesBytes       int64 `json:"caches_bytes,omitzero"`
	DependenciesBytes int64 `json:"dependencies_bytes,omitzero"`
	WorkspaceBytes    int64 `json:"workspace_bytes,omitzero"`
	// ByTier is what a pass of each tier over this conversation would free.
	ByTier map[Tier]int64 `json:"reclaimable_by_tier,omitzero"`
	// Skipped says why a pass would leave it now; empty when it would not.
	Skipped   string     `json:"skipped,omitzero"`
	Retention *Retention `json:"retention,omitzero"` // as it takes effect
	// ArchivedSeconds is the time since it was conversation-archived, -1 when it
	// is and the time is not known; absent when it is not.
	ArchivedSeconds int64 `json:"archived_seconds,omitzero"`
}

// RetentionMode says when a conversation becomes conversation-archived.
type RetentionMode string

// The modes of GET and PUT /api/conversations/{id}/retention.
const (
	RetentionDefault RetentionMode = "default" // as the box is set
	RetentionDays    RetentionMode = "days"    // after Days without use
	RetentionOnStop  RetentionMode = "on_stop" // when its runtime is stopped
)

// Retention is how long one conversation keeps its runtime.
type Retention struct {
	Mode RetentionMode `json:"mode"`
	Days float64       `json:"days,omitzero"` // more than 0, with mode "days" only
}

// MaxReclaimConversations is how many conversations one request may name.
const MaxReclaimConversations = 100

// ReclaimRequest is the body of POST /api/storage/reclaim.
type ReclaimRequest struct {
	DryRun bool   `json:"dry_run,omitzero"`
	Tiers  []Tier `json:"tiers,omitzero"` // empty means caches
	// PlanID is the id of a plan from a dry run; with it only that plan's items
	// are taken, each validated again. A repeated apply answers the first report.
	PlanID string `json:"plan_id,omitzero"`
	// ConversationIDs limits the pass to these; empty means all, and what belongs
	// to no conversation.
	ConversationIDs []string `json:"conversation_ids,omitzero"`
	// AcceptUnsaved, with tier runtime, says that a person gives up work that is
	// nowhere else in the worktrees of these conversations: it is kept as
	// references of the repository and in an archive in the box, and they go.
	// Whatever is in doubt stays all the same.
	AcceptUnsaved bool `json:"accept_unsaved,omitzero"`
}

// ReclaimReport is the answer: the plan of a dry run, or what was done.
type ReclaimReport struct {
	PlanID string        `json:"plan_id"`
	DryRun bool          `json:"dry_run,omitzero"`
	Items  []ReclaimItem `json:"items,omitzero"`
	// Omitted is how many items there are beside those in Items, the smallest:
	// a history is no place for a long list.
	Omitted int `json:"omitted_items,omitzero"`
	// PlannedBytes is what deleting all items frees, computed over their union:
	// a file counts only when its last link is inside.
	PlannedBytes int64 `json:"planned_bytes"`
	// FreedBytes is the growth of free space by statfs around the deletion; other
	// writers on the same filesystem make it noisy. Zero in a dry run, and when
	// nothing was removed.
	FreedBytes int64 `json:"freed_bytes"`
	// RemovedBytes is what was unlinked, counted at each unlink.
	RemovedBytes int64 `json:"removed_bytes"`
	// RemovedLowerBound says that at least RemovedBytes were: boxd was killed while
	// it deleted, and what it had counted in its last moment is lost.
	RemovedLowerBound bool `json:"removed_lower_bound,omitzero"`
	// Pending says that the deletion goes on in the background.
	Pending bool `json:"pending,omitzero"`
	// LowerBound says that at least PlannedBytes come free: something could not
	// be read, or shares its blocks in a way that cannot be told from outside.
	LowerBound bool `json:"lower_bound,omitzero"`
	// HeldOpenBytes were deleted and come free when their last user ends.
	HeldOpenBytes int64 `json:"held_open_bytes,omitzero"`
	// PlannedInodes is how many files and directories the items hold.
	PlannedInodes int64 `json:"planned_inodes,omitzero"`
	// Errors lists what could not be read while it was planned, at most 50 lines
	// without file contents; what could not be removed is told with its item.
	Errors []string `json:"errors,omitzero"`
}

// ReclaimItem is one directory of a plan, or one that was left, with the reason.
type ReclaimItem struct {
	Path string `json:"path"` // relative to the box's root
	Rule string `json:"rule"` // catalogue id, such as "npm"
	Tier Tier   `json:"tier"`
	// ConversationID is whose it is; empty when it belongs to the whole box.
	ConversationID string `json:"conversation_id,omitzero"`
	// Bytes is what comes free when this item alone goes.
	Bytes int64 `json:"bytes"`
	// LowerBound says that at least Bytes come free.
	LowerBound bool `json:"lower_bound,omitzero"`
	// RemovedBytes is what came free when it was deleted. Of a file with names in
	// several items it counts with the one that was deleted last.
	RemovedBytes int64 `json:"removed_bytes,omitzero"`
	// Evidence is how it was recognised.
	Evidence string `json:"evidence,omitzero"`
	// Skipped says why it was left; empty when it is (to be) taken.
	Skipped string `json:"skipped,omitzero"`
	// Native is the command by which its own tool shrinks or clears it, for people
	// to run; boxd never runs it.
	Native string `json:"native,omitzero"`
}

// Use is what a box says of its own use, always as ages: clocks in a box are
// wall clocks in process memory and are never compared with ours.
type Use struct {
	IdleFor Span `json:"idle_for"` // age of the last use
	// Running counts conversations that execute now.
	Running int `json:"running"`
	// InFlight counts requests that the box is serving and that would start work.
	InFlight int `json:"in_flight,omitzero"`
	// Digest fingerprints the history: conversation ids and event counts. Equal
	// digests mean that an export still covers everything.
	Digest        string `json:"digest,omitzero"`
	Conversations int    `json:"conversations"`
	Events        int    `json:"events"`
}
