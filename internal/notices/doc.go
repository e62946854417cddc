// Package notices carries notices and lifecycle events to people and programs:
// as CloudEvents to webhooks, signed as Standard Webhooks wants it, and to the
// log of the worker where no webhook takes notices.
//
// It must never put a key, or the URL of a webhook with its query, into a log,
// an error or a metric, follow a redirect, or let one receiver wait for another.
// It decides nothing: what is told, how often and for how long are rules in
// package box.
//
// The mains build an [Outlet] through internal/cli, and the activities call it.
package notices
