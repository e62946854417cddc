package digitaloceantest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bytes of a body: what creates a session, and a manifest
// [specification of July 2026].
const (
	maxJSON = 16 << 10
	maxYAML = 1 << 20
)

// call is one request, while the lock is held.
type call struct {
	s      *Server
	r      *http.Request
	team   *team
	region string
	prefix string
	ids    []string // of the path, in order
	body   []byte
	now    time.Time
	behind func(change) bool // what a stale list sees; nil for everything
	fault  *Fault
}

// answer is what an operation says.
type answer struct {
	status int
	header http.Header
	body   any    // sent as JSON, nothing if nil
	raw    []byte // sent as it is
	edge   bool   // an error that the edge tells, in its own envelope

	until time.Time // then is asked once the clock has come here
	then  func() answer
	take  func(http.ResponseWriter, *http.Request) // writes by itself, without the lock
}

func ok(body any) answer { return answer{status: http.StatusOK, body: body} }
func done() answer       { return answer{status: http.StatusNoContent} }
func refuse(status int, f string, a ...any) answer {
	return answer{status: status, body: fmt.Errorf(f, a...)}
}

// serveAPI is one API request, with its faults.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, region string) {
	body, tooLong, err := readBody(r)
	if err != nil {
		return // the client went away
	}
	rt, prefix, ids, status := find(r)
	s.mu.Lock()
	if s.opts.Tick > 0 {
		s.tick()
	}
	s.settle()
	c := &call{s: s, r: r, region: region, prefix: prefix, ids: ids, body: body, now: s.time()}
	rec := s.record(c, rt.op)
	early, refused := c.admit(rt, status, tooLong)
	if refused {
		s.send(w, r, c, rec, early)
		return
	}
	rec.Team = c.team.Name
	if c.fault = s.nextFault(rt.op, c); c.fault != nil {
		rec.Fault = c.fault.name()
		if c.fault.First != nil {
			s.unlocked(func() { c.fault.First(s) })
			s.settle()
			c.now = s.time()
		}
		if c.fault.spoils() && !c.fault.After {
			s.lateEffect(c, rt, rec)
			c.fault.spoil(s, w, r, c, rec)
			return
		}
		c.behind = c.fault.behind
	}
	rec.Performed = true
	ans := rt.do(c)
	if c.fault != nil && c.fault.Then != nil {
		s.unlocked(func() { c.fault.Then(s) })
	}
	if c.fault != nil && c.fault.spoils() {
		c.fault.spoil(s, w, r, c, rec)
		return
	}
	s.send(w, r, c, rec, ans)
}

// admit checks everything that comes before the operation itself.
func (c *call) admit(rt route, status int, tooLong bool) (answer, bool) {
	token, bearer := strings.CutPrefix(c.r.Header.Get("Authorization"), "Bearer ")
	c.team = c.s.teams[token]
	if !bearer || c.team == nil {
		return answer{status: http.StatusUnauthorized, body: errors.New("Unable to authenticate you"), edge: true}, true //nolint:staticcheck // the wire's text
	}
	if wait := c.rate(); wait > 0 {
		return answer{
			status: http.StatusTooManyRequests, body: errors.New("API rate limit exceeded"), edge: true,
			header: http.Header{"Retry-After": {strconv.Itoa(int(wait.Seconds()) + 1)}},
		}, true
	}
	switch {
	case !slices.Contains(c.s.opts.Regions, c.region):
		return answer{status: http.StatusNotFound, body: errors.New("no such region"), edge: true}, true
	case status == http.StatusNotImplemented:
		return refuse(status, "%s %s: the fake leaves this out", c.r.Method, c.r.URL.Path), true
	case status != 0:
		return answer{status: status, body: errors.New("the resource you were accessing could not be found"), edge: true}, true
	case tooLong:
		return refuse(http.StatusRequestEntityTooLarge, "request body is too large"), true
	case c.team.NoFeature && rt.op != OpAccount && rt.op != OpPrepayment:
		return refuse(http.StatusForbidden, "managed agents are not enabled for this team"), true
	case c.team.Scopes != nil && rt.op != OpAccount && !slices.Contains(c.team.Scopes, c.scope(rt.op)):
		return answer{
			status: http.StatusForbidden, body: errors.New("you are not authorized to perform this operation"), edge: true,
		}, true
	}
	return answer{}, false
}

// scope is what a token needs for the request [specification of July 2026].
func (c *call) scope(op Op) string {
	switch {
	case op == OpPrepayment:
		return "billing:read"
	case c.r.Method == http.MethodGet:
		return "agents:read"
	case c.r.Method == http.MethodDelete:
		return "agents:delete"
	}
	return "agents:create"
}

// rate counts the request, and says how long to wait when there were too many.
func (c *call) rate() time.Duration {
	t := c.team
	t.requests = slices.DeleteFunc(t.requests, func(at time.Time) bool { return !at.After(c.now.Add(-time.Hour)) })
	if c.s.opts.EnforceRate {
		minute := slices.DeleteFunc(slices.Clone(t.requests), func(at time.Time) bool { return !at.After(c.now.Add(-time.Minute)) })
		if len(minute) >= ratePerMinute {
			return minute[0].Add(time.Minute).Sub(c.now)
		}
		if len(t.requests) >= ratePerHour {
			return t.requests[0].Add(time.Hour).Sub(c.now)
		}
	}
	t.requests = append(t.requests, c.now)
	return 0
}

// Limits of one token [description of the API, Aug 2026].
const (
	ratePerHour   = 5000
	ratePerMinute = 250
)

// send writes an answer. It takes the lock over and gives it back.
func (s *Server) send(w http.ResponseWriter, r *http.Request, c *call, rec *Request, ans answer) {
	for ans.then != nil {
		until, then := ans.until, ans.then
		s.mu.Unlock()
		if err := s.wait(r.Context(), until); err != nil {
			panic(http.ErrAbortHandler) // the client is gone; what it asked for goes on
		}
		s.mu.Lock()
		s.settle()
		c.now = s.time()
		ans = then()
	}
	header := w.Header()
	header.Set("X-Request-Id", rec.ID)
	if c.team != nil {
		header.Set("Ratelimit-Limit", strconv.Itoa(ratePerHour))
		header.Set("Ratelimit-Remaining", strconv.Itoa(max(ratePerHour-len(c.team.requests), 0)))
		if len(c.team.requests) > 0 {
			header.Set("Ratelimit-Reset", strconv.FormatInt(c.team.requests[0].Add(time.Hour).Unix(), 10))
		}
	}
	rec.Status = ans.status
	if ans.take != nil {
		s.mu.Unlock()
		ans.take(w, r)
		return
	}
	raw, delay := s.render(c, rec, ans, header), time.Duration(0)
	if c.fault != nil {
		delay = c.fault.Delay
	}
	s.mu.Unlock()
	if !s.sleep(r, delay) {
		s.mu.Lock()
		rec.Status = 0
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(ans.status)
	_, _ = w.Write(raw)
}

// render makes the bytes of an answer.
func (s *Server) render(c *call, rec *Request, ans answer, header http.Header) []byte {
	maps.Copy(header, ans.header)
	if ans.body == nil {
		return ans.raw
	}
	header.Set("Content-Type", "application/json")
	body := ans.body
	if err, isError := body.(error); isError {
		rec.Error = err.Error()
		body = map[string]any{"error": map[string]any{"code": ans.status, "message": err.Error()}}
		if ans.edge || s.opts.EdgeErrors {
			body = map[string]any{"id": edgeID(ans.status), "message": err.Error(), "request_id": rec.ID}
		}
	}
	raw := encode(body)
	if c.fault != nil && c.fault.Rewrite != nil {
		var loose map[string]any
		if json.Unmarshal(raw, &loose) == nil {
			c.fault.Rewrite(loose)
			raw = encode(loose)
		}
	}
	return raw
}

func encode(body any) []byte {
	raw, err := json.Marshal(body)
	if err != nil {
		panic("digitaloceantest: encode an answer: " + err.Error())
	}
	return raw
}

// edgeID is the word for a status in the edge's envelope.
func edgeID(status int) string {
	text := strings.ToLower(http.StatusText(status))
	return strings.ReplaceAll(strings.ReplaceAll(text, " ", "_"), "-", "_")
}

// readBody reads what a client sends, but never more than the longest body
// that an operation takes.
func readBody(r *http.Request) (body []byte, tooLong bool, err error) {
	body, err = io.ReadAll(io.LimitReader(r.Body, maxYAML+1))
	if err == nil && len(body) > maxYAML {
		_, err = io.Copy(io.Discard, io.LimitReader(r.Body, 8*maxYAML))
		return nil, true, err
	}
	return body, false, err
}

// decode reads a JSON body strictly: a field that is not known is refused.
func (c *call) decode(to any) (answer, bool) {
	if len(bytes.TrimSpace(c.body)) == 0 {
		c.body = []byte("{}")
	}
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return refuse(http.StatusBadRequest, "invalid request body: %s", plain(err)), false
	}
	if d.More() {
		return refuse(http.StatusBadRequest, "invalid request body: more than one value"), false
	}
	return answer{}, true
}

// plain keeps what a body said out of an error's text.
func plain(err error) string {
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return "field " + typed.Field + " has the wrong type"
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return "unknown field " + name
	}
	return "not valid JSON"
}

// tick moves the server's own clock at a request. The lock is held.
func (s *Server) tick() {
	if s.opts.Now == nil {
		s.now = s.now.Add(s.opts.Tick)
		close(s.moved)
		s.moved = make(chan struct{})
	}
}

// unlocked calls a hook of the test, which may call the server.
func (s *Server) unlocked(do func()) {
	s.mu.Unlock()
	do() // when it panics, the lock stays free for the next request
	s.mu.Lock()
}

// sleep waits in real time, and says whether there is still somebody to answer.
func (s *Server) sleep(r *http.Request, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-r.Context().Done():
	case <-s.closing:
	}
	return false
}
