// Package runtimeapitest is a fake of the OpenHands runtime-api, written from
// what its public clients send and read [S: OpenHands and software-agent-sdk,
// Aug 2026] and from its public Helm chart: paths, headers and fields, states,
// the key that changes with each resume, the reapers, and the address of each
// box with a real HTTP handler behind it. What no client shows is marked as
// unknown where it is chosen here.
//
// It keeps what the real service would only show on a bill: how long each box
// was awake and paused, how often it was woken, who ended it, and which calls
// were made. Its clock is virtual and moved by [Service.Advance]; faults are
// scripted with [Service.Inject]. Its own tests use plain HTTP and, where there
// is one, the service's public Python client, so that it does not share a
// misreading with the driver that is tested against it.
//
// Only tests and simulations use it. It knows nothing of boxkeeper.
package runtimeapitest
