// Package idlelock keeps a conversation still for a moment: it takes the lock
// that an agent-server takes before it loads a conversation, and says why the
// conversation counts as used. What it can't tell is used.
//
// A lock is held for renames only: the agent-server waits for it on its event
// loop, and serves nobody meanwhile. The package never removes a lock file,
// never waits for one, and never writes to a lease.
//
// Who calls it: the layouts below agentserver/storage.
package idlelock
