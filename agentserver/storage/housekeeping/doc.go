// Package housekeeping finds what an agent-server leaves behind and never looks
// at again: old records of bash commands, packed histories of downloads that
// broke off, socket directories of servers that are dead, worktrees without a
// conversation. Each is listed with the reason why it goes or stays.
//
// It removes single files and empty directories, by their own kind and age, and
// nothing that anybody could have made by hand; it never follows a link, and
// leaves worktrees to who judges them.
//
// Who calls it: agentserver/server.
package housekeeping
