// Package repo asks git about repositories that somebody else wrote, and makes
// the few changes that removing a worktree needs. It runs the git program of the
// box, as the user that boxd runs as; the packages that look after workspaces
// call it.
//
// What it must never do: execute anything that a repository says. Configuration
// names programs in dozens of places (monitors, hooks, filters, text
// converters, diff drivers, ssh, pagers, remotes that are commands), and new
// ones come with each version of git. So git is never shown a repository's
// configuration, nor the user's or the system's: each question runs in a
// stand-in for the git directory, a directory of our own with a configuration
// that we wrote, in which the references, the index and the objects are the
// repository's. What configuration the answers depend on, such as the format of
// the repository, is read as data and copied by a list of what is allowed. What
// is not on the list is not there for git to find.
//
// The cost: content filters do not run either, so a file that is stored in
// another form than it has in the working tree, as with git-lfs, counts as
// changed once its time of change is newer than git's last look at it. And
// files that only the user's own ignore file names count as untracked. Both err
// on the side of keeping.
//
// Three changes are made in the repository itself: locking, unlocking and
// unlisting a worktree, and adding references. They look at no file of a
// working tree, and run with every setting overridden that names a program.
//
// Whatever git cannot answer, in time and without a doubt, is an error. A caller
// takes it as "there is work in it".
package repo
