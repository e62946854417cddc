package agentserver

import (
	"context"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// quietExport is the longest silence inside a workspace's archive: git may have
// to look through a large repository before it says anything.
const quietExport = 15 * time.Minute

// Unsaved returns the work in the box that exists nowhere else. What could not be
// looked at is in it as unknown. ClassUnsupported when no boxd is in front or the
// box's system cannot do it. It does not move the idle clock.
func (c *Client) Unsaved(ctx context.Context) (box.Unsaved, error) {
	var answer box.Unsaved
	if err := c.do(ctx, call{method: http.MethodGet, path: "/api/workspace/unsaved", bound: slowCall}, &answer); err != nil {
		return box.Unsaved{}, c.boxdOnly(err)
	}
	if answer.Repositories == nil {
		return box.Unsaved{}, box.Errorf(box.ClassUnknown, "GET /api/workspace/unsaved names no repositories, not even none")
	}
	// Clean is what things are destroyed on, so it is not taken on trust.
	said := answer.Clean
	for i := range answer.Repositories {
		answer.Repositories[i].Judge()
	}
	if answer.Judge(); said != answer.Clean {
		return box.Unsaved{}, box.Errorf(box.ClassUnknown, "GET /api/workspace/unsaved contradicts itself: clean is %t, and what it lists says otherwise", said)
	}
	return answer, nil
}

// DownloadWorkspace opens the archive of the box's workspace. The caller closes
// it, from any goroutine, and must check it with package workspacetar: a 200
// alone proves nothing. Reading fails with ClassUnavailable when the body is cut
// off or silent for 15 minutes; the call may be repeated. ClassUnsupported when
// the box's system cannot do it. NotFound when no boxd is in front, or by a fault
// on the way: [CapabilityExport] tells the one from the other. It does not move
// the idle clock.
func (c *Client) DownloadWorkspace(ctx context.Context) (io.ReadCloser, error) {
	what := call{method: http.MethodGet, path: "/api/workspace/export", bound: slowCall}
	inner, cancel := context.WithCancelCause(ctx)
	alarm := time.AfterFunc(slowCall, func() { cancel(errBound) })
	response, err := c.send(inner, what)
	if err != nil {
		alarm.Stop()
		defer cancel(nil)
		return nil, c.outer(ctx, inner, what, err)
	}
	alarm.Reset(quietExport)
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || kind != archiveType {
		alarm.Stop()
		response.Body.Close()
		cancel(nil)
		return nil, box.Errorf(box.ClassUnknown, "%s %s answered %q instead of an archive", what.method, what.path, box.OneLine(response.Header.Get("Content-Type"), 60))
	}
	return &download{client: c, what: what, ctx: ctx, body: response.Body, quiet: quietExport, alarm: alarm, cancel: cancel}, nil
}

const archiveType = "application/zstd"
