// Package drivertest is the conformance suite of package driver. A driver's
// test is one call of [RunConformance] with a [Harness], plus tests of its own
// quirks. The suite runs every case twice: over the bare driver, and over the
// portable type on top of it.
//
// What a driver claims in its row is checked by observation where the harness
// can look, and so is what it does not claim. Every mutating call is made five
// times, once with a context that has ended, and once so that its answer is
// lost and it must be repeated. What a harness cannot do is skipped with the
// reason; what a driver does not claim is no skip, since a case of its own
// checks that it is refused.
//
// Only tests import it.
package drivertest
