package agentserver

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Imported is the answer of PUT /api/boxd/history/{id}.
type Imported struct {
	ID     string `json:"id"`
	Events int    `json:"events"`
}

// longestImport bounds one conversation's way into the box.
const longestImport = 2 * time.Hour

// ImportHistory puts a conversation into the box, from the zip of its
// trajectory; size is the length of the body. It is there as a whole or not at
// all, and read-only: reads are served, and whatever would prompt it, or use its
// id again, answers FailedPrecondition. Conflict when it is in the box already:
// nothing was written. Invalid when the zip is not that conversation, Exhausted
// when there is no room for it. Unsupported where no boxd is in front, or one
// that is too old. It does not move the idle clock.
func (c *Client) ImportHistory(ctx context.Context, id string, body io.Reader, size int64) (Imported, error) {
	short, ok := hexID(id)
	if !ok {
		return Imported{}, box.Invalidf("conversation", "%q is not the id of a conversation", box.OneLine(id, 80))
	}
	var out Imported
	err := c.do(ctx, call{
		method: http.MethodPut, path: "/api/boxd/history/" + short, bound: longestImport,
		raw: body, rawSize: size, rawKind: "application/zip",
	}, &out)
	if box.ClassOf(err) == box.ClassNotFound {
		return Imported{}, c.boxdOnly(err)
	}
	if err == nil && (out.ID != short || out.Events < 0) {
		return Imported{}, box.Errorf(box.ClassUnknown, "PUT /api/boxd/history/%s answered for another conversation", short)
	}
	return out, err
}
