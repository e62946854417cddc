package cli

import (
	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

func (a *Shared) suspendCommand() *cobra.Command {
	return a.actCommand("suspend", "Suspend a box now; its files are kept", box.UpdateSuspend, suspendedGoal())
}

func (a *Shared) resumeCommand() *cobra.Command {
	return a.actCommand("resume", "Wake a suspended box, or try a failed creation again", box.UpdateResume, runningGoal())
}

// actCommand is a suspend or a resume.
func (a *Shared) actCommand(name, short, update string, to goal) *cobra.Command {
	var ask asking
	var wait bool
	c := &cobra.Command{Use: name + " WORKSPACE", Short: short, Args: args("a workspace", 1, 1)}
	ask.bind(c, "5m")
	c.Flags().BoolVar(&wait, "wait", false, "wait until it is "+to.name)
	c.RunE = func(c *cobra.Command, given []string) error {
		req := ask.request()
		return a.act(c, &ask, given[0], wait, to, update, req, req)
	}
	return c
}

// act sends an update that is answered with where it stands.
func (a *Shared) act(c *cobra.Command, ask *asking, workspace string, wait bool, to goal, name string, req box.Request, arg any) error {
	s, ctx, done, err := a.open(c, ask, workspace)
	if err != nil {
		return err
	}
	defer done()
	answer, err := update[box.ActionAnswer](ctx, s, workspace, name, req, arg)
	if err != nil {
		return err
	}
	if wait {
		status, err := s.wait(ctx, workspace, to, ask.timeout)
		if err != nil {
			return err
		}
		answer.State = status.State
		return a.show(c, answer, func(p *page) { p.linef("%s is %s.", workspace, printable(string(status.State))) })
	}
	return a.show(c, answer, func(p *page) {
		p.linef("%s is %s: %s.", workspace, printable(string(answer.State)), printable(answer.Text))
	})
}

func (a *Shared) reclaimCommand() *cobra.Command {
	var ask asking
	var req box.ReclaimRequest
	var tiers []string
	c := &cobra.Command{
		Use: "reclaim WORKSPACE", Short: "Free disk space inside a running box", Args: args("a workspace", 1, 1),
		Long:    "Deletes what tools make again on demand. With --dry-run it answers the plan; --plan then takes that plan's items and no others.",
		Example: "  boxkeeper box reclaim mine --dry-run\n  boxkeeper box reclaim mine --plan PLAN-ID",
	}
	ask.bind(c, "15m")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "show what would be freed and delete nothing")
	c.Flags().StringVar(&req.PlanID, "plan", "", "id of a plan from a dry run")
	c.Flags().StringArrayVar(&tiers, "tier", nil, "how deep: caches (default), dependencies or runtime (repeat)")
	c.Flags().BoolVar(&req.AcceptUnsaved, "accept-unsaved", false, "with --tier runtime and --conversation: worktrees go although work in them is nowhere else; it is kept as references and in an archive in the box first")
	c.Flags().StringArrayVar(&req.ConversationIDs, "conversation", nil, "only what belongs to this conversation (repeat; default everything)")
	c.RunE = func(c *cobra.Command, given []string) error {
		for _, tier := range tiers {
			switch box.Tier(tier) {
			case box.TierCaches, box.TierDependencies, box.TierRuntime:
				req.Tiers = append(req.Tiers, box.Tier(tier))
			default:
				return box.Invalidf("--tier", "%q is not known; use caches, dependencies or runtime", printable(tier))
			}
		}
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		asked := box.ReclaimAsk{Request: ask.request(), ReclaimRequest: req}
		report, err := update[box.ReclaimReport](ctx, s, given[0], box.UpdateReclaim, asked.Request, asked)
		if err != nil {
			return err
		}
		return a.show(c, report, func(p *page) { s.reclaimText(p, given[0], report) })
	}
	return c
}

func (s *session) reclaimText(p *page, workspace string, r box.ReclaimReport) {
	rows := [][]string{{"PATH", "RULE", "TIER", "SIZE", "LEFT BECAUSE"}}
	for _, item := range r.Items {
		rows = append(rows, []string{item.Path, item.Rule, string(item.Tier), size(item.Bytes), orDash(item.Skipped)})
	}
	if len(r.Items) > 0 {
		p.table(rows)
		p.WriteByte('\n')
	}
	if r.Omitted > 0 {
		p.linef("%s more are not listed.", plural(r.Omitted, "smaller item"))
	}
	switch {
	case r.DryRun && r.PlannedBytes > 0:
		p.linef("%s would be freed. To do it: %s", size(r.PlannedBytes), s.command("reclaim", workspace, "--plan", r.PlanID))
	case r.DryRun:
		p.linef("There is nothing to free.")
	case r.Pending:
		p.linef("%s were moved aside and are being deleted.", size(r.PlannedBytes))
	case r.RemovedLowerBound:
		p.linef("At least %s were deleted, by a boxd that was ended in the middle; the disk has %s more free.", size(r.RemovedBytes), size(r.FreedBytes))
	default:
		p.linef("%s were deleted; the disk has %s more free.", size(r.RemovedBytes), size(r.FreedBytes))
	}
}

func (a *Shared) exportCommand() *cobra.Command {
	var ask asking
	c := &cobra.Command{
		Use: "export WORKSPACE", Short: "Take or refresh the export of a workspace's history and files now", Args: args("a workspace", 1, 1),
		Long: "A suspended box whose export covers its history is not woken; else it is woken for the export and suspended again.",
	}
	ask.bind(c, "30m")
	c.RunE = func(c *cobra.Command, given []string) error {
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		req := ask.request()
		receipt, err := update[box.Receipt](ctx, s, given[0], box.UpdateExport, req, req)
		if err != nil {
			return err
		}
		if receipt.IsZero() {
			return box.Errorf(box.ClassUnknown, "the worker answered without a receipt, so nothing proves the export; ask again")
		}
		return a.show(c, receipt, func(p *page) {
			p.linef("Exported and read back: %s, %s, %s.", plural(receipt.Conversations, "conversation"), plural(receipt.Events, "event"), size(receipt.Bytes))
			if text := archiveText(receipt.Archive); text != "" {
				p.linef("The workspace: %s.", text)
			}
			if text := a.secretsText(given[0], receipt.Secrets); text != "" {
				p.linef("In it: %s.", text)
			}
			p.facts([2]string{"sha256", receipt.SHA256}, [2]string{"manifest", receipt.Key}, [2]string{"read it", s.command("history", given[0])})
		})
	}
	return c
}
