// Package reclaim frees disk space inside a box: it plans what may go, moves it
// aside, and deletes it. It runs in the box, on plain paths below one root, and
// is called by package server alone.
//
// What it must never do: follow a link, cross a mount (a bind mount of the same
// filesystem included), take anything that it does not recognise by what is
// inside, or touch histories, settings and work. Every path is opened from a
// descriptor of the root with the kernel resolving beneath it, without links and
// without crossing a mount; where the kernel cannot promise that, nothing is
// deleted.
//
// A pass selects first and acts later. Each chosen directory is looked at again
// right before it is renamed into a trash directory on the same filesystem;
// only then are processes searched for one that still uses it, since after the
// rename no new path look-up can enter; a hit is renamed back. Deleting follows
// in the background, and after a crash at the next start. What a process uses in
// the trash, or what could not be removed, is tried again ever more rarely.
//
// Not seen: a process in another mount namespace, and one of another user that
// we may not inspect. The root is private to its owner, which is what makes
// the latter acceptable for caches.
package reclaim
