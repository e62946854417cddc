package cli

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/converter"

	"github.com/openhands/boxkeeper/box"
)

// creation is the answer of create.
type creation struct {
	Workspace  string `json:"workspace"`
	WorkflowID string `json:"workflow_id"`
	RunID      string `json:"run_id,omitzero"`
	// Existed says that a workspace with the same spec was there already.
	Existed bool            `json:"existed"`
	DryRun  bool            `json:"dry_run,omitzero"`
	Plan    box.Arrangement `json:"plan"`
	// Status is there with --wait.
	Status *box.Status `json:"status,omitzero"`
}

func (a *Shared) createCommand() *cobra.Command {
	var (
		spec     specFlags
		ask      asking
		dryRun   bool
		wait     bool
		unserved bool
	)
	c := &cobra.Command{
		Use: "create WORKSPACE", Short: "Start a workspace and its first box", Args: args("a workspace id", 0, 1),
		Long: "Starts the workflow that owns the workspace. Repeating it with the same spec is safe: it answers that the workspace exists. " +
			"An id that was closed is refused for ever. A provider that no worker serves and that this machine's configuration does not know, or has no credentials for, is taken for a mistake: " +
			"nothing is started (exit code 5), and the id stays free.",
		Example: "  boxkeeper box create mine --owner ann --idle 30m --wait\n  boxkeeper box create mine --secret LLM_API_KEY=env:LLM_API_KEY --paused-ttl 14d --dry-run",
	}
	spec.bind(c)
	ask.bindTimeout(c, "5m")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show who would watch what, and start nothing")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the box is running")
	c.Flags().BoolVar(&unserved, "unserved", false, "start it also when no worker serves the provider and this machine does not know it, or has no credentials for it; it is created once one does")
	c.RunE = func(c *cobra.Command, given []string) error {
		workspace := ""
		if len(given) == 1 {
			workspace = given[0]
		} else if spec.file == "" {
			return box.Invalidf("workspace", "give the id of the new workspace")
		}
		built, err := spec.build(c, workspace)
		if err != nil {
			return err
		}
		row, err := a.capabilities(built.Provider)
		if err != nil {
			return err
		}
		arranged, err := plan(built.Policy, row)
		if err != nil {
			return err
		}
		out := creation{Workspace: built.Workspace, WorkflowID: box.WorkflowID(built.Workspace), DryRun: dryRun, Plan: arranged}
		if dryRun {
			return a.show(c, out, func(p *page) { p.creation(out) })
		}
		s, err := a.connect(c)
		if err != nil {
			return err
		}
		defer s.close()
		ctx, cancel := ask.bound(c.Context())
		defer cancel()
		if !unserved {
			if err := s.needServed(ctx, built, row, ", or add --unserved to start the workspace all the same"); err != nil {
				return err
			}
		}
		if err := s.start(ctx, box.Input{Spec: built, Capabilities: row}, &out); err != nil {
			return err
		}
		if err := s.awaited(ctx, c, built, wait); err != nil {
			return err
		}
		if !wait {
			return a.show(c, out, func(p *page) { p.creation(out) })
		}
		status, err := s.wait(ctx, built.Workspace, runningGoal(), ask.timeout)
		if err != nil {
			return err
		}
		out.Status = &status
		return a.show(c, out, func(p *page) { p.creation(out) })
	}
	return c
}

// needServed fails with Unavailable when nobody serves the provider and this
// machine does not know it, or knows it to be off, unless the workspace is there
// already: an id must not be used up by a misspelt name. An instance that this
// machine could serve is one whose worker is only down.
func (s *session) needServed(ctx context.Context, spec box.Spec, row box.Capabilities, orElse string) error {
	why, next := "this machine's configuration has no instance of that name", "start a worker that serves it"
	if row.Driver != "" {
		off, err := s.off(spec.Provider)
		if off == "" || err != nil {
			return err
		}
		why, next = "it is off here: "+off, "give a worker its credentials and start it"
	}
	err := s.needPoller(ctx, box.ActivityQueue(spec.Provider), enumspb.TASK_QUEUE_TYPE_ACTIVITY)
	if box.ClassOf(err) != box.ClassUnavailable {
		return err
	}
	if _, seen := s.client.DescribeWorkflowExecution(ctx, box.WorkflowID(spec.Workspace), ""); seen == nil {
		return nil // nothing new will be started
	}
	return box.Errorf(box.ClassUnavailable, "provider: no worker at %s serves %q (task queue %s), and %s; nothing was started and the id %s is still free; name another with --provider, %s%s",
		s.address, spec.Provider, box.ActivityQueue(spec.Provider), why, spec.Workspace, next, orElse)
}

// awaited says what the new workspace waits for when a worker is missing. With
// wait it would never be reached, which is an error.
func (s *session) awaited(ctx context.Context, c *cobra.Command, spec box.Spec, wait bool) error {
	queue := box.TaskQueue
	err := s.needWorker(ctx)
	if err == nil {
		queue = box.ActivityQueue(spec.Provider)
		err = s.needPoller(ctx, queue, enumspb.TASK_QUEUE_TYPE_ACTIVITY)
	}
	if box.ClassOf(err) != box.ClassUnavailable {
		return nil // the start was taken; who may not look finds out by asking
	}
	const text = "workspace %s is recorded and begins when a worker is up: no worker serves the task queue %s now; start one with \"%s worker\""
	if wait {
		return box.Errorf(box.ClassUnavailable, text, spec.Workspace, queue, s.root.Name())
	}
	note(c, "Note: "+text, spec.Workspace, queue, s.root.Name())
	return nil
}

// start starts the workflow, or finds the one with the same spec.
func (s *session) start(ctx context.Context, in box.Input, out *creation) error {
	spec := in.Spec
	run, err := Start(ctx, s.client, in)
	switch {
	case err == nil:
		out.RunID = run
		return nil
	case is[*serviceerror.WorkflowExecutionAlreadyStarted](err):
		return s.existing(ctx, spec, out)
	case definite(err), is[*serviceerror.NotFound](err):
		return s.engineError("start workspace "+spec.Workspace, err)
	}
	return &unknownOutcome{what: "the start of workspace " + spec.Workspace, repeat: s.repeat(""), err: err}
}

// existing compares the workspace that is there with the one asked for.
func (s *session) existing(ctx context.Context, spec box.Spec, out *creation) error {
	seen, err := s.client.DescribeWorkflowExecution(ctx, out.WorkflowID, "")
	if err != nil {
		return s.engineError("look at workspace "+spec.Workspace, err)
	}
	info := seen.GetWorkflowExecutionInfo()
	if info.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return closedError(s.root.Name(), spec.Workspace, info)
	}
	out.Existed, out.RunID = true, info.GetExecution().GetRunId()
	events := s.client.GetWorkflowHistory(ctx, out.WorkflowID, out.RunID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	if !events.HasNext() {
		return box.Errorf(box.ClassUnknown, "workspace %s exists, and what it was created with cannot be read; look at it with show", spec.Workspace)
	}
	first, err := events.Next()
	if err != nil {
		return s.engineError("read what workspace "+spec.Workspace+" was created with", err)
	}
	there, err := specOf(first.GetWorkflowExecutionStartedEventAttributes().GetInput())
	if err != nil {
		return box.Errorf(box.ClassUnknown, "workspace %s exists, and what it was created with cannot be read; look at it with show: %w", spec.Workspace, err)
	}
	if differ := differences(there, spec); len(differ) > 0 {
		return box.Errorf(box.ClassAlreadyExists, "workspace %s exists with another %s; use another id, or change its policy with \"%s box policy\"", spec.Workspace, strings.Join(differ, ", "), s.root.Name())
	}
	return nil
}

// specOf reads the spec that a run was started with; one that continued as new
// carries it along.
func specOf(payloads *commonpb.Payloads) (box.Spec, error) {
	var in box.Input
	if len(payloads.GetPayloads()) != 1 {
		return in.Spec, errors.New("its input has another form")
	}
	if err := converter.GetDefaultDataConverter().FromPayloads(payloads, &in); err != nil {
		return in.Spec, err
	}
	if in.Carried != nil {
		return in.Carried.Spec, nil
	}
	return in.Spec, nil
}

// differences names the fields of two specs that differ, without values.
func differences(a, b box.Spec) []string {
	var fields [2]map[string]json.RawMessage
	for i, spec := range []box.Spec{a, b} {
		// A field that was left out and one that was set to its default mean the
		// same.
		spec.Policy = spec.Policy.Effective()
		data, err := json.Marshal(spec)
		if err != nil || json.Unmarshal(data, &fields[i]) != nil {
			return []string{"spec"}
		}
	}
	var out []string
	for i := range fields {
		for name, value := range fields[i] {
			if string(value) != string(fields[1-i][name]) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (p *page) creation(out creation) {
	switch {
	case out.DryRun:
		p.linef("Nothing was started. Workspace %s would be watched like this:", out.Workspace)
	case out.Status != nil:
		p.linef("Workspace %s is %s.", out.Workspace, out.Status.State)
	case out.Existed:
		p.linef("Workspace %s exists already, with the same spec.", out.Workspace)
	default:
		p.linef("Workspace %s is on its way.", out.Workspace)
	}
	p.WriteByte('\n')
	p.plan(out.Plan)
}

// plan says who watches what, and what no one does.
func (p *page) plan(plan box.Arrangement) {
	rows := [][]string{{"WATCH", "BY", "AFTER", "ACTION"}}
	for _, w := range plan.Watches {
		rows = append(rows, []string{w.Name, w.By, w.After.String(), w.Action})
	}
	p.table(rows)
	p.risks(plan.Risks)
}

func (p *page) risks(risks []string) {
	for _, risk := range risks {
		p.linef("Risk: %s.", strings.TrimSuffix(printable(risk), "."))
	}
}
