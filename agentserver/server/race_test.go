//go:build race

package server_test

// The race detector keeps five to ten times as much memory for each byte.
const raceMemory = 8
