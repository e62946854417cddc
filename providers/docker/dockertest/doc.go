// Package dockertest is a Docker engine without containers: it speaks the part of
// the HTTP API that package docker uses, with the answers that a real engine of
// 20.10.24 gave to the same calls [seen 29 and 30 Nov 2026], in any version of
// the API. A test of package docker makes the same calls to both and compares.
//
// A container that runs is a port that answers, and that hangs while it is
// paused, as a real one does. Nothing of it lasts longer than the test.
//
// Only tests import it.
package dockertest
