package runtimeapi

import (
	"context"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// List returns the sessions whose name is one of ours. It is Unsupported unless
// the install is known to list broken boxes too, since a partial list would pass
// for a whole one. A list whose length is not its total is an error.
func (d *Driver) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	if err := driver.Ended(ctx); err != nil {
		return nil, err
	}
	switch {
	case !d.opts.ListsFailed:
		return nil, box.Errorf(box.ClassUnsupported, "this install is not known to list boxes in status error; see lists_failed")
	case installation != d.installation:
		return nil, box.Errorf(box.ClassFailedPrecondition, "this driver is of installation %s, not %s", d.installation, installation)
	}
	all, whole, err := d.listed(ctx)
	if err != nil {
		return nil, err
	}
	if !whole {
		return nil, box.Errorf(box.ClassUnknown, "/list does not hold as many boxes as it says, or one without a name; list again")
	}
	var out []driver.Listed
	for _, s := range all {
		identity, ours := d.identity(s.SessionID)
		if !ours || s.phase() == box.PhaseGone {
			continue
		}
		ref := box.Ref{Name: s.SessionID, Epoch: identity.Epoch, Fingerprint: d.place}
		out = append(out, driver.Listed{Identity: identity, Observation: d.observation(ref, &s)})
	}
	return out, nil
}

// identity reads a session id. It is false for one that is not ours.
func (d *Driver) identity(sessionID string) (box.Identity, bool) {
	epoch, err := strconv.Atoi(sessionID[strings.LastIndexByte(sessionID, '-')+1:])
	if err != nil {
		return box.Identity{}, false
	}
	identity, ok := driver.IdentityOf(box.Ref{Name: sessionID, Epoch: epoch})
	return identity, ok && identity.Installation == d.installation
}
