// Package runtimeapi is the driver whose boxes live at an OpenHands runtime-api:
// https://runtime.all-hands.dev, or an installation of the OpenHands-Cloud chart.
// The service has no public description; what is relied on here was read in its
// public clients and its chart (29 Nov 2026), and nothing was run against the
// real one. docs/providers/runtimeapi.md lists the facts, their dates and what
// is unknown.
//
// A box is a session there. Its session_id is the box's name, which makes a
// create idempotent, and the only mark that the service keeps for us: what
// begins with "bk-<installation>-" is ours, and nothing else is ever touched.
//
// What the driver must never do: take an answer for an absence that is not the
// service's own 404 as JSON, call /stop except in [Driver.Delete], start a
// session within the time that a start may take after one that this process sent
// and whose outcome is unclear, keep a box's key (each resume changes it), or
// follow a redirect with the API key.
package runtimeapi
