package cli

import (
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
			"Without --wait it answers from the newest look at the provider and says how old that is; with --wait a box that was last seen more than a minute ago is read again first.",
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
			status, err := s.wait(ctx, given[0], seenGoal(answer), ask.timeout)
			if err != nil {
				return err
			}
			answer.State, answer.RetryAfter, answer.Seen = status.State, 0, status.Seen
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
