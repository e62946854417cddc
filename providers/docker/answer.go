package docker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
)

type heardKey struct{}

// heard is what the client does not tell of the answers of one call.
type heard struct {
	wait    atomic.Int64 // how long the last refusal asks to wait
	status  atomic.Int64
	foreign atomic.Bool // the last answer was a refusal that is not the engine's: it is JSON
	podman  atomic.Bool // an answer says that Podman gave it
	long    atomic.Bool // the last answer was not read to its end; the client drops why
}

// note keeps what an answer says.
func note(answer *http.Response) {
	h, ok := answer.Request.Context().Value(heardKey{}).(*heard)
	if !ok {
		return
	}
	if answer.Header.Get("Libpod-Api-Version") != "" {
		h.podman.Store(true)
	}
	refused := answer.StatusCode >= http.StatusBadRequest
	h.long.Store(false)
	h.status.Store(int64(answer.StatusCode))
	h.foreign.Store(refused && !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json"))
	if !refused {
		return
	}
	const most = 24 * time.Hour
	text := answer.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
		h.wait.Store(int64(min(time.Duration(seconds)*time.Second, most)))
	} else if at, err := http.ParseTime(text); err == nil && time.Until(at) > 0 {
		h.wait.Store(int64(min(time.Until(at), most)))
	}
}

// lumped is the class of a status that the client takes for a wrong request, as
// it does with every 4xx that it has no name for.
func (h *heard) lumped() (box.Class, bool) {
	if h == nil {
		return "", false
	}
	switch h.status.Load() {
	case http.StatusLocked:
		return box.ClassConflict, true
	case http.StatusPaymentRequired:
		return box.ClassExhausted, true
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return box.ClassUnavailable, true
	}
	return "", false
}

// fault wraps what the engine answered.
func fault(ctx context.Context, what string, err error) error {
	out := &box.Error{Class: classOf(ctx, err), Message: what, Err: quote(ctx, err)}
	if h, ok := ctx.Value(heardKey{}).(*heard); ok && out.Class.Retryable() {
		out.RetryAfter = time.Duration(h.wait.Swap(0))
	}
	return out
}

// quoted is an error of the client that is fit for histories and pages: one
// line, short, without a body, an address or a query. What it was is not
// reachable from it: whoever writes down a chain of causes would have the rest.
type quoted struct {
	text string
	over error // of the context, if that was it
}

func (q quoted) Error() string { return q.text }
func (q quoted) Unwrap() error { return q.over }

func quote(ctx context.Context, err error) error {
	if _, ours := errors.AsType[*box.Error](err); ours {
		return err
	}
	out := quoted{text: err.Error()}
	if at, ok := errors.AsType[*url.Error](err); ok {
		out.text = at.Err.Error()
	}
	for _, over := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, over) {
			out.over = over
		}
	}
	h, _ := ctx.Value(heardKey{}).(*heard)
	const said = "Error response from daemon: "
	if h != nil && h.foreign.Load() && strings.HasPrefix(out.text, said) {
		out.text = "status " + strconv.FormatInt(h.status.Load(), 10) + ", not in the words of an engine"
	}
	out.text, _, _ = strings.Cut(out.text, " for API route and version ") // an address follows
	const most = 300
	out.text = box.OneLine(out.text, most)
	return out
}

// classOf tells what an answer of the engine means. None means that a box is
// gone: that takes a list without it.
func classOf(ctx context.Context, err error) box.Class {
	h, _ := ctx.Value(heardKey{}).(*heard)
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e.Class
	}
	network, isNetwork := errors.AsType[net.Error](err)
	switch {
	case h != nil && h.long.Load():
		return box.ClassUnavailable
	case errors.Is(err, context.Canceled):
		return box.ClassCanceled
	case errors.Is(err, context.DeadlineExceeded), isNetwork && network.Timeout():
		return box.ClassDeadlineExceeded
	case client.IsErrConnectionFailed(err):
		return box.ClassUnavailable
	case errdefs.IsNotFound(err):
		return box.ClassUnavailable // what is not there changed meanwhile, or was not asked of an engine
	case errdefs.IsConflict(err), errdefs.IsAlreadyExists(err):
		return box.ClassConflict
	case errdefs.IsInvalidArgument(err), errdefs.IsOutOfRange(err):
		if class, ok := h.lumped(); ok {
			return class
		}
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

// absent reports whether the engine itself says that something is not there. A
// 404 of a proxy, or of a server without that path, is not in the words of an
// engine ("No such container", "no such volume", "Could not find the file"; engine
// 20.10 to 29), and proves nothing.
func absent(ctx context.Context, err error) bool {
	return says(ctx, err, "no such ", "could not find the file")
}

// noImage reports whether the engine passes on that no registry has an image, or
// none that it may pull.
func noImage(ctx context.Context, err error) bool {
	return absent(ctx, err) || says(ctx, err, "repository does not exist", "manifest unknown", "manifest for ")
}

// says reports whether a 404 has one of these words, which are in lower case.
func says(ctx context.Context, err error, words ...string) bool {
	h, ok := ctx.Value(heardKey{}).(*heard)
	if !errdefs.IsNotFound(err) || ok && h.foreign.Load() {
		return false
	}
	said := strings.ToLower(err.Error())
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(said, w) })
}

// How much of one answer is read. A stream of events, or of the progress of a
// pull, that is longer ends as a broken one does.
const (
	maxAnswer = 8 << 20
	maxStream = 64 << 20
)

var errTooLong = errors.New("the answer is too long, so it was not read to its end")

// measured is a connection that gives no more than is left.
type measured struct {
	net.Conn
	left  atomic.Int64
	heard atomic.Pointer[heard] // of the call that reads; nil for none
}

func (m *measured) Read(p []byte) (int, error) {
	left := m.left.Load()
	if left <= 0 {
		if h := m.heard.Load(); h != nil {
			h.long.Store(true)
		}
		return 0, errTooLong
	}
	n, err := m.Conn.Read(p[:min(int64(len(p)), left)])
	m.left.Add(-int64(n))
	return n, err
}

// bound makes a client dial connections that are measured. The client takes no
// other transport than its own, so what it reads is counted below that.
func bound(at *url.URL) client.Opt {
	const patience = 10 * time.Second
	dialer := net.Dialer{Timeout: patience}
	return client.WithDialContext(func(ctx context.Context, network, address string) (net.Conn, error) {
		if at.Scheme == "unix" {
			network, address = at.Scheme, at.Host
		}
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		out := &measured{Conn: conn}
		out.left.Store(maxAnswer)
		return out, nil
	})
}

// allow gives the connection of a request what its answer may have.
func allow(r *http.Request) error {
	most := int64(maxAnswer)
	if strings.HasSuffix(r.URL.Path, "/events") || strings.HasSuffix(r.URL.Path, "/images/create") {
		most = maxStream
	}
	h, _ := r.Context().Value(heardKey{}).(*heard)
	*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		conn := info.Conn
		for {
			over, ok := conn.(interface{ NetConn() net.Conn }) // TLS
			if !ok {
				break
			}
			conn = over.NetConn()
		}
		if m, ok := conn.(*measured); ok {
			m.heard.Store(h)
			m.left.Store(most)
		}
	}}))
	return nil
}
