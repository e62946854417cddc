package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// What became of one workspace in a rebuild.
const (
	rebuildDone    = "rebuilt"
	rebuildWould   = "would-rebuild" // with --dry-run
	rebuildWatched = "watched"       // a workflow runs
	rebuildClosed  = "closed"        // deleted; its id stays closed
	rebuildDamaged = "damaged"       // its ledger does not say how it was; nothing was guessed
	rebuildFailed  = "failed"
)

// rebuild is what became of one workspace.
type rebuild struct {
	Workspace string `json:"workspace"`
	Result    string `json:"result"`
	// State, Epoch and AsOf are what the ledger says.
	State box.State `json:"state,omitzero"`
	Epoch int       `json:"epoch,omitzero"`
	AsOf  time.Time `json:"as_of,omitzero"`
	RunID string    `json:"run_id,omitzero"`
	Text  string    `json:"text,omitzero"`

	err error
}

type fleetRebuild struct {
	DryRun     bool      `json:"dry_run,omitzero"`
	Exports    string    `json:"exports"` // URL of the store
	Workspaces []rebuild `json:"workspaces"`
}

func (a *Shared) fleetCommand() *cobra.Command {
	c := group(&cobra.Command{Use: "fleet", GroupID: groupRun, Short: "Look after all workspaces at once"})
	c.AddCommand(a.rebuildCommand(), a.sweepCommand())
	return c
}

func (a *Shared) rebuildCommand() *cobra.Command {
	var ask asking
	var dryRun bool
	c := &cobra.Command{
		Use: "rebuild [WORKSPACE...]", Short: "Bring workspaces back whose workflow is gone, from their ledgers",
		Long: "For every workspace with a ledger in the export store, or those named: one that was deleted stays closed, one whose workflow runs is left alone, " +
			"and one whose workflow is missing or ended out of order is started again with its policy, epoch, deadlines and receipt. " +
			"Its box is read before anything is done with it. A confirmed deletion must be confirmed again, unless the provider may have been told already. " +
			"A damaged ledger is named and nothing is guessed. Repeating it is safe, also twice at once. The exit code is 1 if a workspace could not be brought back.",
		Example: "  boxkeeper fleet rebuild --dry-run\n  boxkeeper fleet rebuild",
	}
	ask.bindTimeout(c, "10m")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be brought back, and start nothing")
	c.RunE = func(c *cobra.Command, given []string) error {
		for _, workspace := range given {
			if err := box.ValidateWorkspace(workspace); err != nil {
				return err
			}
		}
		store, where, err := a.readStore(c.Context())
		if err != nil {
			return err
		}
		defer store.Close() //nolint:errcheck // only read
		s, err := a.connect(c)
		if err != nil {
			return err
		}
		defer s.close()
		ctx, cancel := ask.bound(c.Context())
		defer cancel()
		out := fleetRebuild{DryRun: dryRun, Exports: where, Workspaces: []rebuild{}}
		all, stranger := given, error(nil)
		if len(given) == 0 {
			if all, stranger = store.Workspaces(ctx); stranger != nil && box.ClassOf(stranger) != box.ClassUnknown {
				return stranger
			}
		}
		for _, workspace := range all {
			out.Workspaces = append(out.Workspaces, s.rebuild(ctx, store, workspace, dryRun))
		}
		if err := a.show(c, out, func(p *page) { p.rebuilds(a, out) }); err != nil {
			return err
		}
		if slices.ContainsFunc(out.Workspaces, func(r rebuild) bool { return r.Result == rebuildDone }) {
			if err := s.needWorker(ctx); box.ClassOf(err) == box.ClassUnavailable {
				note(c, "Note: they go on when a worker is up; start one with \"%s worker\".", a.root.Name())
			}
		}
		return out.failure(stranger)
	}
	return c
}

// failure says which workspaces were not brought back.
func (f fleetRebuild) failure(stranger error) error {
	var names []string
	class, last := box.ClassUnknown, stranger
	for _, r := range f.Workspaces {
		if r.err != nil {
			names, last = append(names, r.Workspace), r.err
			if r.Result == rebuildFailed {
				class = box.ClassOf(r.err)
			}
		}
	}
	switch {
	case last == nil:
		return nil
	case len(names) == 0:
		return last
	}
	return box.Errorf(class, "%s not brought back: %s; the others are done, and it is safe to repeat this: %w", plural(len(names), "workspace"), strings.Join(names, ", "), last)
}

// rebuild brings one workspace back, if it needs that.
func (s *session) rebuild(ctx context.Context, store *exports.Store, workspace string, dryRun bool) rebuild {
	out := rebuild{Workspace: workspace}
	end := func(result, text string, err error) rebuild {
		out.Result, out.Text, out.err = result, text, err
		if err != nil {
			out.Text = err.Error()
		}
		return out
	}
	entries, err := store.Ledger(ctx, workspace)
	if i := slices.IndexFunc(entries, func(e exports.Entry) bool { return e.Kind.Closes() }); i >= 0 { // also in a damaged ledger
		tombstone := entries[i]
		out.State, out.Epoch, out.AsOf = box.StateBoxArchived, tombstone.Epoch, tombstone.At
		if tombstone.Kind == exports.KindAbandoned {
			out.State = box.StateAbandoned
			return end(rebuildClosed, "abandoned; "+leftBy(tombstone)+"; its id stays closed", nil)
		}
		return end(rebuildClosed, "deleted; its id stays closed", nil)
	}
	var facts box.Facts
	if err == nil {
		facts, out.AsOf, err = box.Rebuild(workspace, entries)
		out.State, out.Epoch = facts.State, facts.Epoch
	}
	if err == nil {
		err = box.CheckRebuilt(&facts, workspace)
	}
	switch box.ClassOf(err) { //nolint:exhaustive // the rest means that it could not be read
	case "":
	case box.ClassUnknown, box.ClassUnsupported, box.ClassInvalid, box.ClassNotFound:
		return end(rebuildDamaged, "", err)
	default:
		return end(rebuildFailed, "", err)
	}
	lost, why, err := s.lost(ctx, workspace)
	switch {
	case err != nil:
		return end(rebuildFailed, "", err)
	case !lost:
		return end(rebuildWatched, why, nil)
	case dryRun:
		return end(rebuildWould, why, nil)
	}
	if facts.Capabilities.Driver == "" { // a ledger of an earlier release
		if facts.Capabilities, err = s.capabilities(facts.Spec.Provider); err != nil {
			return end(rebuildFailed, "", err)
		}
	}
	// The engine refuses it while one runs, and after one that ended by a deletion.
	in := box.Input{Spec: facts.Spec, Capabilities: facts.Capabilities, Rebuilt: &facts}
	out.RunID, err = startUnder(ctx, s.client, in, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY)
	switch {
	case is[*serviceerror.WorkflowExecutionAlreadyStarted](err):
		return end(rebuildWatched, "somebody else started it first", nil)
	case err != nil:
		return end(rebuildFailed, "", s.engineError("start workspace "+workspace+" again", err))
	}
	return end(rebuildDone, why, nil)
}

// lost reports whether nobody watches a workspace, and says why or why not.
func (s *session) lost(ctx context.Context, workspace string) (lost bool, why string, err error) {
	seen, err := s.client.DescribeWorkflowExecution(ctx, box.WorkflowID(workspace), "")
	if is[*serviceerror.NotFound](err) && !is[*serviceerror.NamespaceNotFound](err) {
		return true, "the engine does not know it", nil
	}
	if err != nil {
		return false, "", s.engineError("look for the workflow of workspace "+workspace, err)
	}
	switch status := seen.GetWorkflowExecutionInfo().GetStatus(); {
	case endedOutOfOrder(status):
		return true, "its workflow ended out of order: " + status.String(), nil
	case status == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		return false, "", box.Errorf(box.ClassFailedPrecondition, "the workflow of workspace %s ended by a deletion, and its ledger has no tombstone: is %s the export store of its workers?", workspace, s.storeHint())
	}
	return false, "its workflow runs", nil
}

func (s *session) storeHint() string {
	cfg, err := s.Config()
	if err != nil {
		return "this"
	}
	return cfg.Exports
}

// Unwatched returns the workspaces that have an open ledger and no workflow. It
// is a look, bounded by ctx: what it did not come to is not among them, and a
// ledger that cannot be read counts as open.
func Unwatched(ctx context.Context, store *exports.Store, c client.Client) []string {
	all, _ := store.Workspaces(ctx) // an object of no workspace is for the rebuild to tell
	var out []string
	for _, workspace := range all {
		seen, err := c.DescribeWorkflowExecution(ctx, box.WorkflowID(workspace), "")
		gone := is[*serviceerror.NotFound](err) || err == nil && endedOutOfOrder(seen.GetWorkflowExecutionInfo().GetStatus())
		if !gone {
			continue
		}
		if closed, _, _ := store.Closed(ctx, workspace); !closed && ctx.Err() == nil {
			out = append(out, workspace)
		}
	}
	return out
}

func (p *page) rebuilds(a *Shared, f fleetRebuild) {
	if len(f.Workspaces) == 0 {
		p.linef("There is no ledger in %s.", f.Exports)
		return
	}
	rows := [][]string{{"WORKSPACE", "RESULT", "EPOCH", "WAS", "AS OF", "BECAUSE"}}
	for _, r := range f.Workspaces {
		epoch, at := "-", "-"
		if r.Epoch > 0 {
			epoch, at = fmt.Sprint(r.Epoch), a.moment(r.AsOf)
		}
		rows = append(rows, []string{r.Workspace, r.Result, epoch, orDash(string(r.State)), at, r.Text})
	}
	p.table(rows)
}
