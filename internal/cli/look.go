package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
)

// open connects and bounds the command for one workspace. Call done at the end.
func (a *Shared) open(c *cobra.Command, ask *asking, workspace string) (s *session, ctx context.Context, done func(), err error) {
	if err := box.ValidateWorkspace(workspace); err != nil {
		return nil, nil, nil, err
	}
	if s, err = a.connect(c); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := ask.bound(c.Context())
	return s, ctx, func() { cancel(); s.close() }, nil
}

func (a *Shared) showCommand() *cobra.Command {
	var ask asking
	c := &cobra.Command{
		Use: "show WORKSPACE", Aliases: []string{"status"}, Short: "Show the state of a workspace and what comes next", Args: args("a workspace", 1, 1),
		Long: ledgerHelp,
	}
	ask.bindTimeout(c, "15s")
	c.RunE = func(c *cobra.Command, given []string) error {
		var status box.Status
		err := a.askWatched(c, &ask, given[0], box.QueryStatus, &status)
		if err == nil {
			return a.show(c, status, func(p *page) { a.statusText(p, status) })
		}
		facts, asOf, err := a.fromLedger(c, given[0], err)
		if err != nil {
			return err
		}
		status = facts.StatusAt(asOf)
		status.Source = box.SourceLedger
		return a.showRemembered(c, status.State, status, func(p *page) { p.remembered(a, asOf); a.statusText(p, status) })
	}
	return c
}

func (a *Shared) statusText(p *page, s box.Status) {
	export := "none"
	if !s.Export.IsZero() {
		export = plural(s.Export.Conversations, "conversation") + ", " + plural(s.Export.Events, "event") + ", " + size(s.Export.Bytes) + ", " + a.age(s.ExportAge, s.AsOf) + " old"
		if !s.ExportCovers {
			export += "; does not cover the last use"
		}
	}
	next := "nothing is due"
	switch {
	case s.Next == box.StepWait && !s.NextAt.IsZero():
		next = "nothing before " + a.moment(s.NextAt)
	case s.Next == box.StepFinish:
		next = "nothing: it has ended"
	case s.Next != "" && s.Next != box.StepWait:
		next = strings.TrimSpace(string(s.Next) + " " + a.moment(s.NextAt))
	}
	idle := ""
	if s.IdleFor > 0 {
		idle = a.age(s.IdleFor, s.AsOf)
	}
	p.facts(
		[2]string{"workspace", s.Workspace},
		[2]string{"state", string(s.State) + ", for " + a.age(s.Since, s.AsOf)},
		[2]string{"because", s.Reason.Text},
		[2]string{"flags", strings.Join(s.Flags, ", ")},
		[2]string{"next", next},
		[2]string{"owner", s.Owner},
		[2]string{"provider", s.Provider},
		[2]string{"box", s.Ref.Name},
		[2]string{"epoch", stringOf(int64(s.Epoch))},
		[2]string{"idle for", idle},
		[2]string{"suspended since", a.moment(s.SuspendedSince)},
		[2]string{"history", plural(s.Conversations, "conversation") + ", " + plural(s.Events, "event")},
		[2]string{"export", export},
		[2]string{"files in it", archiveText(s.Export.Archive)},
		[2]string{"secrets in it", a.secretsText(s.Workspace, s.Export.Secrets)},
		[2]string{"reclaimed", size(s.Reclaimed)},
	)
	p.sighting(a, s.Seen, s.AsOf)
	for _, h := range s.Holders {
		p.linef("Held by %s %s%s until %s.", printable(string(h.Kind)), printable(h.ID), ifText(" of ", printable(h.Origin)), a.moment(h.Until))
	}
	if d := s.Deletion; d != nil {
		if d.Confirmed {
			p.linef("A deletion was confirmed %s.", a.moment(d.ConfirmedAt))
		} else {
			p.linef("A deletion was asked for %s and is not confirmed; the token expires %s.", a.moment(d.RequestedAt), a.moment(d.Expires))
		}
	}
	if v := s.Confirmation; v != nil {
		what := "confirmation"
		if v.Cancel {
			what = "cancellation"
		}
		p.linef("The last %s was %s: %s.", what, map[bool]string{true: "accepted", false: "not accepted"}[v.Accepted], strings.TrimSuffix(printable(v.Reason.Text), "."))
	}
	if h := s.Hold; h != nil {
		p.linef("On hold since %s%s%s: nothing is destroyed.", a.moment(h.Since), ifText(", by ", printable(h.By)), ifText(", because ", printable(h.Reason)))
	}
	for _, one := range s.Former {
		if !one.SeenAt.IsZero() {
			p.linef("The former box %s of epoch %s is there again since %s, %s: nothing touches it, and it costs money.", printable(one.Ref.ID), stringOf(int64(one.Ref.Epoch)), a.moment(one.SeenAt), printable(string(one.Phase)))
		}
	}
	p.failure(a, s.Failure, s.NextAt)
	p.webhooks(a, s)
	if len(s.Watches) > 0 || len(s.Risks) > 0 {
		p.WriteByte('\n')
		p.plan(box.Arrangement{Watches: s.Watches, Risks: s.Risks})
	}
}

// age is how long ago something was, now: the workflow counted up to asOf, on
// the engine's clock, which stands where it last ran.
func (a *Shared) age(counted box.Duration, asOf time.Time) string {
	if counted.IsNever() || asOf.IsZero() {
		return counted.String()
	}
	return box.Duration((counted.Std() + max(a.env.Now().Sub(asOf), 0)).Round(time.Second)).String()
}

// left is what is left now of a time that was counted down to asOf.
func (a *Shared) left(counted box.Duration, asOf time.Time) string {
	if counted.IsNever() || asOf.IsZero() {
		return counted.String()
	}
	return box.Duration(max(counted.Std()-max(a.env.Now().Sub(asOf), 0), 0).Round(time.Second)).String()
}

// failure prints what failed last. Its next try is told only while something is
// armed: where a person must decide, nothing is tried again by itself.
func (p *page) failure(a *Shared, f *box.Failure, armed time.Time) {
	if f == nil {
		return
	}
	p.linef("Failing: %s, %s, last %s: %s", printable(string(f.Step)), plural(f.Count, "time"), a.moment(f.At), printable(f.Message))
	if !f.RetryAt.IsZero() && !armed.IsZero() {
		p.linef("It is tried again %s.", a.moment(f.RetryAt))
	}
}

func (a *Shared) whyCommand() *cobra.Command {
	var ask asking
	c := &cobra.Command{
		Use: "why WORKSPACE", Short: "Say why a box is as it is, what comes next and who can stop it", Args: args("a workspace", 1, 1),
		Long: ledgerHelp,
	}
	ask.bindTimeout(c, "15s")
	c.RunE = func(c *cobra.Command, given []string) error {
		var why box.Why
		err := a.askWatched(c, &ask, given[0], box.QueryWhy, &why)
		if err == nil {
			return a.show(c, why, func(p *page) { a.whyText(p, given[0], why) })
		}
		facts, asOf, err := a.fromLedger(c, given[0], err)
		if err != nil {
			return err
		}
		why = facts.WhyAt(asOf)
		why.Source = box.SourceLedger
		return a.showRemembered(c, why.State, why, func(p *page) { p.remembered(a, asOf); a.whyText(p, given[0], why) })
	}
	return c
}

func (a *Shared) whyText(p *page, workspace string, w box.Why) {
	p.linef("%s is %s: %s.", workspace, printable(string(w.State)), strings.TrimSuffix(printable(w.Because.Text), "."))
	if len(w.Flags) > 0 {
		p.linef("Flags: %s.", printable(strings.Join(w.Flags, ", ")))
	}
	switch {
	case w.Next == box.StepWait && !w.NextAt.IsZero():
		p.linef("Nothing comes next before %s%s.", a.moment(w.NextAt), ifText(": ", printable(w.NextReason.Text)))
	case w.Next == "" || w.Next == box.StepWait || w.Next == box.StepFinish:
		p.linef("Nothing comes next by itself%s.", ifText(": ", printable(w.NextReason.Text)))
	case w.NextAt.IsZero():
		p.linef("Next is %s, when something happens%s.", printable(string(w.Next)), ifText(": ", printable(w.NextReason.Text)))
	default:
		p.linef("Next is %s, %s%s.", printable(string(w.Next)), a.moment(w.NextAt), ifText(": ", printable(w.NextReason.Text)))
	}
	if w.StoppedBy != "" {
		p.linef("Who can stop it: %s.", strings.TrimSuffix(printable(inCommands(w.StoppedBy)), "."))
	}
	for _, h := range w.Holders {
		p.linef("Held by %s %s%s for %s; the lease ends in %s.", printable(string(h.Kind)), printable(h.ID), ifText(" of ", printable(h.Origin)), a.age(h.Age, w.AsOf), a.left(h.EndsIn, w.AsOf))
	}
	if d := w.Decided; d != nil {
		p.linef("The last decision was to %s, %s: %s.", printable(string(d.Step)), a.moment(d.At), strings.TrimSuffix(printable(d.Reason.Text), "."))
		p.grounds(a, d.Facts)
	}
	p.sighting(a, w.Seen, w.AsOf)
	p.failure(a, w.Failure, w.NextAt)
	if len(w.Transitions) == 0 {
		return
	}
	p.WriteByte('\n')
	rows := [][]string{{"WHEN", "FROM", "TO", "BECAUSE"}}
	for _, t := range w.Transitions {
		rows = append(rows, []string{stamp(t.At), orDash(string(t.From)), string(t.To), t.Reason.Text})
	}
	p.table(rows)
}

// toldBy says who made us look, by the id of what was told.
func toldBy(id string) string {
	switch {
	case id == "":
		return ""
	case strings.HasPrefix(id, box.WatchedID):
		return "; looked at because its provider told of a change"
	}
	return "; looked at because a report from outside told of a change"
}

// sighting prints what the provider said last.
func (p *page) sighting(a *Shared, s *box.Sighting, asOf time.Time) {
	if s == nil {
		return
	}
	memory := ""
	if s.MemoryKept == box.Yes {
		memory = " with its memory kept"
	}
	if s.StoredBytes > 0 {
		memory += " (" + size(s.StoredBytes) + " stored)"
	}
	p.linef("Last seen at the provider: %s%s, %s ago%s%s.", printable(string(s.Phase)), memory, a.age(s.Age, asOf), printable(ifText(": ", s.Evidence)), toldBy(s.ToldBy))
}

// grounds prints the facts that led to a decision.
func (p *page) grounds(a *Shared, g box.Grounds) {
	var told []string
	say := func(on bool, text string) {
		if on {
			told = append(told, text)
		}
	}
	at := func(what string, t time.Time) { say(!t.IsZero(), what+" "+a.moment(t)) }
	at("last use", g.LastUse)
	at("awake since", g.AwakeSince)
	say(g.IdleAfter != 0, "idle after "+g.IdleAfter.String())
	at("hard end", g.WallAt)
	say(g.Holders > 0, plural(g.Holders, "holder"))
	say(g.Wanted != "", "a person wants it to "+g.Wanted)
	at("suspended since", g.SuspendedSince)
	at("expires", g.ExpiresAt)
	at("people told of", g.NoticedFor)
	say(g.MemoryKept == box.Yes, "its memory is kept")
	say(g.ExportCovers, "an export covers the last use")
	say(!g.ExportCovers, "no export covers the last use")
	say(g.ConfirmedBy != "", "deletion confirmed by "+g.ConfirmedBy)
	say(g.ExportVerified, "its export was read back")
	say(g.WithoutHistory, "the loss of history was accepted")
	say(g.LastSeen != "", "the provider last said "+string(g.LastSeen)+ifText(" ", a.moment(g.LastSeenAt)))
	say(g.Failures > 0, "it had failed "+plural(g.Failures, "time"))
	p.linef("It went by: %s.", printable(strings.Join(told, "; ")))
}

func ifText(before, text string) string {
	if text == "" {
		return ""
	}
	return before + strings.TrimSuffix(text, ".")
}
