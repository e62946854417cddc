// Package providers is the one way to a box: [Provider] is a concrete type over
// a driver, one per configured instance. What must be the same everywhere is
// written here once: the capability gate, the identity and fingerprint checks,
// the proof of absence, a box's own keys, and the wrapping and redaction of
// errors.
//
// Activities, workers and the gateway call it; drivers never import it. It
// keeps no state about boxes, stores no secret, and never retries: the engine
// does.
package providers
