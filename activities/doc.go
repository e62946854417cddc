// Package activities carries out single steps of a box's life: each method
// calls a provider, an agent-server or the export store, once, and answers with
// a [box.Outcome]. It decides nothing: the rules are in package box.
//
// It is the only place that turns error classes into Temporal errors, and the
// only one that resolves references to secrets. No secret may enter a
// heartbeat, an answer or an error: they all end up in histories.
//
// Workflows name these methods; workers register them. Every method may be
// repeated: "already so" is success.
package activities
