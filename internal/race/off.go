//go:build !race

// Package race lets tests be smaller under the race detector. Regular
// expressions, compression and checksums take ten to fifty times as long there,
// and what it looks for is in the first megabyte as well as in the last.
package race

// Enabled says whether the race detector is on: bounds of memory and sizes that
// only volume reaches are proven without it.
const Enabled = false

// Slowness divides sizes and numbers of random cases.
const Slowness = 1
