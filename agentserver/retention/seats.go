package retention

import (
	"context"
	"fmt"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
)

// seat is a conversation in one layout.
type seat struct {
	layout reclaim.Layout
	place  *reclaim.Place
}

// hasRuntime reports whether a pass of tier runtime may find something of the
// conversation. What goes by its layout's own rule, such as a worktree, is in no
// Runtime.
func (s seat) hasRuntime() bool {
	_, own := s.layout.(reclaim.Remover)
	return s.place.Runtime != "" || own && len(s.place.Workspaces) > 0
}

// seats lists the conversations of all layouts, each with what every layout knows
// of it, since it is archived as a whole.
func (k *Keeper) seats(ctx context.Context) ([][]seat, error) {
	var out [][]seat
	at := map[string]int{}
	for _, layout := range k.opts.Layouts {
		places, err := layout.Places(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the conversations: %w", err)
		}
		for i := range places {
			id := places[i].Conversation
			if id == "" {
				continue
			}
			n, known := at[id]
			if !known {
				n = len(out)
				at[id], out = n, append(out, nil)
			}
			out[n] = append(out[n], seat{layout, &places[i]})
		}
	}
	return out, nil
}

func hold(ctx context.Context, one seat) (release func(), left string) {
	release, busy, err := one.layout.Hold(ctx, one.place.Conversation)
	if err != nil {
		return nil, "cannot be held: " + err.Error()
	}
	return release, busy
}
