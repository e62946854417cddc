// Package scan measures directory trees below one root: allocated and apparent
// bytes, files, directories and inodes, with hard links counted once, and what
// really comes free when some of the trees go. Package server is its caller.
//
// What it must never do: change anything, follow a link, cross a mount (a bind
// mount of the same filesystem included), or wait for a part of the tree that
// does not answer. Paths are opened beneath a descriptor of the root, with the
// kernel resolving without links and without crossing a mount; where neither
// the kernel's own look-up nor the numbers of mounts can promise that, nothing
// is measured.
//
// One walk answers for all trees: the caller gives places, each with a label,
// and gets sums by label. Workers share the directories; each reads names in
// large blocks and looks at the files by pointing into that block, so that a
// file costs one system call and no memory.
//
// For a place whose figures may be estimates, directories are remembered. While
// a directory's times and number stay the same, so do the names in it, and its
// sums are taken from memory for the price of one look. A file that changes in
// place does not change its directory, so its growth is not seen there: that is
// for caches and dependencies, which tools fill with new files, and never for
// work, histories, or the bytes that an action says it freed. Nor is it seen when
// a file gets or loses a name outside of everything that is measured.
package scan
