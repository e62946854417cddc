package box

import (
	"fmt"
	"time"
)

// Watch is one deadline of a box and who keeps it.
type Watch struct {
	Name string `json:"name"`
	// By is who acts: "boxkeeper" or "provider".
	By string `json:"by"`
	// After is the length in force.
	After Duration `json:"after"`
	// Action is what happens, in words.
	Action string `json:"action"`
}

// Arrangement is what [Plan] answers: who watches what, and what no one does.
type Arrangement struct {
	Policy  Policy   `json:"policy"`          // effective
	Native  Native   `json:"native,omitzero"` // what the provider is told
	Watches []Watch  `json:"watches"`
	Risks   []string `json:"risks,omitzero"`
}

// leastMargin is how long before the provider's own end of a suspended box ours
// should act; people are away for a weekend.
const leastMargin = Duration(72 * time.Hour)

// Plan matches a policy with what a provider can do: which timers run and
// where, and which risks remain. A policy that cannot be met is refused with
// the field named.
func Plan(policy Policy, c Capabilities) (Arrangement, error) {
	if err := policy.Validate(); err != nil {
		return Arrangement{}, err
	}
	p := policy.Effective()
	out := Arrangement{Policy: p}
	risk := func(format string, args ...any) { out.Risks = append(out.Risks, fmt.Sprintf(format, args...)) }

	if c.Suspend == No && !p.Idle.IsNever() {
		return Arrangement{}, Invalidf("policy.idle", "provider %s cannot suspend a box; set idle to \"never\"", c.Driver)
	}
	if c.Suspend == No && !p.MaxRun.IsNever() {
		return Arrangement{}, Invalidf("policy.max_run", "provider %s cannot suspend a box; set max_run to \"never\"", c.Driver)
	}
	switch {
	case c.Suspend != Unknown:
	case c.Driver == "":
		risk("what its provider can do is not known here, so neither is whether it can suspend a box")
	default:
		risk("nobody has found out whether provider %s can suspend a box", c.Driver)
	}
	share, err := shareIdle(p, c)
	if err != nil {
		return Arrangement{}, err
	}
	out.planIdle(&p, share, c)
	if limit := Duration(c.MaxRun); limit > 0 {
		if own := max(limit-p.DeadMan, limit/2); p.MaxRun.IsNever() || p.MaxRun > own {
			p.MaxRun = own
			risk("the provider ends a box after %s, so max_run is %s", limit, p.MaxRun)
		}
		out.Watches = append(out.Watches, Watch{"hard end", "provider", limit, "the provider ends the box"})
	}
	if p.MaxRun.IsNever() {
		risk("max_run is never: a holder that keeps renewing keeps the box awake for ever")
	} else {
		out.Watches = append(out.Watches, Watch{"hard maximum awake time", "boxkeeper", p.MaxRun, "reclaim, export, suspend"})
	}
	switch {
	case c.Deepen != Yes:
	case p.DeepenAfter.IsNever():
		risk("deepen_after is never: a suspended box holds its memory until it is woken or deleted")
	default:
		out.Watches = append(out.Watches, Watch{"memory of a suspended box", "boxkeeper", p.DeepenAfter, "suspend it deeper: its memory is given up, its files are kept"})
	}
	if limit := Duration(c.PausedLife); limit > 0 {
		if p.OnExpiry == OnExpiryDelete && p.PausedTTL < limit && p.PausedTTL+p.Undo+p.DeadMan >= limit && !p.PausedTTL.IsNever() {
			return Arrangement{}, Invalidf("policy.undo", "the provider destroys a suspended box after %s, inside the undo window that follows paused_ttl; make one of them shorter", limit)
		}
		if p.PausedTTL.IsNever() || p.PausedTTL+max(p.Notice, leastMargin) > limit {
			risk("the provider destroys a suspended box after %s, so it is woken and suspended again before", limit)
		}
		if margin := renewMargin(c.PausedLife.Std()); margin < leastMargin.Std() {
			risk("the margin before the provider destroys a suspended box is %s, less than %s", Duration(margin), leastMargin)
		}
		out.Watches = append(out.Watches, Watch{"renewal of a suspended box", "boxkeeper", limit - Duration(renewMargin(c.PausedLife.Std())), "wake, export if needed, suspend again"})
		out.Watches = append(out.Watches, Watch{"life of a suspended box", "provider", limit, "the provider destroys the box"})
	}
	if p.PausedTTL.IsNever() {
		risk("paused_ttl is never: a forgotten box is paid for without end")
	} else {
		action := "ask a person; nothing is deleted by itself"
		if p.OnExpiry == OnExpiryDelete {
			action = "delete after a verified export and an undo window of " + p.Undo.String()
		}
		out.Watches = append(out.Watches,
			Watch{"notice before expiry", "boxkeeper", p.PausedTTL - p.Notice, "tell the owner"},
			Watch{"paused TTL", "boxkeeper", p.PausedTTL, action})
	}
	out.Policy = p
	return out, nil
}

// planIdle says who watches the idle time. A time of ours that must be shorter
// than asked for is the policy's from then on.
func (a *Arrangement) planIdle(p *Policy, share idlePlan, c Capabilities) {
	risk := func(format string, args ...any) { a.Risks = append(a.Risks, fmt.Sprintf(format, args...)) }
	a.Native.Idle = share.native
	switch {
	case p.Idle.IsNever() && p.MaxRun.IsNever() && c.MaxRun <= 0:
		risk("idle and max_run are never: nothing but a request suspends the box")
	case p.Idle.IsNever():
		risk("idle is never: the box is awake until the hard maximum")
	case share.lead == LeadProvider:
		a.Watches = append(a.Watches,
			Watch{"idle", "provider", share.native, "suspend"},
			Watch{"idle, if the provider does not act", "boxkeeper", share.ours, "look, then reclaim, export, suspend"})
		risk("the provider suspends an idle box: it is exported after each turn, and nothing is reclaimed before")
	default:
		a.Watches = append(a.Watches, Watch{"idle", "boxkeeper", share.ours, "reclaim, export, suspend"})
		if share.ours < p.Idle {
			risk("the provider suspends an idle box after %s at the latest, so idle is %s", share.native, share.ours)
			p.Idle = share.ours
		}
		if share.native > 0 {
			a.Watches = append(a.Watches, Watch{"idle, if boxkeeper is down", "provider", share.native, "suspend"})
		} else {
			risk("the provider has no idle timer: while boxkeeper is down an idle box stays awake")
		}
	}
	if share.native > 0 && c.NativeAdjust != Yes {
		risk("the provider's idle timer of %s can't be set again: work that makes no traffic there for so long is suspended, and a later policy.idle does not reach it", share.native)
	}
}
