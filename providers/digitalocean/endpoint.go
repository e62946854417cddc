package digitalocean

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// agentPort is where the OpenHands template serves the agent-server.
const agentPort = "8000"

const (
	ingressReady   = "INGRESS_URL_STATE_READY"
	ingressPending = "INGRESS_URL_STATE_PENDING"
)

// Endpoint returns the public address of the agent-server, with the token that it
// asks for; where the service has none for this session, the address of a tunnel
// in this process. It is asked for anew each time, since a suspend revokes it, but
// not more often than PollEvery. Unavailable: not published yet.
func (d *Driver) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	if err := d.own(ctx, ref); err != nil {
		return driver.Endpoint{}, err
	}
	if known, ok := d.addresses.recent(ref, d.opts.PollEvery); ok {
		if known.at.URL == "" {
			return driver.Endpoint{}, notYet(ref.ID)
		}
		if known.tunnel {
			return d.tunnelTo(ctx, ref.ID)
		}
		return known.at, nil
	}
	s, seen, err := d.look(ctx, ref)
	switch {
	case err != nil:
		return driver.Endpoint{}, err
	case seen.Phase == box.PhaseGone:
		return driver.Endpoint{}, notThere(seen)
	case seen.Phase == box.PhaseStarting, seen.Phase == box.PhaseRunning && !pausable(s.Status), seen.Phase == box.PhaseUnknown:
		return driver.Endpoint{}, box.Errorf(box.ClassUnavailable, "session %s is %s and has no address yet; ask again", ref.ID, short(s.Status))
	case seen.Phase != box.PhaseRunning:
		return driver.Endpoint{}, box.Errorf(box.ClassFailedPrecondition, "session %s is %s; resume the box first", ref.ID, short(s.Status))
	}
	found, err := d.api.ingressOf(ctx, ref.ID)
	switch status := statusOf(err); {
	case status == http.StatusNotImplemented || status == http.StatusForbidden:
		// Never for this sandbox, or not for this team: the same token has just read
		// the session, so a refusal is about the feature. The tunnel needs neither.
		at, err := d.tunnelTo(ctx, ref.ID)
		if err == nil {
			d.addresses.keep(ref, address{at: at, tunnel: true})
		}
		return at, err
	case status == http.StatusConflict:
		_, seen, broken := d.look(ctx, ref)
		switch {
		case broken != nil:
			return driver.Endpoint{}, broken
		case seen.Phase == box.PhaseGone:
			return driver.Endpoint{}, notThere(seen)
		case seen.Phase == box.PhaseSuspended || seen.Phase == box.PhaseFailed:
			return driver.Endpoint{}, box.Errorf(box.ClassFailedPrecondition, "%w; resume the box first", err)
		}
		return driver.Endpoint{}, err
	case status == http.StatusNotFound:
		return driver.Endpoint{}, box.Errorf(box.ClassUnavailable, "%w; the session was there a moment ago, so look again", err)
	case err != nil:
		return driver.Endpoint{}, err
	}
	if found.State != ingressReady {
		if found.State != ingressPending {
			d.opts.Logger.WarnContext(ctx, "the ingress of a session is in a state that is not known", "session", ref.ID, "state", d.api.clean(found.State, nil))
		}
		d.addresses.keep(ref, address{})
		return driver.Endpoint{}, notYet(ref.ID)
	}
	if err := d.trusted(found.URL); err != nil {
		return driver.Endpoint{}, err
	}
	at := driver.Endpoint{
		URL:    strings.TrimSuffix(found.URL, "/"),
		Header: map[string]box.Secret{"Authorization": "Bearer " + d.opts.Token},
	}
	d.addresses.keep(ref, address{at: at})
	return at, nil
}

// unreachable is for a session that was suspended or deleted: its address, and the
// tunnel to it, end.
func (d *Driver) unreachable(id string) {
	d.addresses.forget(id)
	d.hangUpAll(id)
}

func notYet(id string) error {
	return box.Errorf(box.ClassUnavailable, "the address of session %s is not published yet; ask again", id)
}

// trusted refuses an address that must not get the token: it can do everything
// that the team can. Only a service for tests is reached without TLS.
func (d *Driver) trusted(text string) error {
	const what = "the ingress of the session"
	at, err := url.Parse(text)
	if err != nil || at.Host == "" || at.User != nil {
		return box.Errorf(box.ClassUnknown, "%s is no address; look again", what)
	}
	if d.opts.BaseURL != "" {
		return nil
	}
	const domain = ".sandbox.ondigitalocean.com" // [docs 13 Nov 2026]
	if at.Scheme != "https" || !strings.HasSuffix(strings.ToLower(at.Hostname()), domain) || (at.Port() != "" && at.Port() != "443") {
		return box.Errorf(box.ClassUnknown, "%s is not below https://*%s, so the token is not sent there; tell us if DigitalOcean has changed it", what, domain)
	}
	return nil
}

// addresses are the answers of the last seconds: whoever waits for a box asks
// several times a second, and a token has 250 requests a minute.
type addresses struct {
	mu    sync.Mutex
	known map[box.Ref]address
}

type address struct {
	at     driver.Endpoint // without a URL: not published yet
	tunnel bool
	when   time.Time
}

func (a *addresses) recent(ref box.Ref, within time.Duration) (address, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ref.Provider = ""
	known, ok := a.known[ref]
	for r, old := range a.known {
		if time.Since(old.when) >= within {
			delete(a.known, r)
		}
	}
	return known, ok && time.Since(known.when) < within
}

func (a *addresses) keep(ref box.Ref, found address) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[box.Ref]address{}
	}
	ref.Provider = ""
	found.when = time.Now()
	a.known[ref] = found
}

// forget is for when the address may not be right any more.
func (a *addresses) forget(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref := range a.known {
		if ref.ID == id {
			delete(a.known, ref)
		}
	}
}
