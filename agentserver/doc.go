// Package agentserver is the client of an agent-server's HTTP API: the one seam
// between us and what runs in a box. It talks to an agent-server alone or to
// one with boxd in front, and asks the server's capabilities which it is.
//
// It reads nothing but HTTP, keeps no state between calls, follows no redirect
// and never turns an answer it does not understand into a value: a page of
// HTML, a cut-off document or a list that contradicts itself is an error of
// class Unknown or Unavailable. A session key never appears in an error.
//
// Activities and the gateway call it. Each method says whether the call moves
// the idle clock of the box.
package agentserver
