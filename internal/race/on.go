//go:build race

package race

const (
	Enabled  = true
	Slowness = 10
)
