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
// What it looks at are the box's own home and the places that a [Layout] names:
// homes with caches, workspaces with what was installed there, and the runtime of
// a conversation as a whole. One table of rules, a [Catalogue], says how each
// directory is recognised; in workspaces git must ignore it as a whole, too.
//
// A pass selects first and acts later. It selects while the agent-server goes on;
// only the renames, and the search that follows them, are made while the
// conversation is held. Before a runtime moves, the conversation is marked as
// conversation-archived. What was moved is looked through once more before it is
// deleted, since something may have been put deep inside between the two.
//
// [Reclaimer.Pass] is what a box does by itself: it finishes what was marked, and
// keeps a [Budget].
//
// In detail, each chosen directory is looked at again right before it is renamed
// into a trash directory on the same filesystem; only then are processes searched
// for one that still uses it, since after the rename no new path look-up can
// enter; a hit is renamed back. Deleting follows in the background, and after a
// crash at the next start. What a process uses in the trash, or what could not be
// removed, is tried again ever more rarely.
//
// What can't be renamed into the trash stays: deleting in place would let a
// process enter while it is deleted, and gains nothing. On an overlay it is a
// directory of the image, which frees no space; without the right to rename
// there is no right to delete what is inside either.
//
// A search sees processes of other mount namespaces too. It can't see those of
// other process namespaces, threads that left the directory or files of their
// process, and what a service of the machine holds, see (*Reclaimer).users. What
// may not be inspected and may be inside keeps everything.
//
// Bytes are what comes free: the blocks of files whose last link goes, over the
// whole plan. On filesystems where copies share blocks it is a lower bound, and
// said so; ZFS, network and FUSE filesystems can't tell and count as allocated.
package reclaim
