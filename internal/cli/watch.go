package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

func (a *Shared) watchCommand() *cobra.Command {
	every := box.Duration(2 * time.Second)
	c := &cobra.Command{
		Use: "watch WORKSPACE", Short: "Follow a workspace: one line per transition, with the reason", Args: args("a workspace", 1, 1),
		Long: "Shows the transitions so far and then each new one, until it is interrupted or the workspace is box-archived. " +
			"The workflow is asked, never the box. With -o json each line is one transition.",
	}
	c.Flags().Var(durationFlag{"every", &every}, "every", "how often to ask")
	c.RunE = func(c *cobra.Command, given []string) error {
		if every.IsNever() || every.Std() < 100*time.Millisecond {
			return box.Invalidf("every", "%s is too often; use 100ms or more", every)
		}
		ask := asking{timeout: box.Never}
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		return s.follow(ctx, given[0], every.Std())
	}
	return c
}

// follow prints what is new at each look. An engine or a worker that is away
// for a while is said once and waited for.
func (s *session) follow(ctx context.Context, workspace string, every time.Duration) error {
	var newest box.Transition
	first, away := true, false
	for {
		look, cancel := context.WithTimeout(ctx, 15*time.Second)
		var why box.Why
		err := s.query(look, workspace, box.QueryWhy, &why)
		cancel()
		switch class := box.ClassOf(err); {
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // interrupted: that is how a watch ends
		case err != nil && first:
			return err
		case class == box.ClassUnavailable || class == box.ClassDeadlineExceeded:
			if !away {
				note(s.cmd, "%v; still watching", err)
			}
			away, s.served = true, false
		case err != nil:
			return err
		default:
			if away {
				note(s.cmd, "It answers again.")
			}
			first, away = false, false
			for _, t := range since(why.Transitions, newest) {
				if err := s.transition(t); err != nil {
					return err
				}
				newest = t
			}
			if why.State == box.StateBoxArchived || why.State == box.StateAbandoned {
				return nil
			}
		}
		if !sleep(ctx, every) {
			return nil
		}
	}
}

// since returns the transitions after the one that was seen last; all when it
// has dropped out of what the workflow remembers.
func since(all []box.Transition, seen box.Transition) []box.Transition {
	for i, a := range slices.Backward(all) {
		if a.At.Equal(seen.At) && a.To == seen.To && a.From == seen.From {
			return all[i+1:]
		}
	}
	return all
}

func (s *session) transition(t box.Transition) error {
	if s.output == formatJSON {
		return writeJSONLine(s.cmd.OutOrStdout(), t)
	}
	var p page
	p.linef("%s  %s -> %s: %s", stamp(t.At), printable(orDash(string(t.From))), printable(string(t.To)), printable(t.Reason.Text))
	return write(s.cmd.OutOrStdout(), p.String())
}
