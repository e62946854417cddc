package digitalocean

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
)

// mostNamed is how many workspaces the error of a full quota names.
const mostNamed = 3

// mostCounted is how many pages are read to count: the token has 250 requests a
// minute for everything it does, and a refused create comes again each minute.
const mostCounted = 5

// full adds to a refusal for the quota who holds the places, by one list; any other
// error stays as it is. The list is no part of the answer: where it cannot be had,
// or says more than it has time for, the plain refusal stays. Who else is in the team
// is counted and not named.
func (d *Driver) full(ctx context.Context, refusal error) error {
	r, ok := errors.AsType[*refused](refusal)
	if !ok || !isQuota(r) {
		return refusal
	}
	outer, ok := errors.AsType[*box.Error](refusal)
	if !ok {
		return refusal
	}
	within, cancel := context.WithTimeout(ctx, quickCall)
	defer cancel()
	listed, err := d.api.fewSessions(within, "", godo.HostedAgentSessionListOptions{}, mostCounted)
	if err != nil {
		return refusal
	}
	told := *r
	told.next = d.holders(listed)
	return &box.Error{Class: outer.Class, Message: outer.Message, RetryAfter: outer.RetryAfter, Block: outer.Block, Err: &told}
}

// holders says in words who holds the places of a team, and what to do.
func (d *Driver) holders(listed []session) string {
	var suspended []session
	total, running, others := 0, 0, 0
	for _, s := range once(listed) {
		switch {
		case over(s.Status):
			continue
		case !d.named(s):
			others++
		case phaseOf(s.Status) == box.PhaseSuspended:
			suspended = append(suspended, s)
		default:
			running++
		}
		total++
	}
	var out strings.Builder
	out.WriteString("suspended boxes count: of the " + strconv.Itoa(total) + " sessions in region " + d.region + ", " +
		strconv.Itoa(len(suspended)) + " are suspended boxes of this installation, " + strconv.Itoa(running) + " are others of its boxes, and " +
		strconv.Itoa(others) + " are not known to be its own")
	if len(suspended) == 0 {
		out.WriteString("; delete what is not needed any more, or ask DigitalOcean for a higher limit")
		return out.String()
	}
	slices.SortStableFunc(suspended, func(a, b session) int { return cmp.Or(lastUse(a).Compare(lastUse(b)), cmp.Compare(a.Name, b.Name)) })
	out.WriteString("; quiet for longest:")
	for i, s := range suspended[:min(len(suspended), mostNamed)] {
		identity, _ := d.identityOf(s.Name)
		if i > 0 {
			out.WriteString(",")
		}
		out.WriteString(" " + identity.Workspace)
	}
	if more := len(suspended) - mostNamed; more > 0 {
		out.WriteString(" and " + strconv.Itoa(more) + " more")
	}
	out.WriteString("; export and delete one of them with \"boxkeeper box delete ID\", or ask DigitalOcean for a higher limit")
	return out.String()
}

// named reports whether a session is ours by its name, as far as that can be said
// without asking: one whose environment is known to be another's is not. One that was
// taken over has a name of its own and counts as not known; nothing is done by this.
func (d *Driver) named(s session) bool {
	if _, ok := d.identityOf(s.Name); !ok {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	name, known := d.configs[s.ConfigID]
	return !known || strings.HasPrefix(name, d.environmentPrefix(s.Name))
}

// lastUse is the last event of a session, or when it was made: since when it is
// paused no field says. Zero when it says neither.
func lastUse(s session) time.Time {
	for _, text := range []json.RawMessage{s.LastEventAt, s.CreatedAt} {
		var at time.Time
		if json.Unmarshal(text, &at) == nil && !at.IsZero() {
			return at
		}
	}
	return time.Time{}
}
