package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/dynamicconfig"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/fault"
)

const (
	// askAgain is the pause between two looks at a server that is starting.
	askAgain = 50 * time.Millisecond
	// callWithin bounds one call: a starting service may swallow one.
	callWithin = 5 * time.Second
)

// reconcile waits until the namespace is usable, and brings its retention and
// its search attributes to what o wants.
func reconcile(ctx context.Context, o Options, address string, f *fault.Fault) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return box.Errorf(box.ClassInternal, "connect to the engine: %w", err)
	}
	defer func() { _ = conn.Close() }()
	r := &reconciler{
		opts: o, fault: f,
		workflows: workflowservice.NewWorkflowServiceClient(conn),
		operator:  operatorservice.NewOperatorServiceClient(conn),
	}
	if err := r.awaitHistory(ctx); err != nil {
		return err
	}
	if err := r.retention(ctx); err != nil {
		return err
	}
	return r.searchAttributes(ctx)
}

type reconciler struct {
	opts      Options
	fault     *fault.Fault
	workflows workflowservice.WorkflowServiceClient
	operator  operatorservice.OperatorServiceClient
}

// awaitHistory waits until a question about a workflow is answered, which
// takes every service but the workers.
func (r *reconciler) awaitHistory(ctx context.Context) error {
	return r.until(ctx, "wait for the engine", func(ctx context.Context) error {
		_, err := r.workflows.DescribeWorkflowExecution(ctx, &workflowservice.DescribeWorkflowExecutionRequest{
			Namespace: r.opts.Namespace,
			// No workflow has this id: "not found" is the answer that counts.
			Execution: &commonpb.WorkflowExecution{WorkflowId: "engine-ready-" + uuid.NewString()},
		})
		if status.Code(err) == codes.NotFound && !isNamespaceMissing(err) {
			return nil
		}
		return err
	})
}

func (r *reconciler) retention(ctx context.Context) error {
	var have time.Duration
	err := r.until(ctx, "read namespace "+r.opts.Namespace, func(ctx context.Context) error {
		d, err := r.workflows.DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: r.opts.Namespace})
		have = d.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
		return err
	})
	if err != nil || have == r.opts.Retention {
		return err
	}
	err = r.until(ctx, "set the retention of namespace "+r.opts.Namespace, func(ctx context.Context) error {
		_, err := r.workflows.UpdateNamespace(ctx, &workflowservice.UpdateNamespaceRequest{
			Namespace: r.opts.Namespace,
			Config:    &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(r.opts.Retention)},
		})
		return err
	})
	if err == nil {
		r.opts.Logger.Info("changed the retention", zap.Duration("from", have), zap.Duration("to", r.opts.Retention))
	}
	return err
}

func (r *reconciler) searchAttributes(ctx context.Context) error {
	have, err := r.list(ctx)
	if err != nil {
		return err
	}
	missing := map[string]enumspb.IndexedValueType{}
	for _, name := range slices.Sorted(maps.Keys(r.opts.SearchAttributes)) {
		want := r.opts.SearchAttributes[name]
		kind, there := have[name]
		switch {
		case !there:
			missing[name] = want
		case kind != want:
			return &box.Error{
				Class: box.ClassFailedPrecondition, Field: "search-attributes",
				Message: fmt.Sprintf("%s has the type %s in this data directory, and %s is wanted: "+
					"give the attribute another name, or use a new data directory", name, kind, want),
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	err = r.until(ctx, "add search attributes", func(ctx context.Context) error {
		_, err := r.operator.AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
			Namespace: r.opts.Namespace, SearchAttributes: missing,
		})
		return err
	})
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(missing))
	if err := r.awaitAttributes(ctx, names); err != nil {
		return err
	}
	r.opts.Logger.Info("added search attributes", zap.Strings("names", names))
	return nil
}

// awaitAttributes waits until added attributes count everywhere.
func (r *reconciler) awaitAttributes(ctx context.Context, names []string) error {
	query := strings.Join(names, " IS NULL AND ") + " IS NULL"
	err := r.until(ctx, "wait for search attributes", func(ctx context.Context) error {
		_, err := r.workflows.CountWorkflowExecutions(ctx, &workflowservice.CountWorkflowExecutionsRequest{
			Namespace: r.opts.Namespace, Query: query,
		})
		if status.Code(err) == codes.InvalidArgument {
			return errNotYet // the answer of a service that does not know the attribute yet
		}
		return err
	})
	if err != nil {
		return err
	}
	// The frontend knows them. The history service, which checks what running
	// workflows set, offers no way to ask, and reads the namespace this often.
	interval := dynamicconfig.NamespaceCacheRefreshInterval.Get(dynamicconfig.NewCollection(settings(r.opts), nil))()
	select {
	case <-time.After(interval + interval/4):
		return nil
	case <-r.fault.Done():
		return r.fault.Err()
	case <-ctx.Done():
		return ctxError(ctx.Err(), "wait for search attributes")
	}
}

func (r *reconciler) list(ctx context.Context) (map[string]enumspb.IndexedValueType, error) {
	var have map[string]enumspb.IndexedValueType
	err := r.until(ctx, "list search attributes", func(ctx context.Context) error {
		l, err := r.operator.ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: r.opts.Namespace})
		have = l.GetCustomAttributes()
		return err
	})
	return have, err
}

// errNotYet asks until for another try.
var errNotYet = errors.New("not yet")

// until repeats call while the server is not there yet. A refusal ends it, as
// does a failure of the engine.
func (r *reconciler) until(ctx context.Context, doing string, call func(context.Context) error) error {
	for {
		callCtx, cancel := context.WithTimeout(ctx, callWithin)
		err := call(callCtx)
		cancel()
		if err == nil {
			return nil
		}
		if refused(err) {
			return box.Errorf(box.ClassInvalid, "%s: %w", doing, serviceerror.FromStatus(status.Convert(err)))
		}
		select {
		case <-time.After(askAgain):
		case <-r.fault.Done():
			return r.fault.Err()
		case <-ctx.Done():
			return ctxError(ctx.Err(), "%s (the last answer was: %v)", doing, err)
		}
	}
}

func refused(err error) bool {
	return status.Code(err) == codes.InvalidArgument && !errors.Is(err, errNotYet)
}

// isNamespaceMissing tells the two kinds of "not found" apart: a starting
// service may not have read the namespaces yet.
func isNamespaceMissing(err error) bool {
	_, missing := errors.AsType[*serviceerror.NamespaceNotFound](serviceerror.FromStatus(status.Convert(err)))
	return missing
}
