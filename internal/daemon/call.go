package daemon

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/cli"
)

// create starts the workflow of a workspace. AlreadyExists: the id was used
// before, whatever became of it.
func create(ctx context.Context, c client.Client, spec box.Spec, row box.Capabilities) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	_, err := cli.Start(ctx, c, box.Input{Spec: spec, Capabilities: row})
	if _, used := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); used {
		return box.Errorf(box.ClassAlreadyExists, "workspace %s exists, or existed and stays closed", spec.Workspace)
	}
	if err != nil {
		return box.Errorf(box.ClassUnavailable, "start workspace %s: %w", spec.Workspace, err)
	}
	return nil
}

// query asks a workspace's workflow, which needs a worker.
func query[A any](ctx context.Context, c client.Client, workspace, name string) (A, error) {
	var answer A
	if err := cli.Query(ctx, c, workspace, name, &answer); err != nil {
		return answer, box.Errorf(box.ClassUnavailable, "ask %s of workspace %s: %w", name, workspace, err)
	}
	return answer, nil
}

// update sends one update and waits for its answer. A refusal keeps the class
// that the workflow gave it.
func update[A any](ctx context.Context, c client.Client, workspace, name string, request any) (A, error) {
	var answer A
	err := cli.Update(ctx, c, workspace, name, uuid.NewString(), request, &answer)
	if refused, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return answer, box.Errorf(box.Class(refused.Type()), "%s: %s", name, refused.Message())
	}
	if err != nil {
		return answer, box.Errorf(box.ClassUnknown, "%s: the outcome is unknown: %w", name, err)
	}
	return answer, nil
}
