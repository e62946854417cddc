package digitaloceantest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"
)

// ingress is the public URL of port 8000 of a session. It ends with the pause.
type ingress struct {
	id, url, host string
	created       time.Time
	polls         int  // answers that say PENDING
	own           *web // in loopback mode
}

// publish is the URL of a session, made by the first call [docs 13 Nov 2026].
func (c *call) publish() answer {
	s := c.s
	if s.opts.IngressOnAgentsOnly && c.prefix != agentsPrefix {
		return answer{status: http.StatusNotFound, body: errors.New("the resource you were accessing could not be found"), edge: true}
	}
	ses, ans := c.find()
	switch {
	case ses == nil:
		return ans
	case c.team.NoIngress:
		return refuse(http.StatusForbidden, "ingress is not enabled for this team")
	case s.noIngress || !ses.spec.openhands:
		return refuse(http.StatusNotImplemented, "this sandbox can't be published")
	case !ses.runs(c.now):
		return refuse(http.StatusConflict, "session is not running")
	}
	if ses.ingress == nil {
		in, err := s.newIngress(ses, c.now)
		if err != nil {
			return refuse(http.StatusInternalServerError, "%s", err.Error())
		}
		ses.ingress = in
	}
	state := "READY"
	if in := ses.ingress; in.polls > 0 {
		in.polls--
		state = "PENDING"
	}
	return ok(map[string]any{"ingress_url": map[string]any{
		"ingress_url_id": ses.ingress.id, "session_id": ses.id, "port": 8000, "url": ses.ingress.url,
		"state": "INGRESS_URL_STATE_" + state, "created_at": stamp(ses.ingress.created),
	}})
}

// newIngress makes a host that was never there before.
func (s *Server) newIngress(ses *session, now time.Time) (*ingress, error) {
	in := &ingress{id: s.newID("ingress"), created: now, polls: s.opts.IngressPolls}
	sum := sha256.Sum256([]byte(in.id))
	in.host = hex.EncodeToString(sum[:8]) + "." + ses.region + ingressSuffix
	in.url = "https://" + in.host
	s.hosts[in.host] = ses
	if !s.opts.Loopback {
		return in, nil
	}
	own, err := s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serveIngress(w, r, in.host) }))
	if err != nil {
		return nil, err
	}
	in.own, in.url = own, "http://"+own.addr
	return in, nil
}

// revoke ends the URL of a session. The lock is held.
func (ses *session) revoke(s *Server) {
	if ses.ingress == nil {
		return
	}
	delete(s.hosts, ses.ingress.host)
	if own := ses.ingress.own; own != nil {
		_ = own.server.Close()
	}
	ses.ingress = nil
}

// serveIngress passes a request on to what listens in a session. The token of
// the account opens it, and stays outside.
func (s *Server) serveIngress(w http.ResponseWriter, r *http.Request, host string) {
	s.mu.Lock()
	s.settle()
	c := &call{s: s, r: r, now: s.time()}
	rec := s.record(c, OpGuest)
	refuse := func(status int, text string) {
		rec.Status, rec.Error = status, text
		id := rec.ID
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-Id", id)
		w.WriteHeader(status)
		_, _ = w.Write(encode(map[string]any{"id": edgeID(status), "message": text}))
	}
	ses := s.hosts[host]
	if ses == nil {
		refuse(http.StatusNotFound, "no such host")
		return
	}
	rec.Session, rec.Region = ses.id, ses.region
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if c.team = s.teams[token]; c.team == nil {
		refuse(http.StatusUnauthorized, "Unable to authenticate you")
		return
	}
	rec.Team = c.team.Name
	if c.team != ses.team {
		refuse(http.StatusForbidden, "session belongs to another team")
		return
	}
	if ses.ingress.polls > 0 {
		refuse(http.StatusServiceUnavailable, "the URL is not ready")
		return
	}
	c.ids, c.region = []string{ses.id}, ses.region
	if fault := s.guestFault(c, ses, rec); fault != nil {
		fault.spoil(s, w, r, c, rec)
		return
	}
	ses.use(c.now, s.opts.NoActivity.Ingress)
	inside := ses.listener(s)
	if inside == nil {
		refuse(http.StatusBadGateway, "nothing listens on port 8000")
		return
	}
	rec.Performed = true
	s.mu.Unlock()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "guest"
			p.Out.Header.Del("Authorization")
			p.Out.Host = p.In.Host
		},
		Transport:     &http.Transport{DialContext: inside.dial, DisableKeepAlives: true},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // a body that a pause cut is no news
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			s.mu.Lock()
			rec.Status, rec.Error = http.StatusBadGateway, s.clean(err.Error())
			s.mu.Unlock()
			http.Error(w, "bad gateway", http.StatusBadGateway)
		},
		ModifyResponse: func(resp *http.Response) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			rec.Status = resp.StatusCode
			return nil
		},
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if ses.live() {
			ses.use(s.time(), s.opts.NoActivity.Ingress)
		}
	}()
	proxy.ServeHTTP(w, r)
}

// guestFault takes the fault of a request to an ingress URL, nil if the request
// goes on.
func (s *Server) guestFault(c *call, ses *session, rec *Request) *Fault {
	fault := s.nextFault(OpGuest, c)
	if fault == nil {
		return nil
	}
	c.fault, rec.Fault = fault, fault.name()
	if fault.First != nil {
		s.unlocked(func() { fault.First(s) })
		s.settle()
	}
	if fault.spoils() {
		return fault
	}
	if ses.ingress == nil { // what came first ended it
		return &Fault{Status: http.StatusNotFound}
	}
	return nil
}

// errClosed is what a dial to a closed port gives.
var errClosed = fmt.Errorf("port is closed: %w", net.ErrClosed)
