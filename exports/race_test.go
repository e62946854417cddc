//go:build race

package exports_test

// slowness divides the number of random runs: under the race detector each
// takes many times as long, and what it looks for is in the first ones.
const slowness = 10
