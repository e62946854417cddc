package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func (a *Shared) exportsCommand() *cobra.Command {
	c := group(&cobra.Command{
		Use: "exports", Short: "List the exports of a workspace in the store, say what secrets they hold, and delete one",
		Long: "Needs no Temporal, no worker and no box: all of them read the export store alone. " +
			"Exports of a box-archived workspace go by themselves when their time is over (export_life, see \"fleet sweep\").",
	})
	c.AddCommand(a.exportsListCommand(), a.exportsSecretsCommand(), a.exportsDeleteCommand())
	return c
}

// storedExports is what the export store holds of a workspace, export by export.
type storedExports struct {
	Workspace string           `json:"workspace"`
	Exports   string           `json:"exports"` // URL of the store
	Stored    []exports.Stored `json:"stored"`
}

func (a *Shared) exportsListCommand() *cobra.Command {
	c := &cobra.Command{Use: "list WORKSPACE", Short: "List the exports of a workspace", Args: args("a workspace", 1, 1)}
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := box.ValidateWorkspace(given[0]); err != nil {
			return err
		}
		store, where, err := a.readStore(c.Context())
		if err != nil {
			return err
		}
		defer store.Close() //nolint:errcheck // only read
		out := storedExports{Workspace: given[0], Exports: where, Stored: []exports.Stored{}}
		all, err := store.List(c.Context(), given[0])
		if err != nil {
			return err
		}
		if len(all) == 0 {
			entries, err := store.Ledger(c.Context(), given[0])
			if err == nil && len(entries) == 0 {
				return nothingOf(given[0], where)
			}
		}
		out.Stored = append(out.Stored, all...)
		return a.show(c, out, func(p *page) { p.storedExports(a, out) })
	}
	return c
}

func (p *page) storedExports(a *Shared, out storedExports) {
	if len(out.Stored) == 0 {
		p.linef("Workspace %s has no export.", out.Workspace)
		return
	}
	rows := [][]string{{"EXPORT", "WRITTEN", "CONVERSATIONS", "EVENTS", "SIZE", "FILES", "SECRETS"}}
	for _, s := range out.Stored {
		if s.Damage != "" {
			rows = append(rows, []string{s.Receipt.Key, "damaged", "-", "-", "-", "-", "-"})
			continue
		}
		rows = append(rows, []string{s.Receipt.Key, a.moment(s.CreatedAt), stringOf(int64(s.Receipt.Conversations)), stringOf(int64(s.Receipt.Events)), size(s.Receipt.Bytes), orDash(archiveText(s.Receipt.Archive)), stringOf(int64(s.Receipt.Secrets.Found))})
	}
	p.table(rows)
}

// deletedExport is the answer of delete: what would go, or what went.
type deletedExport struct {
	exports.Deletion
	Deleted bool `json:"deleted"`
}

func (a *Shared) exportsDeleteCommand() *cobra.Command {
	var token, by string
	c := &cobra.Command{
		Use: "delete WORKSPACE EXPORT", Short: "Show what the deletion of one export would take away; with its token, delete it", Args: args("a workspace and the key of an export", 2, 2),
		Long: "Without a token it deletes nothing: it shows what would go and answers a token. With that token it deletes what was shown, and is refused when that has changed. " +
			"Objects that other exports name stay. In an open workspace the newest export of a box stays, and so does one younger than a day. What was deleted is in the ledger. It can not be taken back.",
	}
	c.Flags().StringVar(&token, "token", "", "the token that was answered without it")
	c.Flags().StringVar(&by, "by", "cli", "who deletes it, for the ledger")
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := box.ValidateWorkspace(given[0]); err != nil {
			return err
		}
		store, _, err := a.readStore(c.Context())
		if err != nil {
			return err
		}
		defer store.Close() //nolint:errcheck // what was deleted is deleted
		out := deletedExport{Deleted: token != ""}
		if out.Deleted {
			out.Deletion, err = store.DeleteExport(c.Context(), given[0], given[1], token, by)
		} else {
			out.Deletion, err = store.AskDeletion(c.Context(), given[0], given[1])
		}
		if err != nil {
			return err
		}
		return a.show(c, out, func(p *page) { p.deletedExport(a, out) })
	}
	return c
}

// lostConversations says what of the history goes for good.
func lostConversations(d exports.Deletion) string {
	switch n := len(d.Lost); {
	case n > 10:
		return plural(n, "conversation") + " for good: " + strings.Join(d.Lost[:10], ", ") + " and more"
	case n > 0:
		return plural(n, "conversation") + " for good: " + strings.Join(d.Lost, ", ")
	case d.Export.Receipt.Conversations == 0:
		return "no conversation: it holds none"
	}
	return "no conversation: other exports hold as much of each"
}

func (p *page) deletedExport(a *Shared, d deletedExport) {
	if d.Deleted {
		p.linef("Deleted %s and %s (%s). The ledger of %s holds that it was.", d.Export.Receipt.Key, plural(d.Objects, "object"), size(d.StoredBytes), d.Workspace)
		return
	}
	p.linef("Nothing was deleted. Deleting %s would take away:", d.Export.Receipt.Key)
	p.WriteByte('\n')
	lost := lostConversations(d.Deletion)
	holds := plural(d.Export.Receipt.Conversations, "conversation") + ", " + plural(d.Export.Receipt.Events, "event")
	if a := d.Export.Receipt.Archive; a.Held() {
		holds += "; files: " + archiveText(a)
	}
	if d.Export.Damage != "" {
		holds = "it is damaged: " + printable(d.Export.Damage)
	}
	p.facts(
		[2]string{"holds", holds},
		[2]string{"written", a.moment(d.Export.CreatedAt)},
		[2]string{"objects", plural(d.Objects, "object") + ", " + size(d.StoredBytes)},
		[2]string{"stay for other exports", plural(d.Needed, "object")},
		[2]string{"lost", lost},
	)
	if d.LostFiles {
		other := "no other export holds files"
		if d.WithFiles > 0 {
			other = plural(d.WithFiles, "other export") + " held them at another time"
		}
		p.facts([2]string{"lost of the workspace", archiveText(d.Export.Receipt.Archive) + ", as they were then; " + other})
	}
	if d.Later {
		p.linef("Pieces of the workspace's archive that nothing else needs go after the workspace is closed.")
	}
	p.WriteByte('\n')
	p.linef("To delete it, until %s:", a.moment(d.Expires))
	p.linef("  %s box exports delete %s %s --token %s", a.root.Name(), d.Workspace, d.Export.Receipt.Key, d.Token)
}

// sweep is the answer of "fleet sweep".
type sweep struct {
	DryRun     bool            `json:"dry_run,omitzero"`
	Exports    string          `json:"exports"` // URL of the store
	Workspaces []exports.Swept `json:"workspaces"`
}

func (a *Shared) sweepCommand() *cobra.Command {
	var ask asking
	var dryRun bool
	c := &cobra.Command{
		Use: "sweep", Short: "Delete the exports of box-archived workspaces whose time is over", Args: args("nothing", 0, 0),
		Long: "Workers do the same once a day. For each workspace that was deleted longer ago than its policy keeps exports (export_life): its manifests go first, then all other objects; " +
			"the ledger stays, and holds what went. Exports of open and of abandoned workspaces stay, and so do those of a ledger that cannot be read whole. " +
			"Of a workspace that was closed a day ago and whose exports have no end, what none of them names goes: the rest of broken attempts, and of exports that a person deleted. " +
			"Repeating it is safe, also twice at once. The exit code is 1 if a workspace could not be swept.",
		Example: "  boxkeeper fleet sweep --dry-run\n  boxkeeper fleet sweep",
	}
	ask.bindTimeout(c, "12h")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be deleted, and delete nothing")
	c.RunE = func(c *cobra.Command, _ []string) error {
		store, where, err := a.readStore(c.Context())
		if err != nil {
			return err
		}
		defer store.Close() //nolint:errcheck // what was deleted is deleted
		ctx, cancel := ask.bound(c.Context())
		defer cancel()
		out := sweep{DryRun: dryRun, Exports: where, Workspaces: []exports.Swept{}}
		err = store.Sweep(ctx, a.env.Now(), !dryRun, func(one exports.Swept) { out.Workspaces = append(out.Workspaces, one) })
		if shown := a.show(c, out, func(p *page) { p.sweep(a, out) }); err != nil || shown != nil {
			return errors.Join(err, shown)
		}
		if i := slices.IndexFunc(out.Workspaces, func(one exports.Swept) bool { return one.Result == exports.SweepFailed }); i >= 0 {
			return box.Errorf(box.ClassUnknown, "not every workspace could be swept, such as %s: %s", out.Workspaces[i].Workspace, out.Workspaces[i].Error)
		}
		return nil
	}
	return c
}

func (p *page) sweep(a *Shared, out sweep) {
	if len(out.Workspaces) == 0 {
		p.linef("There are no exports in %s.", out.Exports)
		return
	}
	rows := [][]string{{"WORKSPACE", "RESULT", "EXPORTS", "SIZE", "DUE", "BECAUSE"}}
	for _, w := range out.Workspaces {
		because := w.Life.Reason
		if w.Error != "" {
			because = w.Error
		}
		if w.Unneeded > 0 {
			because += "; " + plural(w.Unneeded, "object") + " that no export names (" + size(w.UnneededBytes) + ")" + map[bool]string{true: " would go", false: " went"}[out.DryRun]
		}
		if len(w.Strangers) > 0 {
			because += "; " + plural(len(w.Strangers), "object") + " of no known form stay, such as " + w.Strangers[0]
		}
		rows = append(rows, []string{w.Workspace, string(w.Result), stringOf(int64(len(w.Exports))), size(w.StoredBytes), orDash(a.moment(w.Life.Due)), because})
	}
	p.table(rows)
}
