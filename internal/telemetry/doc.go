// Package telemetry is what a running process says about itself: log lines,
// metrics, and whether it is alive and ready.
//
// It must never show a secret: loggers mask the values that were registered
// with their [Redactor], and metrics are never labelled with a workspace, an
// owner or anything else of a person. It decides nothing and keeps no state
// that matters.
//
// The mains and internal/cli build it; workers and activities are handed the
// parts that they use.
package telemetry
