package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

func adoptedGoal() goal {
	return goal{
		name:  "taken over",
		good:  []box.State{box.StateRunning, box.StateSuspended, box.StateAwaitingConfirm},
		never: []box.State{box.StateCreateFailed, box.StateLost, box.StateDeleting, box.StateBoxArchived, box.StateDeleteBlocked, box.StateAbandoned},
	}
}

func (a *Shared) adoptCommand() *cobra.Command {
	var (
		spec      specFlags
		ask       asking
		workspace string
		wait      bool
	)
	c := &cobra.Command{
		Use: "adopt PROVIDER BOX-ID", Short: "Take over a box that is there, such as one that was made before boxkeeper", Args: args("a provider instance and its id of the box", 2, 2),
		Long: "Starts a workspace around the box, and never creates one. A workspace that is there and whose box is lost takes this one instead. " +
			"Nothing is woken. A box that another installation or workspace has marked is refused and left alone. Repeating it is safe.",
		Example: "  boxkeeper box adopt local an-old-session --workspace mine --owner ann --wait",
	}
	spec.bindOwn(c)
	ask.bind(c, "5m")
	c.Flags().StringVar(&workspace, "workspace", "", "id of the workspace; required")
	c.Flags().BoolVar(&wait, "wait", false, "wait until it is running or suspended")
	c.RunE = func(c *cobra.Command, given []string) error {
		if workspace == "" {
			return box.Invalidf("workspace", "give the id of the workspace that the box is to belong to, with --workspace")
		}
		spec.provider, spec.adopt = given[0], given[1]
		built, err := spec.build(c, workspace)
		if err != nil {
			return err
		}
		row, err := a.capabilities(built.Provider)
		if err != nil {
			return err
		}
		if row.Adopt == box.No {
			return box.Errorf(box.ClassUnsupported, "provider %s cannot take over a box that is there; create one and copy what you need", built.Provider)
		}
		arranged, err := plan(built.Policy, row)
		if err != nil {
			return err
		}
		s, err := a.connect(c)
		if err != nil {
			return err
		}
		defer s.close()
		ctx, cancel := ask.bound(c.Context())
		defer cancel()
		if err := s.needServed(ctx, built, row, ""); err != nil {
			return err
		}
		out := creation{Workspace: workspace, WorkflowID: box.WorkflowID(workspace), Plan: arranged}
		if err := s.adopt(ctx, box.Input{Spec: built, Capabilities: row}, ask.request(), &out); err != nil {
			return err
		}
		if wait {
			status, err := s.wait(ctx, workspace, adoptedGoal(), ask.timeout)
			if err != nil {
				return err
			}
			out.Status = &status
		}
		return a.show(c, out, func(p *page) { p.creation(out) })
	}
	return c
}

// adopt starts a workspace around the box, or gives the box to one that is
// there and has none.
func (s *session) adopt(ctx context.Context, in box.Input, req box.Request, out *creation) error {
	err := s.start(ctx, in, out)
	same := err == nil && out.Existed
	if !same && box.ClassOf(err) != box.ClassAlreadyExists {
		return err
	}
	status, err := s.status(ctx, in.Spec.Workspace)
	switch {
	case err != nil:
		return err
	case status.Provider != in.Spec.Provider:
		return box.Errorf(box.ClassFailedPrecondition, "workspace %s is at provider %s, the box at %s; adopt it under another workspace", in.Spec.Workspace, status.Provider, in.Spec.Provider)
	case same && status.State != box.StateLost && status.State != box.StateCreateFailed:
		return nil // the same request as before, and it is under way or done
	}
	ask := box.AdoptAsk{Request: req, BoxID: in.Spec.Adopt}
	answer, err := update[box.ActionAnswer](ctx, s, in.Spec.Workspace, box.UpdateAdopt, req, ask)
	if err != nil {
		return err
	}
	status.State = answer.State
	out.Existed, out.Status = true, &status
	return nil
}
