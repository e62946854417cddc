// Package gitpack reads what git has compressed, as a stream: bundles, packs, and
// loose objects. It hands the texts in them to whoever looks through them: names of
// references, commits, tags, the content of files, the names in trees, and of
// differences what they add. Package exports calls it, with what a box gave.
//
// What it must never do: run git, write to a disk, take a number on trust, hold
// more than about 16 MB, or put anything that it read into an error. It is no check
// of a repository: the sums of packs are not compared, and no reference is followed.
//
// # Differences
//
// Git keeps most versions of a file as the difference to another one: copy these
// bytes of that, insert those. The objects that were read last are held, so most
// differences are applied, and what is handed out is what was inserted, with up to
// [Context] bytes of what stands before and behind it, since a key is often told by
// the name before it. What was copied is in the other object, which was handed out.
// Where the other one is not held any more, is large, or is not in the stream, what
// was inserted is handed out alone, with an empty id.
package gitpack
