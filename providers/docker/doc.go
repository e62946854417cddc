// Package docker keeps boxes as containers of a Docker engine, near or far,
// from API 1.41 on.
//
// A box is one container, named like the box, and one named volume of the same
// name, which holds all that the box must not lose. Both carry its identity as
// labels, and nothing without them, or under another name, is ever touched: on
// the same engine other programs keep agent containers too.
//
//   - boxd is copied into the container before each start, so any image will do
//     and the engine may be on another machine.
//   - What a start needs, secrets among it, is copied in as a file that boxd
//     removes when it has read it. It is in no configuration that the engine
//     shows or stores, and each start has its own.
//   - A suspend stops or pauses the container. What we meant to do stands in a
//     file beside boxd, written before it is done: so an end that we asked for
//     is told from one that we did not.
//   - A container that somebody removed, as "docker container prune" does with
//     all that are stopped, is no lost box: the volume is there, and a resume
//     makes the container again.
//   - Gone is only what an engine does not have whose id, and whose data
//     directory, are those of the ref.
//
// Package providers calls it; docs/providers/docker.md tells operators how it is
// set up.
package docker
