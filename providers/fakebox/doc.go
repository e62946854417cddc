// Package fakebox is a provider in memory: a [Cloud] that holds boxes, and a
// driver for each installation. It obeys the contract of package driver, and it
// keeps what a real provider would only show on a bill: how long each box was
// awake and suspended, how often it was woken, and which calls were made. Its
// clock is set by the caller, it suspends and destroys boxes by itself where
// its row says so, and faults can be scripted.
//
// Tests of workflows, activities and of the portable type use it, and so do
// simulations. It starts nothing and must never stand in for a real provider
// in production: what it holds ends with the process.
package fakebox
