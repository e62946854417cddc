package server

import (
	"context"
	"log/slog"
	"time"
)

// betweenPasses is how long a box that has something to keep to is left alone.
const betweenPasses = 5 * time.Minute

// maintain makes one pass at once, which finishes what an earlier process began,
// and then, only where there is something to keep to, one every five minutes
// until ctx ends. A pass that fails is told and tried again with the next.
func maintain(ctx context.Context, pass func(context.Context) error, again bool, log *slog.Logger) {
	tick := time.NewTicker(betweenPasses)
	defer tick.Stop()
	for {
		if err := pass(ctx); err != nil && ctx.Err() == nil {
			log.Warn("free space", "error", err)
		}
		if !again {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
