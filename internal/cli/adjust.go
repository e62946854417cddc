package cli

import (
	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

func (a *Shared) policyCommand() *cobra.Command {
	var ask asking
	var change box.Policy
	c := &cobra.Command{
		Use: "policy WORKSPACE", Short: "Show the policy of a workspace, or change fields of it", Args: args("a workspace", 1, 1),
		Long: "Without a flag of the policy it shows the one in force. A deadline that comes closer gives a fresh notice first: nothing is applied retroactively.",
	}
	ask.bind(c, "30s")
	policyFlags(c, &change)
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := change.Validate(); err != nil {
			return err
		}
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		if change == (box.Policy{}) {
			status, err := s.status(ctx, given[0])
			if err != nil {
				return err
			}
			return a.show(c, status.Policy, func(p *page) { p.policy(status.Policy) })
		}
		asked := box.SetPolicyAsk{Request: ask.request(), Policy: change}
		answer, err := update[box.SetPolicyAnswer](ctx, s, given[0], box.UpdateSetPolicy, asked.Request, asked)
		if err != nil {
			return err
		}
		return a.show(c, answer, func(p *page) {
			p.policy(answer.Policy)
			p.linef("Next action before: %s, now: %s.", orDash(a.moment(answer.NextBefore)), orDash(a.moment(answer.NextAfter)))
			p.risks(answer.Risks)
		})
	}
	return c
}

func (p *page) policy(policy box.Policy) {
	var rows [][]string
	for _, f := range policyFields(&policy) {
		name := f.flag
		if f.to == &policy.Undo { // a deletion that a person asks for has its own
			name += " (at expiry)"
		}
		rows = append(rows, []string{name + ":", f.to.String()})
	}
	rows = append(rows, []string{"on-expiry:", string(policy.OnExpiry)})
	if policy.Lead != "" {
		rows = append(rows, []string{"lead:", string(policy.Lead)})
	}
	if policy.ExportSecrets != "" {
		rows = append(rows, []string{"export-secrets:", string(policy.ExportSecrets)})
	}
	p.table(rows)
}

func (a *Shared) keepCommand() *cobra.Command {
	return a.switchCommand("keep", "Turn the expiry of a suspended box off", box.UpdateKeep, "let it expire again, with a fresh clock")
}

func (a *Shared) freezeCommand() *cobra.Command {
	return a.switchCommand("freeze", "Stop every timer of a box", box.UpdateFreeze, "start its clocks afresh")
}

func (a *Shared) switchCommand(name, short, update, off string) *cobra.Command {
	var ask asking
	var isOff bool
	c := &cobra.Command{Use: name + " WORKSPACE", Short: short + ", or with --off on again", Args: args("a workspace", 1, 1)}
	ask.bind(c, "30s")
	c.Flags().BoolVar(&isOff, "off", false, off)
	c.RunE = func(c *cobra.Command, given []string) error {
		req := box.SwitchAsk{Request: ask.request(), On: !isOff}
		return a.act(c, &ask, given[0], false, goal{}, update, req.Request, req)
	}
	return c
}
