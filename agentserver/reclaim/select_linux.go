package reclaim

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// candidates fills in the places, and what in them a rule is about.
func (r *Reclaimer) candidates(ctx context.Context, out *Selection) error {
	all, faults := r.places(ctx)
	g := &gathering{r: r, scope: scope{tier: box.TierRuntime}, at: map[string]int{}, unread: faults, unmeasured: true}
	if err := g.among(ctx, all); err != nil {
		return err
	}
	out.Errors = append(out.Errors, g.unread...)
	for i := range all {
		if all[i].Conversation != "" {
			out.Places = append(out.Places, all[i].Place)
		}
	}
	for i := range g.found {
		one := &g.found[i]
		candidate := Candidate{ReclaimItem: one.ReclaimItem}
		if rule := r.opts.Catalogue.rule(one.Rule); rule != nil {
			switch rule.look.below() {
			case lookTop, lookNone:
			case lookPackages:
				candidate.Search = SearchPackages
			case lookAll:
				candidate.Search = SearchAll
			}
		}
		out.Items = append(out.Items, candidate)
	}
	return nil
}
