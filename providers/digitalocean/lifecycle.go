package digitalocean

import (
	"context"
	"net/http"
	"slices"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	// settlePolls bounds how often a suspend looks at a session that is starting or
	// that was told and does not show it, and a resume at one that lags: a minute and
	// a half at the standard PollEvery.
	settlePolls = 45
	// removePolls is the same for a deletion that is under way.
	removePolls = 10
)

// Suspend pauses the session. It asks once at most: a pause that comes second is
// refused with 409, and then what is there decides. Unavailable: it starts, is
// being updated, or a checkpoint or a turn holds it. FailedPrecondition: it
// failed, or it is kept warm and can't be paused at all. StoredBytes are the
// session's checkpoints alone, which are billed while it is suspended too; they are
// counted first, so that the last answer is the proof.
func (d *Driver) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	if err := d.own(ctx, ref); err != nil {
		return box.Observation{}, err
	}
	stored := d.kept(ctx, ref.ID)
	seen, err := d.suspend(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	return stored.told(seen), nil
}

func (d *Driver) suspend(ctx context.Context, ref box.Ref) (out box.Observation, err error) {
	defer d.addresses.forget(ref.ID)
	asked := false
	defer func() { err = settled(asked, err) }()
	for left := settlePolls; ; left-- {
		s, seen, err := d.look(ctx, ref)
		switch {
		case err != nil:
			return box.Observation{}, err
		case seen.Phase == box.PhaseSuspended:
			d.unreachable(ref.ID)
			return seen, nil
		case seen.Phase == box.PhaseGone:
			d.unreachable(ref.ID)
			return box.Observation{}, notThere(seen)
		case seen.Phase == box.PhaseFailed:
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "session %s has failed, and a failed one cannot be suspended; delete the box", ref.ID)
		case s.KeepWarm:
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "session %s is kept warm, and the service pauses no such session; make a new one, since its environment cannot be changed", ref.ID)
		case pausable(s.Status) && !asked:
			// From here on it may be suspended, whatever is answered. One that is not
			// gets a new tunnel with the next call for its address.
			defer d.unreachable(ref.ID)
			if err := d.api.pause(ctx, ref.ID); err != nil {
				return d.afterRefusal(ctx, ref, err, box.PhaseSuspended)
			}
			asked = true
			continue
		case seen.Phase == box.PhaseUnknown:
			return box.Observation{}, box.Errorf(box.ClassUnavailable, "session %s is %s; look again", ref.ID, short(s.Status))
		}
		if left <= 0 {
			return box.Observation{}, box.Errorf(box.ClassUnavailable, "session %s is still %s, asked to pause: %t; try again", ref.ID, short(s.Status), asked)
		}
		if err := d.wait(ctx); err != nil {
			return box.Observation{}, err
		}
	}
}

// Resume resumes a paused session. Start is not used: memory is kept, so its
// processes go on with what they were started with. Exhausted: nobody pays.
// FailedPrecondition: it failed.
func (d *Driver) Resume(ctx context.Context, ref box.Ref, _ driver.Start) (out box.Observation, err error) {
	if err := d.own(ctx, ref); err != nil {
		return box.Observation{}, err
	}
	defer d.addresses.forget(ref.ID)
	asked := false
	defer func() { err = settled(asked, err) }()
	for left := settlePolls; ; left-- {
		s, seen, err := d.look(ctx, ref)
		switch {
		case err != nil:
			return box.Observation{}, err
		case seen.Phase == box.PhaseRunning || seen.Phase == box.PhaseStarting:
			return seen, nil
		case seen.Phase == box.PhaseGone:
			return box.Observation{}, notThere(seen)
		case seen.Phase == box.PhaseFailed:
			return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "session %s has failed, and the service resumes no such session; delete the box, and put its newest export into a new one", ref.ID)
		case seen.Phase == box.PhaseUnknown:
			return box.Observation{}, box.Errorf(box.ClassUnavailable, "session %s is %s; look again", ref.ID, short(s.Status))
		case !asked:
			if err := d.api.resume(ctx, ref.ID); err != nil {
				if why := unpaid(s, err); why != nil {
					return box.Observation{}, why
				}
				return d.afterRefusal(ctx, ref, err, box.PhaseRunning, box.PhaseStarting)
			}
			asked = true
			continue
		}
		// It answers when the sandbox is ready, and shows it later.
		if left <= 0 {
			return box.Observation{}, box.Errorf(box.ClassUnavailable, "session %s was resumed and is still %s; look again", ref.ID, short(s.Status))
		}
		if err := d.wait(ctx); err != nil {
			return box.Observation{}, err
		}
	}
}

// settled returns err as what a call ends with that did something before, or did
// not: afterwards no class may say that nothing was done.
func settled(done bool, err error) error {
	if done {
		return driver.Unsettled(err)
	}
	return err
}

// unpaid says that a refused resume is about money: the service paused the session
// because the balance was used up, and refuses every call until it is not. How it
// refuses is not known, so a refusal of any kind counts.
func unpaid(s session, err error) error {
	status := statusOf(err)
	if !unfunded(s) || status < 400 || status >= 500 || status == http.StatusTooManyRequests || status == http.StatusUnauthorized || status == http.StatusNotFound {
		return nil
	}
	return &box.Error{
		Class:      box.ClassExhausted,
		Message:    "session " + s.ID + " was paused because the prepaid balance of the team is used up; its files are kept, and it can be resumed when somebody has added to the balance",
		RetryAfter: balanceWait,
		Block:      box.BlockBalance,
		Err:        err,
	}
}

// afterRefusal reads again after a call that was refused because of the state:
// another one, or the service itself, may have been first.
func (d *Driver) afterRefusal(ctx context.Context, ref box.Ref, refusal error, good ...box.Phase) (box.Observation, error) {
	status := statusOf(refusal)
	if status != http.StatusConflict && !missing(refusal) {
		return box.Observation{}, refusal
	}
	_, seen, err := d.look(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	if seen.Phase == box.PhaseGone {
		return box.Observation{}, notThere(seen)
	}
	if slices.Contains(good, seen.Phase) {
		return seen, nil
	}
	if status == http.StatusNotFound {
		return box.Observation{}, box.Errorf(box.ClassUnavailable, "%w; it is there and %s, so look again", refusal, seen.Phase)
	}
	return box.Observation{}, d.full(ctx, refusal)
}

// orRefuse returns err, or a refusal where there is none.
func orRefuse(err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	return box.Errorf(box.ClassFailedPrecondition, format, args...)
}

func notThere(seen box.Observation) error {
	return box.Errorf(box.ClassNotFound, "session %s is gone: %s", seen.Ref.ID, seen.Evidence)
}

// Delete destroys the session, with its checkpoints, and deletes its environment.
// Unavailable: a checkpoint, a fork or a rollback holds it, or it is under way.
// FailedPrecondition: the service's staff has locked it.
func (d *Driver) Delete(ctx context.Context, ref box.Ref) (out box.Observation, err error) {
	if err := d.own(ctx, ref); err != nil {
		return box.Observation{}, err
	}
	unlock, err := d.names.Take(ctx, ref.Name)
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	defer d.unreachable(ref.ID)
	asked := false
	defer func() { err = settled(asked, err) }()
	for left := removePolls; ; left-- {
		s, seen, err := d.look(ctx, ref)
		switch {
		case err != nil:
			return box.Observation{}, err
		case seen.Phase == box.PhaseGone:
			// Whoever ended it: there is no way back, whatever becomes of the rest.
			if err := d.clear(ctx, ref); err != nil {
				return box.Observation{}, driver.Unsettled(err)
			}
			return seen, nil
		case !asked && s.Status != godo.HostedAgentSessionStatusDestroying:
			if s.Name != ref.Name { // its mark is what makes it ours, so it is read again
				if ours, err := d.claimed(ctx, ref, true); err != nil || !ours {
					return box.Observation{}, orRefuse(err, "session %s is not marked as box %s any more, so it was left alone", ref.ID, ref.Name)
				}
			}
			if err := d.api.destroy(ctx, ref.ID); err != nil && !missing(err) {
				return box.Observation{}, err
			}
			asked = true
			continue
		}
		if left <= 0 {
			return box.Observation{}, box.Errorf(box.ClassUnavailable, "session %s is %s; look again later", ref.ID, short(s.Status))
		}
		if err := d.wait(ctx); err != nil {
			return box.Observation{}, err
		}
	}
}
