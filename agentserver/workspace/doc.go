// Package workspace looks at the work in a box: what of it exists nowhere else,
// and an archive of all of it. Package server calls it, and the adapter that
// removes worktrees.
//
// What it must never do: change anything, follow a link, enter a mount, run what
// a repository says, or need room on the disk. What it could not look at is
// reported as unknown, never as clean or as absent.
//
// # The archive
//
// A tar, compressed with zstd: the tree below files/, without what can be made
// again and without git directories; for each repository a bundle of all that it
// holds and patches of what is not committed, below repositories/; lists with
// the length and sum of each entry below entries/; and the manifest, which comes
// last and so proves that the archive is whole. The types in package box say
// what each means.
//
// Streams whose length is not known beforehand are cut into parts of 4 MiB, one
// entry each, since a tar wants lengths and a box may have no room to find them
// out. "cat" joins them.
//
// The same state of the files gives the same bytes: names are sorted, owners are
// 0, a file's time of change is kept in whole seconds since it is part of that
// state, and those of directories and links are 0 since removing a cache moves
// them. Bundles depend on how git keeps its objects: after a "git gc" they may
// differ. Memory does not depend on the size of anything, but on the number of
// names in one directory.
//
// Sparse files are read without their holes and stored with them, as zeros that
// compress to nothing: the sum in the list is that of what a reader gets, and a
// tar of the standard library holds no holes. So holes take the time of summing
// zeros, and no reads and no room. Of names with several links the first becomes a file and
// the rest links to it, for the first 100,000 such files; later ones are stored
// each.
package workspace
