package agentserver

import (
	"time"

	"github.com/openhands/boxkeeper/box"
)

// What boxd adds to server_info.capabilities, one name for each promise.
const (
	CapabilityStorageStatus    = "storage_status_v1"         // GET /api/storage
	CapabilityStorageReclaim   = "storage_reclaim_v1"        // POST /api/storage/reclaim
	CapabilityUse              = "boxd_use_v1"               // GET /api/boxd/use
	CapabilityDrain            = "drain_v1"                  // POST and DELETE /api/boxd/drain
	CapabilityHistoryImport    = "history_import_v1"         // PUT /api/boxd/history/{id}
	CapabilityUnsaved          = "workspace_unsaved_v1"      // GET /api/workspace/unsaved
	CapabilityExport           = "workspace_export_v1"       // GET /api/workspace/export
	CapabilityWorkspaceRestore = "workspace_restore_v1"      // PUT /api/boxd/workspace/{sha256}
	CapabilityRetention        = "conversation_retention_v1" // GET and PUT /api/conversations/{id}/retention
)

// Use is the answer of GET /api/boxd/use on the wire: [box.Use] with ages in
// seconds, and how the agent-server behind boxd fares.
type Use struct {
	IdleSeconds   float64 `json:"idle_seconds"`
	Running       int     `json:"running"`
	InFlight      int     `json:"in_flight"`
	Sockets       int     `json:"sockets"` // open WebSockets; looking is not use
	Digest        string  `json:"digest"`
	Conversations int     `json:"conversations"`
	Events        int     `json:"events"`
	// DrainSeconds is what is left of the drain lease, zero when none is held.
	DrainSeconds float64 `json:"drain_seconds"`
	Server       Process `json:"server"`
}

// Box returns u in the domain's form.
func (u Use) Box() box.Use {
	return box.Use{
		IdleFor:       box.Span(u.IdleSeconds * float64(time.Second)),
		Running:       u.Running,
		InFlight:      u.InFlight,
		Digest:        u.Digest,
		Conversations: u.Conversations,
		Events:        u.Events,
	}
}

// Process says how the agent-server that boxd runs is doing.
type Process struct {
	// State is "none" when boxd serves alone, else "starting", "running" or
	// "restarting".
	State    string `json:"state"`
	Restarts int    `json:"restarts"`
	LastExit string `json:"last_exit,omitzero"` // how it ended last
}

// Drain is the body of POST /api/boxd/drain.
type Drain struct {
	LeaseSeconds float64 `json:"lease_seconds"`
}

// MaxDrainLease bounds a drain lease, so that a caller that died cannot keep a
// box shut.
const MaxDrainLease = time.Hour

// Restored is the answer of PUT /api/boxd/workspace/{sha256}: what was put back.
type Restored struct {
	SHA256       string `json:"sha256"` // of the tar
	Entries      int64  `json:"entries"`
	Files        int64  `json:"files"`
	Bytes        int64  `json:"bytes"`
	Repositories int    `json:"repositories"`
	// Missing is what the archive lacks of the workspace as it was.
	Missing int64 `json:"missing,omitzero"`
	// Notes say what is there and not as it was, at most a hundred, and MoreNotes
	// how many there are beside them.
	Notes     []string `json:"notes,omitzero"`
	MoreNotes int      `json:"more_notes,omitzero"`
}
