package agentserver

import (
	"context"
	"net/http"

	"github.com/openhands/boxkeeper/box"
)

// Storage returns what the box's disk holds. ClassUnsupported when no boxd is
// in front. It does not move the idle clock.
func (c *Client) Storage(ctx context.Context) (box.StorageStatus, error) {
	var answer box.StorageStatus
	if err := c.do(ctx, call{method: http.MethodGet, path: "/api/storage", bound: slowCall}, &answer); err != nil {
		return box.StorageStatus{}, c.boxdOnly(err)
	}
	if answer.Disk.TotalBytes <= 0 || answer.Conversations == nil {
		return box.StorageStatus{}, box.Errorf(box.ClassUnknown, "GET /api/storage names no disk or no conversations")
	}
	return answer, nil
}

// Reclaim plans a pass (DryRun) or carries one out. Applying one plan id again
// answers the first report. ClassUnsupported when no boxd is in front or the
// box's system cannot do it, NotFound for a plan that is not known (any more):
// make a new one. It does not move the idle clock.
func (c *Client) Reclaim(ctx context.Context, request box.ReclaimRequest) (box.ReclaimReport, error) {
	var answer box.ReclaimReport
	if err := c.do(ctx, call{method: http.MethodPost, path: "/api/storage/reclaim", body: request, bound: slowCall}, &answer); err != nil {
		if request.PlanID != "" {
			return box.ReclaimReport{}, err
		}
		return box.ReclaimReport{}, c.boxdOnly(err)
	}
	switch {
	case answer.PlanID == "" || answer.PlannedBytes < 0 || answer.FreedBytes < 0 || answer.RemovedBytes < 0:
		return box.ReclaimReport{}, box.Errorf(box.ClassUnknown, "POST /api/storage/reclaim answered no plan id, or a negative size")
	case request.PlanID != "" && answer.PlanID != request.PlanID, answer.DryRun != request.DryRun:
		return box.ReclaimReport{}, box.Errorf(box.ClassUnknown, "POST /api/storage/reclaim answered for another request")
	}
	return answer, nil
}
