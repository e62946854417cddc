package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/storage/housekeeping"
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
	days, err := parseDays("retention", text)
	return retentionSetting{days: days}, err
}

// parseDays reads a number of days, 0 for none.
func parseDays(flag, text string) (float64, error) {
	days, err := strconv.ParseFloat(text, 64)
	if err != nil || days != 0 && retention.Check(box.Retention{Mode: box.RetentionDays, Days: days}) != nil {
		return 0, fmt.Errorf("--%s: %q is not a number of days", flag, text)
	}
	return days, nil
}

// housekeepEvery is how often boxd looks for what agent-servers leave behind.
const housekeepEvery = 24 * time.Hour

// housekeep removes what an agent-server left behind, now and every day, until
// ctx ends.
func housekeep(ctx context.Context, keeper *housekeeping.Keeper, log *slog.Logger) {
	tick := time.NewTicker(housekeepEvery)
	defer tick.Stop()
	for {
		items, err := keeper.Take(ctx)
		if err != nil && ctx.Err() == nil {
			log.Warn("look for what agent-servers left behind", "error", err)
		}
		for i := range items {
			if items[i].Skipped == "" {
				log.Info("removed what an agent-server left behind", "path", items[i].Path, "rule", items[i].Rule, "bytes", items[i].Bytes)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// maxSocket is the longest path of a socket.
const maxSocket = 107

// socketTemps are where the agent-server of a box makes its directory for sockets
// when their paths in the box would be too long.
func socketTemps(set settings) []string {
	longest := filepath.Join(set.root, tmpDir, fmt.Sprintf("tmux-%d", os.Geteuid()), "openhands-"+strings.Repeat("0", 32))
	if len(set.argv) == 0 || len(longest) <= maxSocket {
		return nil
	}
	out := []string{filepath.Clean(os.TempDir()), "/tmp"}
	return slices.Compact(out)
}

// newKeeping returns what archives the conversations of a box.
func newKeeping(set settings, in *insides, log *slog.Logger) *Keeping {
	rules := retention.NewRules(set.root, in.reclaimer.WriteFile)
	opts := retention.Options{
		Layouts: in.layouts, DefaultDays: set.retention.days, Unsaved: in.unsaved, Needs: in.needs, Log: log,
		Take: func(ctx context.Context, conversation string) error {
			report, err := in.reclaimer.Do(ctx, box.ReclaimRequest{Tiers: []box.Tier{box.TierRuntime}, ConversationIDs: []string{conversation}})
			if err != nil {
				return err
			}
			for i := range report.Items {
				if one := &report.Items[i]; one.Skipped != "" {
					return fmt.Errorf("%s %s", one.Path, one.Skipped)
				}
			}
			return nil
		},
	}
	if set.retention.off {
		opts.Off = "its provider suspends it when it is idle"
	}
	return &Keeping{Rules: rules, Keeper: retention.New(set.root, rules, opts)}
}
