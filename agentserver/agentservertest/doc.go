// Package agentservertest writes histories the way an agent-server lays them
// out on disk, and serves a box that lies on request.
//
// [WriteConversation] is what demos and tests fill a box with. [Server] is a
// stateful fake agent-server, with or without boxd's additions, that truncates,
// miscounts, hangs or forgets when told to, so that the code which must not
// believe such answers can be tried. It must never be more helpful than a real
// server is.
package agentservertest
