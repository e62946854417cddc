package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
	workflowservicepb "go.temporal.io/api/workflowservice/v1"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workers"
)

// oneNamespace is what to do about workers of several installations.
const oneNamespace = "give them one installation secret, or a namespace each. Temporal remembers a worker that ended for some minutes"

// owners are the installations whose workers were seen.
type owners map[string]bool

// add takes those that the workers of a task queue tell; older ones tell none.
func (o owners) add(seen *workflowservicepb.DescribeTaskQueueResponse) {
	for _, poller := range seen.GetPollers() {
		if id, ok := workers.InstallationOf(poller.GetIdentity()); ok {
			o[id] = true
		}
	}
}

func (o owners) ids() []string { return slices.Sorted(maps.Keys(o)) }

// strangers says that workers of other installations serve the workflows, and what
// to do; empty when there are none, or when it cannot be seen. Every worker serves
// that queue. It takes 3 seconds at most: no start waits for it longer.
func (s *session) strangers(ctx context.Context, here string) string {
	ctx, cancel := context.WithTimeout(ctx, workerWithin)
	defer cancel()
	seen, err := s.client.DescribeTaskQueue(ctx, box.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW)
	if err != nil {
		return "" // who may not look can work all the same; what else is wrong the workers say
	}
	of := owners{}
	of.add(seen)
	delete(of, here)
	if len(of) == 0 {
		return ""
	}
	return fmt.Sprintf("this worker is of installation %s, and workers of %s serve namespace %s already: they take each other's work and do not find each other's boxes; %s", here, strings.Join(of.ids(), " and "), s.namespace, oneNamespace)
}
