package docker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
)

// How long a call to the engine may take. A pull is bounded by its caller alone.
const (
	quick = 30 * time.Second
	// forced is what the engine gets beyond the time of an orderly end, to kill
	// what did not end, and for a copy of a program over a slow line.
	forced = 2 * time.Minute
)

// connection is the client whose version was agreed with the engine.
type connection struct {
	api    *client.Client
	agreed string // the engine's version then; empty, as api is, before the first answer
}

// session is one call's view of the engine: who it is and what time it has.
type session struct {
	api   *client.Client
	info  system.Info
	print string
	now   time.Time // the engine's clock
	acted bool      // a request that changes something was, or may have been, carried out
}

// open returns a client that agrees on a version at its first request.
func (d *Driver) open() (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if d.opts.Host != "" {
		opts = []client.Opt{client.WithTLSClientConfigFromEnv(), client.WithHost(d.opts.Host), client.WithAPIVersionFromEnv()}
	}
	return client.New(append(opts, client.WithHTTPResponseHook(noteWait))...)
}

// connect asks the engine who it is. The returned context hears how long the
// engine, or a proxy before it, asks to wait.
//
// The client agrees on a version once and keeps it, while the engine may be
// replaced: one of 29.0 to 29.2 refuses what 20.10 spoke [seen 29 Nov 2026]. So a
// changed version makes a new client. The version is agreed here and nowhere
// else: the client goes on with its newest one when that fails, and an old
// engine calls the next request wrong, which would be taken for our fault.
func (d *Driver) connect(ctx context.Context) (context.Context, *session, error) {
	if err := ended(ctx); err != nil {
		return ctx, nil, err
	}
	ctx = context.WithValue(ctx, waitKey{}, new(atomic.Int64))
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	api, err := d.agree(short)
	if err != nil {
		return ctx, nil, fault(ctx, "reach the Docker engine", err)
	}
	answer, err := api.Info(short, client.InfoOptions{})
	if err != nil {
		return ctx, nil, fault(ctx, "ask the Docker engine who it is", err)
	}
	s := &session{api: api, info: answer.Info}
	switch {
	case s.info.ID == "":
		return ctx, nil, box.Errorf(box.ClassUnknown, "the Docker engine does not say its id, so nothing that it lacks is proven gone")
	case s.info.OSType != "" && s.info.OSType != "linux":
		return ctx, nil, box.Errorf(box.ClassFailedPrecondition, "the Docker engine runs %s containers; boxes need Linux ones", s.info.OSType)
	}
	s.print = "docker/" + s.info.ID
	// The id of an engine of 20.10 lives outside of its data: with an empty or
	// unmounted data directory it says the same id, and every box would seem to be
	// gone. The network "none" cannot be removed and is made once for each data
	// directory [seen on 20.10.24, 30 Nov 2026].
	none, err := api.NetworkInspect(short, "none", client.NetworkInspectOptions{})
	switch {
	case err == nil && none.Network.ID != "":
		s.print += "@" + none.Network.ID[:min(12, len(none.Network.ID))]
	case err != nil && !errdefs.IsNotFound(err):
		return ctx, nil, fault(ctx, "ask the Docker engine for its data", err)
	}
	if s.now, err = time.Parse(time.RFC3339Nano, s.info.SystemTime); err != nil {
		s.now = time.Time{} // then no age is told
	}
	return ctx, s, nil
}

// agree returns a client that speaks what the engine speaks now. One that has
// not agreed on a version is kept nowhere: without a version in the answer, as
// when a proxy answers by itself, the client settles on its newest one for good.
func (d *Driver) agree(ctx context.Context) (*client.Client, error) {
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	if conn.agreed != "" {
		version, err := ping(ctx, conn.api)
		if err != nil {
			return nil, err
		}
		if version == conn.agreed {
			return conn.api, nil
		}
	}
	api, err := d.open()
	if err != nil {
		return nil, err
	}
	version, err := ping(ctx, api)
	if err != nil {
		_ = api.Close()
		return nil, err
	}
	d.mu.Lock()
	d.conn = connection{api: api, agreed: version}
	d.mu.Unlock()
	if conn.api != nil {
		_ = conn.api.Close() // its idle connections; calls under way go on
	}
	return api, nil
}

// ping returns the version that the engine speaks, and agrees on one with it if
// the client has not.
func ping(ctx context.Context, api *client.Client) (string, error) {
	pong, err := api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err == nil && pong.APIVersion == "" {
		err = box.Errorf(box.ClassUnavailable, "what answers does not say which version of the API it speaks; ask again, and see what stands before the engine")
	}
	return pong.APIVersion, err
}

type waitKey struct{}

// noteWait keeps what a refusal asks to wait.
func noteWait(answer *http.Response) {
	wait, ok := answer.Request.Context().Value(waitKey{}).(*atomic.Int64)
	if !ok || answer.StatusCode < http.StatusBadRequest {
		return
	}
	const most = 24 * time.Hour
	text := answer.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
		wait.Store(int64(min(time.Duration(seconds)*time.Second, most)))
	} else if at, err := http.ParseTime(text); err == nil && time.Until(at) > 0 {
		wait.Store(int64(min(time.Until(at), most)))
	}
}

// fault wraps what the engine answered.
func fault(ctx context.Context, what string, err error) error {
	out := &box.Error{Class: classOf(err), Message: what, Err: err}
	if wait, ok := ctx.Value(waitKey{}).(*atomic.Int64); ok && out.Class.Retryable() {
		out.RetryAfter = time.Duration(wait.Swap(0))
	}
	return out
}

// classOf tells what an answer of the engine means. None means that a box is
// gone: that takes a list without it.
func classOf(err error) box.Class {
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e.Class
	}
	network, isNetwork := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.Canceled):
		return box.ClassCanceled
	case errors.Is(err, context.DeadlineExceeded), isNetwork && network.Timeout():
		return box.ClassDeadlineExceeded
	case client.IsErrConnectionFailed(err):
		return box.ClassUnavailable
	case errdefs.IsNotFound(err):
		return box.ClassNotFound
	case errdefs.IsConflict(err), errdefs.IsAlreadyExists(err):
		return box.ClassConflict
	case errdefs.IsInvalidArgument(err), errdefs.IsOutOfRange(err):
		return box.ClassInvalid
	case errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
		return box.ClassUnauthorized
	case errdefs.IsResourceExhausted(err):
		return box.ClassExhausted
	case errdefs.IsFailedPrecondition(err):
		return box.ClassFailedPrecondition
	case errdefs.IsNotImplemented(err):
		return box.ClassUnsupported
	case errdefs.IsUnavailable(err), errdefs.IsInternal(err), isNetwork, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		// A 500 says too little to be more: it may pass.
		return box.ClassUnavailable
	}
	return box.ClassUnknown
}

// age is how long ago a time of the engine was, by its own clock.
func (s *session) age(since time.Time) box.Span {
	if since.IsZero() || s.now.IsZero() {
		return 0
	}
	return box.Span(max(0, s.now.Sub(since).Round(time.Millisecond)))
}

// still checks at the end of a call that the engine is the one of its beginning.
func (d *Driver) still(ctx context.Context, print string) error {
	_, now, err := d.connect(ctx)
	if err != nil {
		return err
	}
	if now.print != print {
		return box.Errorf(box.ClassUnknown, "the engine was %q and is %q now; look again", print, now.print)
	}
	return nil
}

func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return hostport
}

// instant reads a time of the engine; zero for none.
func instant(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() <= 1 {
		return time.Time{}
	}
	return at
}

// seconds is a timeout as the engine takes it.
func seconds(d time.Duration) *int {
	whole := int(d / time.Second)
	return &whole
}
