// Package retention decides when a conversation becomes conversation-archived,
// and sees to it: the box's default or a rule of its own, N days after its last
// use or when its runtime is stopped.
//
// It never archives what is used, holds unsaved work, or can't be told to be
// free of either; nor on the day after a box was resumed, since a box that was
// suspended for long has only old conversations. It moves and removes nothing
// itself, and looks at nothing while no conversation has a rule.
//
// Who calls it: agentserver/server.
package retention
