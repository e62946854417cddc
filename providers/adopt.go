package providers

import (
	"context"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Claim says for whom a box is taken over.
type Claim struct {
	ID        string // the provider's own
	Workspace string
	// Epoch is what a box gets that carries no mark.
	Epoch int
	// Least is the lowest epoch of a box of this workspace that is accepted: those
	// before it were replaced.
	Least int
}

// Adopt takes over a box that is there. It wakes and starts nothing, and may be
// repeated. FailedPrecondition: it belongs to another installation or
// workspace, or to an epoch that was replaced; it was left alone. NotFound: no
// box has this id. Unsupported: nothing was sent.
func (p *Provider) Adopt(ctx context.Context, claim Claim) (box.Observation, error) {
	const op = "adopt"
	adopter, ok := p.driver.(driver.Adopter)
	if p.row.Adopt != box.Yes || !ok {
		return box.Observation{}, p.refuse(box.ClassUnsupported, op, claim.ID, "provider %q cannot take over a box that is there; create one and copy what you need", p.row.Driver)
	}
	as := box.Identity{Installation: p.installation, Workspace: claim.Workspace, Epoch: claim.Epoch}
	switch {
	case box.ValidateWorkspace(claim.Workspace) != nil:
		return box.Observation{}, p.fail(op, claim.ID, box.ValidateWorkspace(claim.Workspace), nil)
	case claim.ID == "" || strings.ContainsFunc(claim.ID, func(c rune) bool { return c <= ' ' || c == 127 }):
		return box.Observation{}, p.fail(op, "", box.Invalidf("box_id", "give the provider's own id of the box"), nil)
	case claim.Epoch < 1 || claim.Least < 1:
		return box.Observation{}, p.fail(op, claim.ID, box.Invalidf("epoch", "%d is not an epoch; the first is 1", min(claim.Epoch, claim.Least)), nil)
	}
	before, err := p.fingerprint(ctx, op, claim.ID, nil)
	if err != nil {
		return box.Observation{}, err
	}
	seen, err := adopter.Adopt(ctx, claim.ID, as)
	if err != nil {
		return box.Observation{}, p.fail(op, claim.ID, err, nil)
	}
	seen.Ref.Provider = p.name
	as.Epoch = seen.Ref.Epoch
	switch {
	case seen.Ref.ID == "" || seen.Ref.Epoch < 1 || seen.Ref.Name != as.Name():
		return box.Observation{}, p.refuse(box.ClassUnknown, op, claim.ID, "the answer names the box %q, epoch %d; look at the provider before going on", seen.Ref.Name, seen.Ref.Epoch)
	case seen.Ref.Fingerprint != before:
		return box.Observation{}, p.refuse(box.ClassUnknown, op, claim.ID, "the box was read in %q while the instance says that it talks to %q", seen.Ref.Fingerprint, before)
	case seen.Phase == box.PhaseGone || seen.Phase == box.PhaseUnknown || seen.Phase == "":
		return box.Observation{}, p.refuse(box.ClassUnknown, op, claim.ID, "the answer is %q, which proves nothing; look again", seen.Phase)
	case seen.Ref.Epoch < claim.Least:
		return box.Observation{}, p.refuse(box.ClassFailedPrecondition, op, claim.ID, "it is the box of epoch %d, which was replaced, and the workspace is at epoch %d; take out of it what you need, and delete it at the provider", seen.Ref.Epoch, claim.Least)
	}
	return seen, nil
}
