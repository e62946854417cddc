package cli

import (
	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

func (a *Shared) restoreCommand() *cobra.Command {
	var ask asking
	var wait, accept bool
	to := runningGoal()
	c := &cobra.Command{
		Use: "restore WORKSPACE", Short: "Put the newest export into a new box, in place of a lost one", Args: args("a workspace", 1, 1),
		Long: "For a workspace whose box is lost. The new box gets the history, which is read-only there, the files, and the repositories with what nobody pushed and what is not committed. " +
			"All of it is proven before anyone gets in. What came after that export is not in it. " +
			"An export that lacks something of the workspace is refused, unless --accept-incomplete says that you know; \"history --workspace\" shows what it lacks.",
	}
	ask.bind(c, "5m")
	c.Flags().BoolVar(&wait, "wait", false, "wait until it is "+to.name)
	c.Flags().BoolVar(&accept, "accept-incomplete", false, "restore what there is although the export lacks something of the workspace")
	c.RunE = func(c *cobra.Command, given []string) error {
		req := ask.request()
		return a.act(c, &ask, given[0], wait, to, box.UpdateRestore, req, box.RestoreAsk{Request: req, AcceptIncomplete: accept})
	}
	return c
}

func (a *Shared) replaceCommand() *cobra.Command {
	c := a.actCommand("replace", "Start a new, empty box in place of a lost one", box.UpdateReplace, runningGoal())
	c.Long = "For a workspace whose box is lost or could not be created. What was exported stays readable; the new box begins without it. " +
		"While a restore fails, it takes the new box as it is."
	return c
}

func (a *Shared) abandonCommand() *cobra.Command {
	var ask asking
	var req box.AbandonAsk
	c := &cobra.Command{
		Use: "abandon WORKSPACE", Short: "End the watch over a box that cannot be had any more; it may go on costing money", Args: args("a workspace", 1, 1),
		Long: "For operators: the account is closed, say, or the provider is gone. Nothing is sent to the provider. The reason is recorded for ever, " +
			"the workspace is closed, and its id is never used again. What was exported stays readable. To destroy a box that can be had, use delete.",
		Example: "  boxkeeper box abandon mine --reason 'the account at the provider is closed'",
	}
	ask.bind(c, "2m")
	c.Flags().StringVar(&req.Reason, "reason", "", "one sentence that says why, never a secret; required")
	c.Flags().BoolVar(&req.Force, "force", false, "abandon a box that is within reach, too")
	c.RunE = func(c *cobra.Command, given []string) error {
		if req.Reason == "" {
			return box.Invalidf("reason", "say why nobody needs to watch this box any more; it is kept for ever")
		}
		req.Request = ask.request()
		return a.act(c, &ask, given[0], false, goal{}, box.UpdateAbandon, req.Request, req)
	}
	return c
}

func (a *Shared) holdCommand() *cobra.Command {
	var ask asking
	var reason string
	var isOff bool
	c := &cobra.Command{
		Use: "hold WORKSPACE", Short: "Stop everything that destroys, or with --off let it go on", Args: args("a workspace", 1, 1),
		Long: "Deletions wait, whoever agreed to them, and nothing is reclaimed. Exports, notices and suspends go on. " +
			"The engine keeps it also while no worker is up. Repeating it is safe. To hold a box awake, use connect.",
	}
	ask.bindSignal(c, "15s")
	c.Flags().StringVar(&reason, "reason", "", "why, shown by why")
	c.Flags().BoolVar(&isOff, "off", false, "lift the hold")
	c.RunE = func(c *cobra.Command, given []string) error {
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		out := holding{Workspace: given[0], HoldSignal: box.HoldSignal{On: !isOff, By: ask.by, Reason: reason}}
		if err := s.signal(ctx, given[0], box.SignalHold, out.HoldSignal); err != nil {
			return err
		}
		return a.show(c, out, func(p *page) {
			p.linef("%s: %s. It is recorded; show says how it stands.", out.Workspace, map[bool]string{true: "nothing is destroyed until the hold is lifted", false: "the hold is lifted"}[out.On])
		})
	}
	return c
}

// holding is the answer of hold.
type holding struct {
	Workspace string `json:"workspace"`
	box.HoldSignal
}
