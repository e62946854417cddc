// Package local is the driver whose boxes are a directory and a process on this
// machine. Nothing of it needs a service, so it serves the first start, tests
// and small installations.
//
// It isolates nothing: the processes of a box run as the worker's user and can
// read and change whatever that user can, other boxes and the worker's data
// included. Use it for code that is trusted as much as the worker.
//
// Under the directory of an instance:
//
//	engine-id             names this place; part of the fingerprint
//	boxes/<name>/         what a box sees: home, tmp, run and what it writes
//	boxes/.engine-id      the same id, so that an unmounted boxes/ is noticed
//	control/<name>.json   our record: identity, process, intent; never a secret
//	trash/                directories that are being deleted
//
// The record is written before a process is started, stopped or deleted and
// again afterwards, so that a crash at any point leaves something to go on
// from. Processes are found again by pid and start time, by a marker in their
// environment, by session, and by descent; a process that removes the marker,
// leaves the session and outlives its parents escapes. One machine (one process table)
// may use a directory at a time; several workers on it may. Boxes outlive the
// worker unless whoever stops it ends its whole control group: a systemd unit
// needs KillMode=process.
//
// What the driver must never do: signal a process that it has not just proven
// to be the box's, follow a link out of a box, delete what lies behind a mount,
// or take an unreadable directory for an absent box. Watching and freezing need
// Linux; starting, stopping and deleting work on macOS too, where processes
// that leave the box's process group are found by descent only.
package local
