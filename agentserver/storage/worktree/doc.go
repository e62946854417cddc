// Package worktree is the layout of git worktrees that an agent-server makes for
// its conversations: <root>/<conversation, with dashes>/<repository>. What their
// tools installed in them may go like in any workspace; a worktree as a whole
// goes by [Layout.Remove] alone.
//
// What it must never do: force git, delete a branch, prune, remove by other
// means what git refuses to remove, or take a worktree of which anything is in
// doubt. A worktree holds more than git shows: files that are ignored and exist
// nowhere else, edits that git was told not to look at, commits that only its
// own reflog names, other repositories. Plain "git worktree remove" drops all of
// these without a word.
//
// A removal goes like this:
//
//  1. Every step from the root is opened without following a link or crossing a
//     mount; the root is the directory that it was at the start.
//  2. The directory's .git names a record of a worktree that names it back, and
//     which is not the main checkout's.
//  3. Neither a lock of git's nor a process nor the agent-server uses it.
//  4. Everything in it is on a branch, a tag or a remote, or can be made again,
//     nested repositories and submodules included. Otherwise it stays, with the
//     reasons; unless a person confirmed the loss, and then all of it is first
//     kept as references of the repository and in an archive, which is read back.
//  5. It is locked for git, and while the conversation is held asked again.
//  6. It is renamed beside itself. From then on no path leads into it.
//  7. Processes are searched for one that still uses it.
//  8. It is compared with what was judged, file by file.
//  9. Git unlists it, unforced, since nothing is at its path.
//  10. It is moved into the trash, which others empty.
//
// Whatever fails before step 10 puts it back. A crash in between leaves it
// renamed; [Layout.Recover] puts it back, or ends step 10 when git had unlisted it.
// Its branch stays in any case.
package worktree
