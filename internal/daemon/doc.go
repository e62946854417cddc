// Package daemon is boxkeeperd: an engine, the workers and a demo in one
// process. It only puts parts together; no rule lives here. The main starts it,
// and the end-to-end tests run it inside of their own process.
package daemon
