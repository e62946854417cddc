package docker

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
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
	switch {
	case d.opts.OwnTLS:
		opts = []client.Opt{client.WithHost(d.opts.Host), client.WithAPIVersionFromEnv()}
		if d.opts.TLS != nil {
			over := &http.Client{Transport: &http.Transport{TLSClientConfig: d.opts.TLS.Clone()}, CheckRedirect: client.CheckRedirect}
			opts = append([]client.Opt{client.WithHTTPClient(over)}, opts...)
		}
	case d.opts.Host != "":
		opts = []client.Opt{client.WithTLSClientConfigFromEnv(), client.WithHost(d.opts.Host), client.WithAPIVersionFromEnv()}
	}
	opts = append(opts, client.WithHTTPRequestHook(allow), client.WithHTTPResponseHook(note))
	api, err := client.New(opts...)
	if err != nil {
		return nil, err
	}
	at, err := client.ParseHostURL(api.DaemonHost())
	if err != nil || at.Scheme == "npipe" { // which is not spoken to by a dialer of ours
		return api, err
	}
	return client.New(append(opts, bound(at))...)
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
	if err := driver.Ended(ctx); err != nil {
		return ctx, nil, err
	}
	told := new(heard)
	ctx = context.WithValue(ctx, heardKey{}, told)
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	api, err := d.agree(short)
	if err != nil {
		return ctx, nil, fault(ctx, "reach the Docker engine", err)
	}
	if told.podman.Load() {
		// With each answer it gives itself a new id [4.3.1, 1 Dec 2026].
		return ctx, nil, box.Errorf(box.ClassFailedPrecondition, "what answers is Podman, whose Docker API has another id in each answer, so no box could be told to be on it; give the address of a Docker engine")
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
	case err == nil && none.Network.ID == "":
		return ctx, nil, box.Errorf(box.ClassUnknown, "the Docker engine does not say which data it has, so nothing that it lacks is proven gone")
	case err == nil:
		s.print += "@" + none.Network.ID[:min(12, len(none.Network.ID))]
	case !absent(ctx, err):
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
