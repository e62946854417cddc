package cli

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	workflowservicepb "go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"

	"github.com/openhands/boxkeeper/box"
)

// listed is one workspace of a list, as the engine's index holds it. The index
// is a moment behind.
type listed struct {
	Workspace      string    `json:"workspace"`
	State          box.State `json:"state"`
	Provider       string    `json:"provider"`
	Owner          string    `json:"owner,omitzero"`
	Epoch          int64     `json:"epoch"`
	NextActionAt   time.Time `json:"next_action_at,omitzero"`
	SuspendedSince time.Time `json:"suspended_since,omitzero"`
	// Blocked is what the account at its provider lacks.
	Blocked box.Block `json:"blocked,omitzero"`
	// Open says that a workflow watches it.
	Open bool `json:"open"`

	started time.Time
}

type listFlags struct {
	state, provider, owner, blocked string
	all                             bool
	limit                           int
}

const listPage = 200

func (a *Shared) listCommand() *cobra.Command {
	var f listFlags
	var ask asking
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List workspaces", Args: args("nothing", 0, 0),
		Long: "Reads the engine's index, which is a moment behind; it works with no worker up.",
	}
	c.Flags().StringVar(&f.state, "state", "", "only those in this state, such as running or suspended")
	c.Flags().StringVar(&f.provider, "provider", "", "only those of this provider instance")
	c.Flags().StringVar(&f.owner, "owner", "", "only those of this owner")
	c.Flags().StringVar(&f.blocked, "blocked", "", "only those that the account at the provider has no room (quota) or no money (balance) for")
	c.Flags().BoolVar(&f.all, "all", false, "closed ones too, as long as the engine remembers them")
	c.Flags().IntVar(&f.limit, "limit", 0, "at most so many; 0 for all")
	ask.bindTimeout(c, "1m")
	c.RunE = func(c *cobra.Command, _ []string) error {
		query, err := f.query()
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
		found, more, err := s.list(ctx, query, f.limit)
		if err != nil {
			return err
		}
		if more {
			note(c, "There are more; raise --limit to see them.")
		}
		return a.show(c, map[string]any{"workspaces": found, "more": more}, func(p *page) { a.listText(p, found) })
	}
	return c
}

// query builds the visibility query.
func (f listFlags) query() (string, error) {
	parts := []string{"WorkflowType = '" + box.WorkflowType + "'"}
	if f.all {
		parts = append(parts, "ExecutionStatus != 'ContinuedAsNew'")
	} else {
		parts = append(parts, "ExecutionStatus = 'Running'")
	}
	if f.limit < 0 {
		return "", box.Invalidf("limit", "%d is below zero; use 0 for all", f.limit)
	}
	for _, filter := range []struct{ field, attribute, value string }{
		{"state", box.SearchState, f.state},
		{"provider", box.SearchProvider, f.provider},
		{"owner", box.SearchOwner, f.owner},
		{"blocked", box.SearchBlocked, f.blocked},
	} {
		if filter.value == "" {
			continue
		}
		if strings.ContainsFunc(filter.value, func(r rune) bool { return r < '!' || r > '~' || strings.ContainsRune(`'"\`, r) }) {
			return "", box.Invalidf(filter.field, "%q holds a character that none can have", printable(filter.value))
		}
		if filter.field == "state" && !slices.Contains(states(), box.State(filter.value)) {
			return "", box.Invalidf("state", "%q is not a state; use one of %s", filter.value, stateNames())
		}
		if filter.field == "blocked" && box.Block(filter.value).Flag() == "" {
			return "", box.Invalidf("blocked", "%q is not one of %s, %s", filter.value, box.BlockQuota, box.BlockBalance)
		}
		parts = append(parts, filter.attribute+" = '"+filter.value+"'")
	}
	return strings.Join(parts, " AND "), nil
}

func states() []box.State {
	return []box.State{
		box.StateUnknown, box.StateCreating, box.StateCreateFailed, box.StateStarting, box.StateRunning, box.StateDraining,
		box.StateSuspending, box.StateSuspended, box.StateResuming, box.StateMaintenanceWake, box.StateAwaitingConfirm,
		box.StateUndoWindow, box.StateExporting, box.StateDeleting, box.StateDeleteBlocked, box.StateBoxArchived, box.StateLost,
		box.StateAbandoned,
	}
}

func stateNames() string {
	var out []string
	for _, s := range states() {
		out = append(out, string(s))
	}
	return strings.Join(out, ", ")
}

// list pages through the index. A workspace whose workflow was renewed between
// two pages is there once, as its newest run says.
func (s *session) list(ctx context.Context, query string, limit int) (out []listed, more bool, err error) {
	newest := map[string]listed{}
	var token []byte
	for {
		answer, err := s.client.ListWorkflow(ctx, &workflowservicepb.ListWorkflowExecutionsRequest{
			Namespace: s.namespace, Query: query, PageSize: listPage, NextPageToken: token,
		})
		if err != nil {
			return nil, false, s.engineError("list workspaces", err)
		}
		for _, run := range answer.GetExecutions() {
			one, ok := fromIndex(run)
			if have, seen := newest[one.Workspace]; ok && (!seen || one.started.After(have.started)) {
				newest[one.Workspace] = one
			}
		}
		token = answer.GetNextPageToken()
		if len(token) == 0 || limit > 0 && len(newest) > limit {
			break
		}
	}
	out = slices.SortedFunc(maps.Values(newest), func(a, b listed) int { return cmp.Compare(a.Workspace, b.Workspace) })
	if out == nil {
		out = []listed{}
	}
	if limit > 0 && len(out) > limit || len(token) > 0 {
		return out[:min(limit, len(out))], true, nil
	}
	return out, false, nil
}

func fromIndex(run *workflowpb.WorkflowExecutionInfo) (listed, bool) {
	workspace, ok := strings.CutPrefix(run.GetExecution().GetWorkflowId(), box.WorkflowID(""))
	fields := run.GetSearchAttributes().GetIndexedFields()
	one := listed{
		Workspace:      workspace,
		State:          box.State(attribute[string](fields, box.SearchState)),
		Provider:       attribute[string](fields, box.SearchProvider),
		Owner:          attribute[string](fields, box.SearchOwner),
		Epoch:          attribute[int64](fields, box.SearchEpoch),
		NextActionAt:   attribute[time.Time](fields, box.SearchNextActionAt),
		SuspendedSince: attribute[time.Time](fields, box.SearchSuspendedSince),
		Blocked:        box.Block(attribute[string](fields, box.SearchBlocked)),
		Open:           run.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING,
		started:        run.GetStartTime().AsTime(),
	}
	return one, ok
}

// attribute reads a search attribute; one that is absent or of another type is
// the zero value.
func attribute[T any](fields map[string]*commonpb.Payload, name string) T {
	var value T
	payload := fields[name]
	if payload == nil {
		return value
	}
	if err := converter.GetDefaultDataConverter().FromPayload(payload, &value); err != nil {
		var none T
		return none
	}
	return value
}

func (a *Shared) listText(p *page, found []listed) {
	if len(found) == 0 {
		p.linef("No workspaces.")
		return
	}
	rows := [][]string{{"WORKSPACE", "STATE", "PROVIDER", "OWNER", "EPOCH", "NEXT ACTION", "SUSPENDED SINCE"}}
	for _, one := range found {
		state := string(one.State)
		if !one.Open && one.State != box.StateBoxArchived {
			state += " (not watched)"
		}
		if flag := one.Blocked.Flag(); flag != "" {
			state += " (" + flag + ")"
		}
		rows = append(rows, []string{
			one.Workspace, state, one.Provider, orDash(one.Owner), stringOf(one.Epoch),
			orDash(a.moment(one.NextActionAt)), orDash(stamp(one.SuspendedSince)),
		})
	}
	p.table(rows)
}
