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

// ExportWorkspace streams the archive of the box's workspace to w, and returns
// its manifest, checked against everything in it. With an error, what w got is
// not to be used: ClassUnknown when it is damaged or cut off, else as the call
// failed; it may be repeated. Memory does not depend on the size. ClassUnsupported
// when no boxd is in front or the box's system cannot do it. It does not move the
// idle clock.
func (c *Client) ExportWorkspace(ctx context.Context, w io.Writer) (box.Manifest, error) {
	what := call{method: http.MethodGet, path: "/api/workspace/export", bound: slowCall}
	inner, cancel := context.WithCancelCause(ctx)
	alarm := time.AfterFunc(slowCall, func() { cancel(errBound) })
	response, err := c.send(inner, what)
	if err != nil {
		alarm.Stop()
		defer cancel(nil)
		return box.Manifest{}, c.boxdOnly(c.outer(ctx, inner, what, err))
	}
	defer response.Body.Close()
	alarm.Reset(quietExport)
	body := &download{client: c, what: what, ctx: ctx, body: response.Body, quiet: quietExport, alarm: alarm, cancel: cancel}
	defer func() { _ = body.Close() }() // all that matters was read
	if kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || kind != archiveType {
		return box.Manifest{}, box.Errorf(box.ClassUnknown, "%s %s answered %q instead of an archive", what.method, what.path, clip(response.Header.Get("Content-Type"), 60))
	}
	return VerifyWorkspace(io.TeeReader(body, w))
}

const archiveType = "application/zstd"
