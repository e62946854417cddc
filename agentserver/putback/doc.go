// Package putback puts an exported workspace into a box: files, repositories with
// all that their bundles hold, and what is staged. Package server calls it in a
// box, and the command line uses [Rebuild] to make repositories of what it takes
// out of an export store.
//
// What it must never do: write over somebody's work, put a part of an archive in
// place, trust a name, a length or a sum in one, follow a link, or run what a
// repository says. The archive may come from a box that was hostile.
//
// # How it comes that a kill leaves an empty box or a whole one
//
// Everything is written to a scratch directory on the same filesystem and
// compared. Then a record is written that says so, and only then the first name
// is moved to its place. Without the record nothing counts and all is cleared;
// with it only the rest of the moves is left, which any later call carries out.
package putback
