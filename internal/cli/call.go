package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/openhands/boxkeeper/box"
)

// asking holds the flags of a command that sends a request.
type asking struct {
	requestID string
	by        string
	timeout   box.Duration
}

// bind adds the flags; the request id is left out for signals, which are safe
// to repeat as they are.
func (f *asking) bind(c *cobra.Command, within string) {
	f.bindSignal(c, within)
	c.Flags().StringVar(&f.requestID, "request-id", "", "id of the request; the same id gets the same answer and does nothing twice (default random)")
}

func (f *asking) bindSignal(c *cobra.Command, within string) {
	c.Flags().StringVar(&f.by, "by", "", "opaque id of who asks, shown by why")
	f.bindTimeout(c, within)
}

func (f *asking) bindTimeout(c *cobra.Command, within string) {
	f.timeout, _ = box.ParseDuration("timeout", within) // a constant
	c.Flags().Var(durationFlag{"timeout", &f.timeout}, "timeout", "how long to wait for the answer, and with --wait for the state")
}

func (f *asking) request() box.Request {
	if f.requestID == "" {
		f.requestID = "cli-" + randomID()
	}
	return box.Request{ID: f.requestID, By: f.by}
}

// bound limits ctx to the time-out.
func (f *asking) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.timeout.IsNever() {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, f.timeout.Std())
}

func randomID() string {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails; documented
	return hex.EncodeToString(id)
}

// durationFlag reads a duration the strict way; its errors name the field.
type durationFlag struct {
	field string
	to    *box.Duration
}

func (f durationFlag) Type() string { return "duration" }

func (f durationFlag) String() string {
	if f.to == nil || *f.to == 0 {
		return ""
	}
	return f.to.String()
}

func (f durationFlag) Set(text string) error {
	d, err := box.ParseDuration(f.field, text)
	if err != nil {
		return err
	}
	*f.to = d
	return nil
}

// update sends an update and waits for its answer. Before it is sent a worker
// must be there; once it is sent, no answer means an unknown outcome.
func update[A any](ctx context.Context, s *session, workspace, name string, req box.Request, arg any) (A, error) {
	var answer A
	if err := box.CheckRequest(req); err != nil {
		return answer, err
	}
	if err := s.needWorker(ctx); err != nil {
		return answer, err
	}
	if err := Update(ctx, s.client, workspace, name, req.ID, arg, &answer); err != nil {
		return answer, s.refusal(ctx, workspace, name, s.repeat(req.ID), req.ID, err)
	}
	return answer, nil
}

// refusal turns the error of a request into what a person can act on.
func (s *session) refusal(ctx context.Context, workspace, name, repeat, requestID string, err error) error {
	if e, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return fromWorker(e)
	}
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return s.absent(ctx, workspace)
	}
	if definite(err) {
		return s.engineError("send "+name, err)
	}
	return &unknownOutcome{what: name, repeat: repeat, id: requestID, err: err}
}

// fromWorker is an error that a worker answered: its type is the class, its
// message the sentence.
func fromWorker(e *temporal.ApplicationError) error {
	class := box.Class(e.Type())
	known := []box.Class{
		box.ClassNotFound, box.ClassAlreadyExists, box.ClassInvalid, box.ClassFailedPrecondition, box.ClassConflict,
		box.ClassUnauthorized, box.ClassExhausted, box.ClassUnavailable, box.ClassUnsupported, box.ClassCanceled,
		box.ClassDeadlineExceeded, box.ClassInternal,
	}
	if !slices.Contains(known, class) {
		class = box.ClassUnknown
	}
	return box.Errorf(class, "%s", inCommands(e.Message()))
}

// definite reports an answer that proves that nothing was done.
func definite(err error) bool {
	switch {
	case is[*serviceerror.NamespaceNotFound](err), is[*serviceerror.InvalidArgument](err),
		is[*serviceerror.PermissionDenied](err), is[*serviceerror.ResourceExhausted](err),
		is[*serviceerror.FailedPrecondition](err), is[*serviceerror.Unimplemented](err):
		return true
	}
	return false
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// absent tells a workspace that never was from one that is closed.
func (s *session) absent(ctx context.Context, workspace string) error {
	seen, err := s.client.DescribeWorkflowExecution(ctx, box.WorkflowID(workspace), "")
	if err != nil && !is[*serviceerror.NotFound](err) {
		return s.engineError("look for workspace "+workspace, err)
	}
	if err == nil {
		info := seen.GetWorkflowExecutionInfo()
		if info.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			return closedError(s.root.Name(), workspace, info)
		}
		return box.Errorf(box.ClassConflict, "workspace %s was changing hands; try again", workspace)
	}
	return box.Errorf(box.ClassNotFound, "there is no workspace %s in namespace %q at %s; \"%s box list --all\" lists them, and if it was deleted long ago \"%s box history %s\" reads what was kept",
		workspace, s.namespace, s.address, s.root.Name(), s.root.Name(), workspace)
}

// keyword is a search attribute of a workflow, empty where it is not there.
func keyword(info *workflowpb.WorkflowExecutionInfo, name string) string {
	var text string
	if field := info.GetSearchAttributes().GetIndexedFields()[name]; field != nil {
		_ = converter.GetDefaultDataConverter().FromPayload(field, &text) // as if it were not there
	}
	return text
}

func closedError(program, workspace string, info *workflowpb.WorkflowExecutionInfo) error {
	state := keyword(info, box.SearchState) // without it the general text is right
	status := info.GetStatus()
	switch status { //nolint:exhaustive // the rest ended out of order
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		if state == string(box.StateAbandoned) {
			return box.Errorf(box.ClassFailedPrecondition, "workspace %s was abandoned and its id is never used again: if it has a box, that may still exist and cost money, so look at the provider; \"%s box why %s\" says who gave it up, and what is known", workspace, program, workspace)
		}
		return box.Errorf(box.ClassFailedPrecondition, "workspace %s is closed for ever: its box is gone and its id is never used again; read what was kept with \"%s box history %s\"", workspace, program, workspace)
	}
	return &unwatched{box.Errorf(box.ClassFailedPrecondition, "the workflow of workspace %s ended out of order (%s), so nobody watches its box, which may still exist; bring it back with \"%s fleet rebuild %s\"", workspace, status, program, workspace)}
}

// status asks the workflow how the workspace is.
func (s *session) status(ctx context.Context, workspace string) (box.Status, error) {
	var out box.Status
	return out, s.query(ctx, workspace, box.QueryStatus, &out)
}

func (s *session) query(ctx context.Context, workspace, name string, to any) error {
	if err := s.needWorker(ctx); err != nil {
		return err
	}
	err := Query(ctx, s.client, workspace, name, to)
	switch {
	case err == nil:
		return nil
	case is[*serviceerror.NotFound](err):
		return s.absent(ctx, workspace)
	}
	if code := box.ClassOf(s.engineError("", err)); code == box.ClassDeadlineExceeded {
		return box.Errorf(box.ClassUnavailable, "no worker answered for workspace %s in time; look whether one is up with \"%s check\"", workspace, s.root.Name())
	}
	return s.engineError("ask for the "+name+" of workspace "+workspace, err)
}

// signal sends a signal, which the engine keeps also with no worker up.
func (s *session) signal(ctx context.Context, workspace, name string, arg any) error {
	err := s.client.SignalWorkflow(ctx, box.WorkflowID(workspace), "", name, arg)
	if err == nil {
		return nil
	}
	return s.refusal(ctx, workspace, name, s.repeat(""), "", err)
}

// repeat returns the command line that repeats this request safely.
func (s *session) repeat(requestID string) string {
	words := slices.Clone(s.env.Args)
	given := slices.ContainsFunc(words, func(w string) bool { return w == "--request-id" || strings.HasPrefix(w, "--request-id=") })
	if requestID != "" && !given {
		at := len(words)
		if i := slices.Index(words, "--"); i >= 0 {
			at = i
		}
		words = slices.Insert(words, at, "--request-id="+requestID)
	}
	return shell(append([]string{s.root.Name()}, words...))
}

// command returns a command line about a workspace, for the same place as this
// one. An id that begins with a dash would be read as a flag where it stands.
func (s *session) command(verb, workspace string, flags ...string) string {
	line := []string{s.root.Name(), "box", verb}
	dashed := strings.HasPrefix(workspace, "-")
	if !dashed {
		line = append(line, workspace)
	}
	line = append(line, flags...)
	for _, name := range []string{"config", "data", "address", "namespace", "profile"} {
		if f := s.root.PersistentFlags().Lookup(name); f != nil && f.Changed {
			line = append(line, "--"+name, f.Value.String())
		}
	}
	if dashed {
		line = append(line, "--", workspace)
	}
	return shell(line)
}

// shell writes words as a shell reads them.
func shell(words []string) string {
	out := make([]string, 0, len(words))
	for _, w := range words {
		if w == "" || strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:=@,+") != "" {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}
