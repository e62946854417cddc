package digitalocean

import (
	"context"
	"math"
	"net/url"
	"strconv"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
)

// Checkpoints are made by users and agents, never here: they are billed by the month,
// suspended or not, they end with the session, and the files of the workspace are not
// in them [docs 6 Nov 2026]. They are only counted.

// checkpoint is one of a session, as it is sent.
type checkpoint struct {
	SessionID string                           `json:"session_id"`
	Status    godo.HostedAgentCheckpointStatus `json:"status"`
	SizeBytes *int64                           `json:"size_bytes"`
}

// kept is what the service keeps of a session beside its disk; zero where it does
// not say.
type kept struct {
	checkpoints int
	bytes       int64
}

// kept counts the checkpoints of a session. It is told to people and decides nothing,
// so what cannot be read is nothing, and a size that is missing makes the sum unknown:
// too small a number is worse than none.
func (d *Driver) kept(ctx context.Context, id string) (out kept) {
	within, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	all, err := d.api.checkpoints(within, id)
	if err != nil {
		return kept{}
	}
	known := true
	for _, c := range all {
		switch size := c.SizeBytes; {
		case c.SessionID != "" && c.SessionID != id:
			return kept{}
		case c.Status == godo.HostedAgentCheckpointStatusFailed:
			continue
		case c.Status != godo.HostedAgentCheckpointStatusReady: // its size is to come
		case size == nil || *size < 0 || *size > math.MaxInt64-out.bytes:
			known = false
		default:
			out.bytes += *size
		}
		out.checkpoints++
	}
	if !known {
		out.bytes = 0
	}
	return out
}

// told adds to what is seen of a suspended session what is kept of it.
func (k kept) told(seen box.Observation) box.Observation {
	seen.StoredBytes = k.bytes
	switch k.checkpoints {
	case 0:
	case 1:
		seen.Evidence += ", with 1 checkpoint"
	default:
		seen.Evidence += ", with " + strconv.Itoa(k.checkpoints) + " checkpoints"
	}
	return seen
}

// checkpoints reads all pages of the checkpoints of a session.
func (a *api) checkpoints(ctx context.Context, id string) ([]checkpoint, error) {
	what := "list the checkpoints of session " + id
	return pages(ctx, what, url.Values{}, mostPages, func(query url.Values) ([]checkpoint, string, error) {
		var page struct {
			Checkpoints []checkpoint `json:"checkpoints"`
			Next        string       `json:"next_page_token"`
		}
		err := a.get(ctx, what, sessionsPath+"/"+id+"/checkpoints", query, &page)
		return page.Checkpoints, page.Next, err
	})
}
