//go:build !race

package exports_test

const slowness = 1
