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
// A failure says what the driver did. The rule is in the comment of that method,
// or in the list before it, in package driver; for a case of the wire, "name of
// the call, what went wrong, which of its requests", it is a row of the tables in
// docs/providers/writing-a-driver.md.
//
// What the suite cannot look at it believes: see there, and test it beside.
//
// Only tests import it.
package drivertest
