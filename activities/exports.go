package activities

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/openhands/boxkeeper/exports"
)

// Exports are the activities of the export store itself, of no provider.
type Exports struct {
	Store *exports.Store
	// Notify says who listens; nil for nobody.
	Notify Notifier
}

// SweepInput is what Sweep needs.
type SweepInput struct {
	// At is the engine's time: a worker whose clock runs ahead deletes nothing
	// before its time.
	At time.Time `json:"at"`
}

// SweepReport counts what a pass deleted.
type SweepReport struct {
	Workspaces  int   `json:"workspaces"` // whose exports went
	Exports     int   `json:"exports"`
	Objects     int   `json:"objects"` // beside the manifests
	StoredBytes int64 `json:"stored_bytes"`
	// Failed are workspaces that the next pass tries again, up to 20 of them by
	// name.
	Failed      int      `json:"failed,omitzero"`
	FailedNames []string `json:"failed_names,omitempty"`
}

// Sweep deletes the exports whose life is over. It may be repeated, also while
// another one runs.
func (e *Exports) Sweep(ctx context.Context, in SweepInput) (SweepReport, error) {
	log := activity.GetLogger(ctx)
	ctx, stop := beat(ctx)
	defer stop()
	var report SweepReport
	err := e.Store.Sweep(ctx, in.At, true, func(one exports.Swept) {
		switch one.Result {
		case exports.SweepDeleted:
			report.Workspaces++
			report.Exports += len(one.Exports)
			report.Objects += one.Objects
			report.StoredBytes += one.StoredBytes
			log.Info("exports were deleted: their time is over", "workspace", one.Workspace, "exports", len(one.Exports), "because", one.Life.Reason)
		case exports.SweepFailed:
			const most = 20
			if report.Failed++; report.Failed <= most {
				report.FailedNames = append(report.FailedNames, one.Workspace)
			}
			log.Warn("the exports of a workspace were not swept", "workspace", one.Workspace, "error", one.Error)
		case exports.SweepKept:
			report.Objects += one.Unneeded
			report.StoredBytes += one.UnneededBytes
		case exports.SweepDue:
		}
	})
	if err != nil {
		return report, translate(ctx, err, nil)
	}
	return report, nil
}
