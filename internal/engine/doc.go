// Package engine runs the durable workflow engine, a Temporal server on one
// SQLite file with its web UI, inside this process.
//
// What it is for: a person who has only this binary gets durable timers and
// histories under one data directory, kept through Ctrl-C and kill -9. The
// engine listens on loopback addresses only, since it has no login. At every
// start it brings the namespace to the wanted search attributes and retention,
// and a data file that an older engine made to the newest schema, after a
// backup.
//
// What it must never do: kill the process, as its parts do when they meet a
// fault (see fatal); serve one data directory from two places (see datafile);
// offer to terminate a workflow in the web UI, since a terminated workflow
// leaves its box running and billed; skip time in a data directory that was
// not started for that.
//
// Who calls it: only the all-in-one binary and the engine-backed tests. It
// pulls in the whole server, so nothing else may import it. What concerns the
// file alone is in package datafile, which does not.
package engine
