package agentserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// longestRestore bounds a workspace's way into the box.
const longestRestore = 12 * time.Hour

// RestoreWorkspace puts a workspace into a box that has none yet, from the tar of
// its archive, whose SHA-256 is sum and whose length is size. It is there as a
// whole or not at all, and may be repeated: when it is there already the tar is
// not read. An error of the tar is returned as it is. Invalid when the
// box finds the archive damaged or hostile, FailedPrecondition when there is work
// in the box, Exhausted when there is no room. Unsupported where no boxd is in
// front, or one that is too old. It does not move the idle clock.
func (c *Client) RestoreWorkspace(ctx context.Context, sum string, tar io.Reader, size int64) (Restored, error) {
	path := "/api/boxd/workspace/" + sum
	out, err := c.restored(ctx, call{
		method: http.MethodGet, path: path, query: url.Values{"bytes": {strconv.FormatInt(size, 10)}}, bound: slowCall,
	}, sum)
	if box.ClassOf(err) != box.ClassNotFound {
		return out, err
	}
	from := &body{from: tar}
	out, err = c.restored(ctx, call{method: http.MethodPut, path: path, bound: longestRestore, raw: from, rawSize: size, rawKind: "application/x-tar"}, sum)
	if broken := from.stop(); err != nil && broken != nil {
		return Restored{}, broken
	}
	if box.ClassOf(err) == box.ClassNotFound {
		err = c.boxdOnly(err)
	}
	return out, err
}

func (c *Client) restored(ctx context.Context, what call, sum string) (Restored, error) {
	var out Restored
	if err := c.do(ctx, what, &out); err != nil {
		return Restored{}, err
	}
	if out.SHA256 != sum {
		return Restored{}, box.Errorf(box.ClassUnknown, "%s %s answered for another workspace", what.method, what.path)
	}
	for i, note := range out.Notes {
		out.Notes[i] = box.OneLine(note, 300)
	}
	return out, nil
}

// body is what is sent. It keeps its error, which says more than what it breaks,
// and can be taken back: a transport may go on reading after it has answered.
type body struct {
	mu   sync.Mutex
	from io.Reader
	err  error
	over bool
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return 0, io.ErrClosedPipe
	}
	n, err := b.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// stop lets nobody read from what is sent any more, and returns its error.
func (b *body) stop() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	return b.err
}
