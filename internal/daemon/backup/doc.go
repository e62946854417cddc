// Package backup writes a whole data directory into one file and makes a data
// directory from such a file.
//
// What it is for: the engine's histories, the exports, the installation key and
// the boxes of local instances belong together, and must be kept and put back
// together. A backup is taken while all of it is in use.
//
// What it must never do: follow a link, overwrite anything, leave half a data
// directory where an engine would take it for a whole one, or leave something
// out without saying so.
//
// Who calls it: the commands backup and restore of boxkeeperd. It links no
// engine.
//
// A backup is a tar archive in PAX form inside one zstd frame:
//
//	backup.json           what this is, first, so that a wrong file is refused early
//	data/...              the data directory, each directory right before its content
//	data/engine/temporal.db  a checked copy of the engine's data file, before all
//	                      else: whatever the engine refers to is at least as new
//	manifest.jsonl        last: the line of backup.json, one line per entry in
//	                      order, and one with the totals
//
// A file that got shorter while it was read is filled up with zeros and
// followed at once by an entry of the same name that replaces it; the manifest
// knows the second one only.
package backup

import "time"

const (
	formatName    = "boxkeeper-backup"
	formatVersion = 1

	headName     = "backup.json"
	dataName     = "data"
	manifestName = "manifest.jsonl"

	// linkedKey marks, in an entry's PAX records, a file that later entries may
	// be hard links to.
	linkedKey = "BOXKEEPER.linked"

	engineDir = "engine"
	dataFile  = engineDir + "/temporal.db" // in the archive, whatever its path on disk
	// restoringFile keeps an engine from starting while it is there; see
	// package datafile.
	restoringFile = engineDir + "/restoring"

	// maxDepth bounds how deep directories may lie in each other: one descriptor
	// is open for each.
	maxDepth = 500
	// maxFile is the largest file that a common file system holds, in bytes.
	maxFile = 16 << 40
	// maxLine bounds the head and each line of a manifest, in bytes. A path has
	// at most a few thousand.
	maxLine = 1 << 20
)

// Summary is what a backup or a restore did.
type Summary struct {
	File      string    `json:"file"`
	Data      string    `json:"data"`
	CreatedAt time.Time `json:"created_at"` // of the backup
	// Installation is the public id of the installation, empty when it had none.
	Installation string `json:"installation,omitzero"`
	Entries      int64  `json:"entries"` // files, directories and links
	Bytes        int64  `json:"bytes"`   // content of all files
	FileBytes    int64  `json:"file_bytes"`
	SHA256       string `json:"sha256"` // of the backup file
	// Boxes says whether the directories of boxes are in the backup.
	Boxes bool `json:"boxes"`
	// Changed counts files that were written to while they were read.
	Changed int `json:"changed_while_read"`
	// ChangedFirst names some of them, below the data directory.
	ChangedFirst []string  `json:"changed_first,omitempty"`
	LeftOut      []LeftOut `json:"left_out,omitempty"`
	// Outside is what belongs to the installation and is not in its data
	// directory, so not in the backup either.
	Outside []string `json:"outside,omitempty"`
}

// LeftOut is what a backup did not take, and why.
type LeftOut struct {
	What  string `json:"what"`
	Count int    `json:"count"`
}

// Progress is how far a backup or a restore is.
type Progress struct {
	Stage   string // a verb phrase, such as "reading"
	Entries int64
	Bytes   int64
	Path    string // what is worked on, below the data directory
}

// head is the first entry of an archive and the first line of its manifest.
type head struct {
	Format       string    `json:"format"`
	Version      int       `json:"version"`
	CreatedAt    time.Time `json:"created_at"`
	Installation string    `json:"installation,omitzero"`
	Boxes        bool      `json:"boxes"`
	Outside      []string  `json:"outside,omitempty"`
}

// total is the last line of a manifest.
type total struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
}
