// Package unpack writes the tree of a workspace's archive below one directory:
// boxd when a box gets its workspace back, and the command line when somebody
// takes an exported workspace out of the store.
//
// What it must never do: write outside of its directory, follow or overwrite
// what is there, make anything but files, directories and links, or take a name
// that git would act on. Names come from an archive that may be hostile, and
// other programs may change the directory meanwhile: everything is opened below
// one descriptor of it.
//
// An archive holds no owners: all that is written belongs to whoever writes it.
// Times are those of files alone, in whole seconds. Zeros in the size of blocks
// become holes.
package unpack
