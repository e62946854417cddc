// Package storage is what the layouts below it share: how an agent-server names
// its conversations on disk, when one was used last, and the marker by which one
// is conversation-archived. It removes nothing but that marker, and follows no
// link.
//
// Who calls it: the layouts below, agentserver/retention and agentserver/server.
package storage
