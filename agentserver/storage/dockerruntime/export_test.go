package dockerruntime

import (
	"context"
	"time"
)

// ContainersWithin is Containers with another bound.
func ContainersWithin(bound time.Duration, command ...string) func(ctx context.Context) (Listed, error) {
	return containersWithin(bound, command)
}
