package digitalocean

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// statusAll is a filter only: no session is in it [docs 13 Nov 2026].
const statusAll godo.HostedAgentSessionStatus = "SESSION_STATUS_ALL"

// zeroBalance is why the service pauses what nobody pays for; the older word is
// still sent in places [godo pull 1127].
const (
	zeroBalance godo.HostedAgentSessionPauseReason = "zero_balance"
	lowBalance  godo.HostedAgentSessionPauseReason = "low_balance"
)

// Observe reads the session on the control plane, which is no use.
func (d *Driver) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	if err := d.own(ctx, ref); err != nil {
		return box.Observation{}, err
	}
	_, seen, err := d.look(ctx, ref)
	return seen, err
}

// look reads the session of a ref. PhaseGone is proven.
func (d *Driver) look(ctx context.Context, ref box.Ref) (session, box.Observation, error) {
	s, err := d.api.session(ctx, ref.ID)
	switch {
	case missing(err):
		seen, err := d.absent(ctx, ref)
		return session{}, seen, err
	case err != nil:
		return session{}, box.Observation{}, err
	case s.Region != "" && s.Region != d.region:
		return session{}, box.Observation{}, box.Errorf(box.ClassUnknown, "session %s says that it is in region %s, and this instance talks to %s; set region", ref.ID, s.Region, d.region)
	}
	if s.Name != ref.Name {
		ours := false
		if !strings.HasPrefix(s.Name, "bk-") {
			if ours, err = d.claimed(ctx, ref, false); err != nil {
				return session{}, box.Observation{}, err
			}
		}
		if !ours {
			return session{}, box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "session %s is called %q and not %q, so it is not this box; it was left alone", ref.ID, d.api.clean(s.Name, nil), ref.Name)
		}
	}
	return s, d.observation(ref, s), nil
}

// absent proves that a session which is answered with 404 is gone: the token's
// team is read afresh, and the lists of the region, which have to answer, do not
// show the session, as one that lives or as one that failed. In the wrong region or
// team every id is a 404. The lists are of all names, since one that was taken over
// has another one; a team has a hundred or so.
func (d *Driver) absent(ctx context.Context, ref box.Ref) (box.Observation, error) {
	print, err := d.freshFingerprint(ctx)
	if err != nil {
		return box.Observation{}, err
	}
	if print != ref.Fingerprint {
		return box.Observation{}, box.Errorf(box.ClassUnknown, "session %s is not found in %q, but was made in %q; point the instance back", ref.ID, print, ref.Fingerprint)
	}
	listed, err := d.shown(ctx)
	if err != nil {
		return box.Observation{}, err
	}
	for _, s := range listed {
		if s.ID == ref.ID && s.Status != godo.HostedAgentSessionStatusDestroyed {
			return box.Observation{}, box.Errorf(box.ClassUnavailable, "session %s is not found and is listed as %s; look again", ref.ID, short(s.Status))
		}
	}
	return box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "404 for the session in " + print + ", and it is not listed"}, nil
}

// unfunded reports whether the service paused a session because nobody pays.
func unfunded(s session) bool { return s.PauseReason == zeroBalance || s.PauseReason == lowBalance }

// observation is a session in our words.
func (d *Driver) observation(ref box.Ref, s session) box.Observation {
	ref.ID = s.ID
	out := box.Observation{Ref: ref, Phase: phaseOf(s.Status), Evidence: "the session is " + short(s.Status)}
	switch out.Phase {
	case box.PhaseSuspended:
		out.MemoryKept = box.Yes
		if s.PauseReason != "" { // the set is open
			out.Evidence += ": " + d.api.clean(string(s.PauseReason), nil)
		}
		if unfunded(s) {
			out.Evidence += ", the prepaid balance of the team is used up and it cannot be resumed until somebody pays"
		}
	case box.PhaseGone, box.PhaseFailed, box.PhaseRunning, box.PhaseStarting, box.PhaseUnknown:
	}
	if s.KeepWarm {
		out.Evidence += ", kept warm: it cannot be suspended and is billed until it is deleted"
	}
	if s.ResumeOnTopoff {
		out.Evidence += ", resumed by the service when the balance is restored"
	}
	out.Native = nativeOf(s)
	return out
}

// nativeOf is the idle timer that a session says it has, nil when it says none.
func nativeOf(s session) *box.Native {
	const most = int64(3650 * 24 * time.Hour / time.Second)
	switch {
	case s.KeepWarm:
		return &box.Native{}
	case s.IdleSeconds == nil, *s.IdleSeconds < 0:
		return nil
	}
	return &box.Native{Idle: box.Duration(time.Duration(min(*s.IdleSeconds, most)) * time.Second)}
}

// phaseOf maps what the service says. What it says that nobody knows is unknown.
func phaseOf(status godo.HostedAgentSessionStatus) box.Phase {
	switch status {
	case godo.HostedAgentSessionStatusProvisioning:
		return box.PhaseStarting
	case godo.HostedAgentSessionStatusReady, godo.HostedAgentSessionStatusDetached, godo.HostedAgentSessionStatusUpdating:
		return box.PhaseRunning // detached: nobody is attached to its agent
	case godo.HostedAgentSessionStatusPaused:
		return box.PhaseSuspended
	case godo.HostedAgentSessionStatusFailed:
		return box.PhaseFailed
	case godo.HostedAgentSessionStatusDestroyed:
		return box.PhaseGone
	case godo.HostedAgentSessionStatusDestroying, godo.HostedAgentSessionStatusUnspecified:
	}
	return box.PhaseUnknown
}

// over reports whether a session can never run again, which frees its name.
func over(status godo.HostedAgentSessionStatus) bool {
	switch status {
	case godo.HostedAgentSessionStatusDestroying, godo.HostedAgentSessionStatusDestroyed, godo.HostedAgentSessionStatusFailed:
		return true
	case godo.HostedAgentSessionStatusUnspecified, godo.HostedAgentSessionStatusProvisioning, godo.HostedAgentSessionStatusReady,
		godo.HostedAgentSessionStatusDetached, godo.HostedAgentSessionStatusUpdating, godo.HostedAgentSessionStatusPaused:
	}
	return false
}

// pausable reports whether a session can be paused and be reached.
func pausable(status godo.HostedAgentSessionStatus) bool {
	return status == godo.HostedAgentSessionStatusReady || status == godo.HostedAgentSessionStatusDetached
}

// short is a status as a person says it.
func short(status godo.HostedAgentSessionStatus) string {
	text := strings.TrimPrefix(string(status), "SESSION_STATUS_")
	if text == "" {
		return "in no state that it tells"
	}
	const most = 40
	return strings.Map(func(c rune) rune {
		if c > '~' || c < '!' {
			return '?'
		}
		return c
	}, text[:min(len(text), most)])
}

// identityOf reads an identity of this installation out of a session's name.
func (d *Driver) identityOf(name string) (box.Identity, bool) {
	epoch, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil {
		return box.Identity{}, false
	}
	identity, ok := driver.IdentityOf(box.Ref{Name: name, Epoch: epoch})
	return identity, ok && identity.Installation == d.installation
}
