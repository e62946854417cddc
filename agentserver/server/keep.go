package server

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strconv"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/box"
)

// retentionSetting is how a box archives conversations.
type retentionSetting struct {
	days float64
	off  bool
}

// parseRetention reads "off" or a number of days.
func parseRetention(text string) (retentionSetting, error) {
	if text == "off" {
		return retentionSetting{off: true}, nil
	}
	days, err := strconv.ParseFloat(text, 64)
	if err != nil || !(days >= 0) || math.IsInf(days, 0) || days > 0 && retention.Check(box.Retention{Mode: box.RetentionDays, Days: days}) != nil {
		return retentionSetting{}, fmt.Errorf("--retention: %q is neither \"off\" nor a number of days", text)
	}
	return retentionSetting{days: days}, nil
}

// layoutsOf returns how conversations may lie in a box. Both look at what is
// there, so that a box whose agent-server runs them in both ways is whole.
func layoutsOf(root string, env func(string) string, write storage.Writer, server bool) []reclaim.Layout {
	var why string
	if server {
		why = idlelock.NoLeases(env, root)
	}
	return []reclaim.Layout{
		// A container is the sign there, whether leases are kept or not.
		dockerruntime.New(root, write, dockerruntime.Options{Container: dockerruntime.Containers("docker")}),
		sharedworkspace.New(root, write, sharedworkspace.Options{Lock: idlelock.New(idlelock.Options{NoLeases: why})}),
	}
}

// newRetention returns what archives the conversations of a box.
func newRetention(set settings, layouts []reclaim.Layout, reclaimer *reclaim.Reclaimer, unsaved func(context.Context, string) (string, error), log *slog.Logger) *Retention {
	rules := retention.NewRules(set.root, reclaimer.WriteFile)
	opts := retention.Options{
		Layouts: layouts, DefaultDays: set.retention.days, Unsaved: unsaved, Log: log,
		Take: func(ctx context.Context, conversation string) error {
			_, err := reclaimer.Do(ctx, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversation}})
			return err
		},
	}
	if set.retention.off {
		opts.Off = "its provider suspends it when it is idle"
	}
	return &Retention{Rules: rules, Keeper: retention.New(set.root, rules, opts)}
}
