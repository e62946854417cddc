package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

func (a *Shared) connectCommand() *cobra.Command {
	var (
		ask  asking
		req  box.ConnectRequest
		wait bool
	)
	c := &cobra.Command{
		Use: "connect WORKSPACE", Short: "Hold a box awake, and wake it if needed", Args: args("a workspace", 1, 1),
		Long: "Takes a hold that ends by itself after its lease; renew it while it is needed and release it when it is not. " +
			"Without --wait it answers from the newest look at the provider and says how old that is; with --wait a box that was last seen more than a minute ago is read again first, and the hold is renewed until the box runs.",
		Example: "  boxkeeper box connect mine --holder ann-laptop --wait\n  boxkeeper box renew mine --holder ann-laptop\n  boxkeeper box release mine --holder ann-laptop",
	}
	ask.bind(c, "5m")
	c.Flags().StringVar(&req.HolderID, "holder", "", "id of the hold, for renew and release (default random)")
	c.Flags().StringVar((*string)(&req.Kind), "kind", "", "connection (default) or operation")
	c.Flags().StringVar(&req.Origin, "origin", "", "where it comes from, shown by why")
	c.Flags().Var(durationFlag{"lease", &req.Lease}, "lease", "how long the hold lasts without a renewal (default by the policy)")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the box is running")
	c.RunE = func(c *cobra.Command, given []string) error {
		switch req.Kind {
		case "", box.HolderConnection, box.HolderOperation:
		default:
			return box.Invalidf("kind", "%q is not known; use connection or operation", printable(string(req.Kind)))
		}
		if req.Lease.IsNever() {
			return box.Invalidf("lease", "a hold is always bounded; renew it instead")
		}
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		renewed := time.Now() // before it is sent: the lease runs while its answer is on its way
		if ask.requestID != "" {
			renewed = time.Time{} // and a repeat may be of a hold that was taken long ago
		}
		req.Request = ask.request()
		if req.HolderID == "" {
			// Derived, so that a repeat by request id is about the same hold.
			req.HolderID = req.ID
		}
		if wait {
			req.LookWithin = lookWithin
		}
		answer, err := update[box.ConnectAnswer](ctx, s, given[0], box.UpdateConnect, req.Request, req)
		if err != nil {
			return err
		}
		if wait {
			if answer, err = s.untilRunning(ctx, given[0], req, answer, renewed, ask.timeout); err != nil {
				return err
			}
		}
		return a.show(c, answer, func(p *page) {
			p.linef("%s is %s.", given[0], printable(string(answer.State)))
			p.facts(
				[2]string{"hold", answer.HolderID + ", until " + a.moment(answer.LeaseUntil)},
				[2]string{"release it", s.command("release", given[0], "--holder", answer.HolderID)},
			)
			if !wait {
				p.sighting(a, answer.Seen, time.Time{})
			}
		})
	}
	return c
}

// untilRunning waits until a box that was connected to runs, and keeps its hold, whose
// lease began at renewed or later.
func (s *session) untilRunning(ctx context.Context, workspace string, req box.ConnectRequest, answer box.ConnectAnswer, renewed time.Time, within box.Duration) (box.ConnectAnswer, error) {
	goal := seenGoal(answer)
	held := keptHold{
		s: s, workspace: workspace, want: goal.name, renewed: renewed, half: cmp.Or(req.Lease, box.DefaultPolicy().HolderLease).Std() / 2,
		ask: box.RenewRequest{Request: box.Request{By: req.By}, HolderID: req.HolderID, Lease: req.Lease},
	}
	if !answer.LeaseUntil.IsZero() { // else a repeat, whose hold was released since
		goal.keep = held.keep
	}
	status, err := s.wait(ctx, workspace, goal, within)
	if err != nil {
		return answer, err
	}
	if goal.keep != nil && (answer.State != box.StateRunning || !held.renewed.Equal(renewed)) {
		if answer.LeaseUntil, err = held.whole(ctx, status); err != nil {
			return answer, err
		}
	}
	answer.State, answer.RetryAfter, answer.Seen = status.State, 0, status.Seen
	return answer, nil
}

// lookWithin is how old the look may be on whose word connect --wait says that a
// box is running.
const lookWithin = box.Duration(time.Minute)

// seenGoal waits for a box that runs by a look that is new enough: the answer's
// own, or one after it. A worker of an earlier release tells of none.
func seenGoal(answer box.ConnectAnswer) goal {
	g := runningGoal()
	old := answer.Seen
	if answer.State != box.StateRunning || old == nil || old.Age <= lookWithin {
		return g
	}
	g.yet = func(s box.Status) string {
		if s.Seen != nil && s.Seen.At.After(old.At) {
			return ""
		}
		return "it was last seen at its provider " + old.Age.String() + " ago, so it is read again"
	}
	return g
}

// keptHold is a hold that is renewed while a command waits: a box can take longer
// to run than a lease lasts, and one that nobody holds is let go again.
type keptHold struct {
	s         *session
	workspace string
	want      string
	ask       box.RenewRequest
	renewed   time.Time     // on this machine's clock, which is compared with no other
	half      time.Duration // of the lease, as it was seen last
}

// keep renews the hold once half of its lease is over. By a signal: the engine
// keeps it while no worker is up, and the worker takes it before it lets time
// pass. One that cannot be sent is sent at the next look.
func (k *keptHold) keep(ctx context.Context, status box.Status) (within time.Duration, err error) {
	switch h, ok := k.find(status); {
	case ok:
		k.half = h.Until.Sub(h.Renewed) / 2
	case status.State != "":
		why := "the hold " + printable(k.ask.HolderID) + " was ended meanwhile: " + strings.TrimSuffix(because(status), ".") + "; connect again if it is still needed"
		return 0, &otherState{want: k.want, got: status.State, why: why}
	}
	if time.Since(k.renewed) >= k.half && k.s.signal(ctx, k.workspace, box.SignalRenew, k.ask) == nil {
		k.renewed = time.Now()
	}
	return max(k.half/2, waitFirst), nil
}

// whole renews the hold for who has waited, and answers its end. Without an
// answer the hold stands as it was seen, if it was.
func (k *keptHold) whole(ctx context.Context, status box.Status) (time.Time, error) {
	k.ask.ID = "cli-" + randomID()
	answer, err := update[box.ConnectAnswer](ctx, k.s, k.workspace, box.UpdateRenew, k.ask.Request, k.ask)
	h, seen := k.find(status)
	switch {
	case err == nil:
		return answer.LeaseUntil, nil
	case box.ClassOf(err) == box.ClassNotFound || !seen:
		return time.Time{}, err
	}
	return h.Until, nil // the box runs and is held, which is what was asked for
}

func (k *keptHold) find(status box.Status) (box.Holder, bool) {
	i := slices.IndexFunc(status.Holders, func(h box.Holder) bool { return h.ID == k.ask.HolderID })
	if i < 0 {
		return box.Holder{}, false
	}
	return status.Holders[i], true
}

func (a *Shared) renewCommand() *cobra.Command {
	var ask asking
	var req box.RenewRequest
	c := &cobra.Command{
		Use: "renew WORKSPACE", Short: "Extend a hold; it never gets shorter", Args: args("a workspace", 1, 1),
	}
	ask.bind(c, "15s")
	c.Flags().StringVar(&req.HolderID, "holder", "", "id of the hold")
	c.Flags().Var(durationFlag{"lease", &req.Lease}, "lease", "how long it lasts from now (default by the policy)")
	c.RunE = func(c *cobra.Command, given []string) error {
		switch {
		case req.HolderID == "":
			return box.Invalidf("holder", "give the id that connect answered")
		case req.Lease.IsNever():
			return box.Invalidf("lease", "a hold is always bounded; renew it again later")
		}
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		req.Request = ask.request()
		answer, err := update[box.ConnectAnswer](ctx, s, given[0], box.UpdateRenew, req.Request, req)
		if err != nil {
			return err
		}
		return a.show(c, answer, func(p *page) {
			p.linef("%s is held by %s until %s.", given[0], printable(answer.HolderID), a.moment(answer.LeaseUntil))
		})
	}
	return c
}

func (a *Shared) releaseCommand() *cobra.Command {
	var ask asking
	var holder string
	c := &cobra.Command{
		Use: "release WORKSPACE", Short: "End a hold; the idle clock starts", Args: args("a workspace", 1, 1),
	}
	ask.bind(c, "15s")
	c.Flags().StringVar(&holder, "holder", "", "id of the hold")
	c.RunE = func(c *cobra.Command, given []string) error {
		if holder == "" {
			return box.Invalidf("holder", "give the id that connect answered; show lists the holds")
		}
		req := box.ReleaseRequest{Request: ask.request(), HolderID: holder}
		return a.act(c, &ask, given[0], false, goal{}, box.UpdateRelease, req.Request, req)
	}
	return c
}
