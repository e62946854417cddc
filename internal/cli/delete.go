package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

// verdictWithin is how long confirm looks for what became of it when it was not
// told to wait.
const verdictWithin = 10 * time.Second

func (a *Shared) deleteCommand() *cobra.Command {
	var ask asking
	var undo box.Duration
	c := &cobra.Command{
		Use: "delete WORKSPACE", Short: "Ask for a deletion: shows what would be lost, and deletes nothing", Args: args("a workspace", 1, 1),
		Long: "Answers what a deletion would lose and a token. Nothing is deleted until \"confirm\" repeats that token. Nothing is woken.",
	}
	ask.bind(c, "1m")
	c.Flags().Var(durationFlag{"undo", &undo}, "undo", "keep the box for so long after the confirmation, to be able to cancel (default none)")
	c.RunE = func(c *cobra.Command, given []string) error {
		if undo.IsNever() {
			return box.Invalidf("undo", "\"never\" is not allowed; freeze or keep the box instead")
		}
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		asked := box.RequestDeleteAsk{Request: ask.request(), Undo: undo}
		loss, err := update[box.Loss](ctx, s, given[0], box.UpdateRequestDelete, asked.Request, asked)
		if err != nil {
			return err
		}
		return a.show(c, loss, func(p *page) { s.lossText(p, given[0], loss) })
	}
	return c
}

func (s *session) lossText(p *page, workspace string, l box.Loss) {
	p.linef("Nothing was deleted. Deleting box %d of %s would destroy:", l.Epoch, workspace)
	p.WriteByte('\n')
	export := "none"
	if !l.Export.IsZero() {
		export = plural(l.Export.Conversations, "conversation") + ", " + plural(l.Export.Events, "event") + ", sha256 " + l.Export.SHA256
	}
	seen := age(l.ScanAge)
	if seen == "" {
		seen = "just now"
	}
	used := age(l.LastUse)
	if used == "" {
		used = "just now"
	}
	p.facts(
		[2]string{"history", plural(l.Conversations, "conversation") + ", " + plural(l.Events, "event") + " (read: " + seen + ")"},
		[2]string{"last use", used},
		[2]string{"export", export},
		[2]string{"files in it", archiveText(l.Export.Archive)},
		[2]string{"it covers the history", yesNo(l.Covered)},
	)
	for _, text := range l.NotExported {
		p.linef("Not exported: %s.", strings.TrimSuffix(printable(text), "."))
	}
	p.WriteByte('\n')
	if l.Undo > 0 {
		p.linef("After the confirmation it can be taken back for %s.", l.Undo)
	} else {
		p.linef("After the confirmation it cannot be taken back for long: there is no undo window.")
	}
	p.linef("To confirm, until %s:", s.moment(l.Expires))
	p.linef("  %s", printable(s.command("confirm", workspace, "--token", l.Token)))
}

// confirmed is the answer of confirm and cancel.
type confirmed struct {
	Workspace string `json:"workspace"`
	// Verdict is accepted, refused or sent: sent means that no worker has looked
	// at it yet; it is not lost.
	Verdict string      `json:"verdict"`
	Text    string      `json:"text"`
	Status  *box.Status `json:"status,omitzero"`
}

func (a *Shared) confirmCommand() *cobra.Command {
	var (
		ask    asking
		signal box.ConfirmDelete
		wait   bool
	)
	c := &cobra.Command{
		Use: "confirm WORKSPACE --token TOKEN", Short: "Confirm a deletion that you were shown", Args: args("a workspace", 1, 1),
		Long: "Sends the confirmation. The engine keeps it also while no worker is up; repeating it is safe. " +
			"The history is exported and read back before the box is destroyed; if that can't be done the deletion waits.",
	}
	ask.bindSignal(c, "15m")
	c.Flags().StringVar(&signal.Token, "token", "", "the token that delete answered")
	c.Flags().BoolVar(&signal.WithoutHistory, "without-history", false, "accept that history which no export holds is lost")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the box is gone and the workspace is box-archived")
	c.RunE = func(c *cobra.Command, given []string) error {
		if signal.Token == "" {
			return box.Invalidf("token", "give the token that \"%s box delete\" answered", a.root.Name())
		}
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		signal.By = ask.by
		// What was refused before is not taken for the answer to this one. With no
		// worker up there is nothing to compare with, and the signal is kept.
		before, err := s.status(ctx, given[0])
		if err != nil && (wait || box.ClassOf(err) != box.ClassUnavailable) {
			return err
		}
		watched := err == nil
		if watched && before.State == box.StateBoxArchived {
			out := confirmed{Workspace: given[0], Verdict: "accepted", Text: gone(before) + " already and the workspace is box-archived", Status: &before}
			return a.show(c, out, func(p *page) { s.confirmedText(p, out) })
		}
		if err := s.signal(ctx, given[0], box.SignalConfirmDelete, signal); err != nil {
			return err
		}
		out := confirmed{Workspace: given[0], Verdict: "sent", Text: "it is recorded; show says what became of it once a worker is up"}
		if watched {
			if err := s.verdict(ctx, before, signal, &out); err != nil {
				return err
			}
		}
		if out.Verdict == "refused" {
			return box.Errorf(box.ClassFailedPrecondition, "the confirmation was refused: %s", out.Text)
		}
		if wait {
			status, err := s.wait(ctx, given[0], deletionGoal(signal.Token), ask.timeout)
			if err != nil {
				return err
			}
			out.Verdict, out.Text, out.Status = "accepted", gone(status)+" and the workspace is box-archived", &status
		}
		return a.show(c, out, func(p *page) { s.confirmedText(p, out) })
	}
	return c
}

func (s *session) confirmedText(p *page, out confirmed) {
	p.linef("%s: %s: %s.", out.Workspace, out.Verdict, strings.TrimSuffix(printable(out.Text), "."))
	if out.Status != nil && out.Status.State == box.StateBoxArchived {
		p.facts([2]string{"read what was kept", s.command("history", out.Workspace)})
	}
}

// verdict looks for a while what became of a confirmation.
func (s *session) verdict(ctx context.Context, before box.Status, sent box.ConfirmDelete, out *confirmed) error {
	ctx, cancel := context.WithTimeout(ctx, verdictWithin)
	defer cancel()
	for {
		now, err := s.status(ctx, before.Workspace)
		switch {
		case ctx.Err() != nil || box.ClassOf(err) == box.ClassUnavailable:
			return nil // it was sent; nobody has said what became of it
		case err != nil:
			return err
		}
		v := now.Confirmation
		switch {
		case now.State == box.StateBoxArchived:
			out.Verdict, out.Text = "accepted", gone(now)+" and the workspace is box-archived"
			return nil
		case now.State == box.StateDeleting && !now.Ref.IsZero():
			out.Verdict, out.Text = "accepted", "the box is "+string(now.State)
			return nil
		case v == nil || v.Token != sent.Token:
		case !off(*v) && now.Ref.IsZero():
			out.Verdict, out.Text = "accepted", "nobody knows of a box; what there is of one is looked for and destroyed"
			return nil
		case !off(*v):
			out.Verdict, out.Text = "accepted", "the history is exported and read back, then the box is destroyed"
			if d := now.Deletion; d != nil && d.Undo > 0 {
				out.Text += "; until " + stamp(d.ConfirmedAt.Add(d.Undo.Std())) + " it can be taken back with cancel"
			}
			return nil
		case before.Confirmation == nil || !v.At.Equal(before.Confirmation.At):
			out.Verdict, out.Text = "refused", v.Reason.Text
			return nil
		}
		if !sleep(ctx, lookEvery) {
			return nil
		}
	}
}

// gone says, of a workspace that is box-archived, what became of its box.
func gone(s box.Status) string {
	if s.Ref.IsZero() {
		return "there is no box"
	}
	return "the box is gone"
}

// off reports whether the deletion of this token is not agreed any more: its
// confirmation was refused or given up, or a cancellation came in time.
func off(v box.Confirmation) bool { return v.Accepted == v.Cancel }

// deletionGoal waits for the archive, and ends when the deletion was refused,
// voided or taken back.
func deletionGoal(token string) goal {
	g := archivedGoal()
	g.more = func(s box.Status) error {
		if s.Deletion != nil && s.Deletion.Confirmed || s.State == box.StateDeleting {
			return nil
		}
		if v := s.Confirmation; v != nil && v.Token == token && off(*v) {
			return &otherState{want: g.name, got: s.State, why: "the deletion is off: " + v.Reason.Text}
		}
		return nil
	}
	return g
}

func (a *Shared) cancelCommand() *cobra.Command {
	var ask asking
	c := &cobra.Command{
		Use: "cancel WORKSPACE", Short: "Take a deletion back, until the provider was told to destroy the box", Args: args("a workspace", 1, 1),
		Long: "Sends the cancellation, which the engine keeps also while no worker is up. Repeating it is safe.",
	}
	ask.bindSignal(c, "30s")
	c.RunE = func(c *cobra.Command, given []string) error {
		s, ctx, done, err := a.open(c, &ask, given[0])
		if err != nil {
			return err
		}
		defer done()
		if err := s.signal(ctx, given[0], box.SignalCancelDelete, box.CancelDelete{By: ask.by}); err != nil {
			return err
		}
		out, err := s.cancelled(ctx, given[0])
		if err != nil {
			return err
		}
		return a.show(c, out, func(p *page) { s.confirmedText(p, out) })
	}
	return c
}

// cancelled looks for a while whether the deletion is off.
func (s *session) cancelled(ctx context.Context, workspace string) (confirmed, error) {
	out := confirmed{Workspace: workspace, Verdict: "sent", Text: "it is recorded; show says what became of it once a worker is up"}
	ctx, cancel := context.WithTimeout(ctx, verdictWithin)
	defer cancel()
	for {
		status, err := s.status(ctx, workspace)
		switch {
		case ctx.Err() != nil || box.ClassOf(err) == box.ClassUnavailable:
			return out, nil
		case err != nil:
			return out, err
		case status.Deletion == nil && status.State != box.StateDeleting && status.State != box.StateBoxArchived && status.State != box.StateAbandoned:
			out.Verdict, out.Text, out.Status = "accepted", "no deletion is asked for any more; it is "+string(status.State), &status
			return out, nil
		case status.State == box.StateAbandoned:
			return out, box.Errorf(box.ClassFailedPrecondition, "the workspace is abandoned, so there is nothing to take back: %s", printable(status.Reason.Text))
		case status.State == box.StateBoxArchived, status.Deletion != nil && status.Deletion.Committed:
			return out, box.Errorf(box.ClassFailedPrecondition, "too late to take back: the box is %s; its history stays readable", status.State)
		}
		if !sleep(ctx, lookEvery) {
			return out, nil
		}
	}
}
