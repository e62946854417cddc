package digitaloceantest

import (
	"net/http"
	"strconv"
	"time"
)

// Fault makes requests of one operation go wrong. What may be combined is:
// First, Then, Delay, Stale and Rewrite with anything; of Cut, Hang, Status and
// Close one, and with one of these After or Late.
type Fault struct {
	// Op is the operation, empty for any.
	Op Op
	// Session is the id or the name of the session that the request is about,
	// empty for any. A create has only a name.
	Session string
	// Skip lets that many requests pass first; Times is how many go wrong: zero
	// means one, negative all.
	Skip, Times int

	// Cut closes the connection without an answer.
	Cut bool
	// Hang answers nothing until the client gives up.
	Hang bool
	// Status, Header and Body are the answer instead. Without a Body, an error
	// has the edge's envelope, and anything else is empty.
	Status int
	Header http.Header
	Body   string
	// RetryAfter adds that header, in seconds rounded up.
	RetryAfter time.Duration
	// Close ends a tunnel with this code right after the upgrade.
	Close int

	// After performs the operation and spoils the answer. Otherwise nothing is
	// performed, unless Late says so.
	After bool
	// Late performs the operation that much later, whatever was answered.
	Late time.Duration
	// Delay holds the answer back, in real time.
	Delay time.Duration
	// Stale makes a list show what was there when the fault was injected.
	Stale bool
	// First runs before the operation, and Then between the operation and its
	// answer; both may call the server, to let something come in between.
	First, Then func(*Server)
	// Rewrite changes the JSON of the answer, as for fields that are null,
	// missing or of the future. It must not call the server.
	Rewrite func(body map[string]any)

	behind func(change) bool
}

// Unavailable is a 503, after the operation was performed or instead of it.
func Unavailable(op Op, after bool) Fault {
	return Fault{Op: op, Status: http.StatusServiceUnavailable, After: after}
}

// TooMany is a 429, with the header Retry-After unless it is zero.
func TooMany(op Op, retryAfter time.Duration) Fault {
	return Fault{Op: op, Status: http.StatusTooManyRequests, RetryAfter: retryAfter}
}

// BadGateway is a 502 with a page for people.
func BadGateway(op Op) Fault {
	return Fault{
		Op: op, Status: http.StatusBadGateway, Header: http.Header{"Content-Type": {"text/html; charset=utf-8"}},
		Body: "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>",
	}
}

// LoginPage redirects to a page for people, which answers 200 to everything.
func LoginPage(op Op) Fault {
	return Fault{Op: op, Status: http.StatusFound, Header: http.Header{"Location": {loginPath}}}
}

// Inject adds a fault to the script. A request takes the first one that is for
// it and not used up.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	if f.Stale {
		s.settle()
		until := s.changes
		f.behind = func(ch change) bool { return ch.serial <= until }
	}
	s.faults = append(s.faults, &f)
}

// nextFault takes the fault for one request, nil if there is none.
func (s *Server) nextFault(op Op, c *call) *Fault {
	for _, f := range s.faults {
		switch {
		case f.Op != "" && f.Op != op, f.Times == 0, f.Session != "" && !c.concerns(f.Session):
			continue
		case f.Skip > 0:
			f.Skip--
			return nil
		case f.Times > 0:
			f.Times--
		}
		return f
	}
	return nil
}

// concerns says whether the request is about a session.
func (c *call) concerns(session string) bool {
	id, name := c.subject()
	return session == id || session == name
}

// spoils says whether the client gets another answer than the operation's.
func (f *Fault) spoils() bool { return f.Cut || f.Hang || f.Status != 0 }

// name is how records tell the fault.
func (f *Fault) name() string {
	kind := ""
	switch {
	case f.Cut:
		kind = "cut"
	case f.Hang:
		kind = "hang"
	case f.Status != 0:
		kind = strconv.Itoa(f.Status)
	case f.Close != 0:
		kind = "close " + strconv.Itoa(f.Close)
	case f.Stale:
		kind = "stale"
	case f.Rewrite != nil:
		kind = "rewritten"
	case f.Delay > 0:
		kind = "slow"
	default:
		kind = "race"
	}
	if f.After {
		kind += " after"
	}
	if f.Late > 0 {
		kind += " late"
	}
	return kind
}

// lateEffect queues the operation of a request that is answered now.
func (s *Server) lateEffect(c *call, rt route, rec *Request) {
	if c.fault.Late <= 0 {
		return
	}
	at := c.now.Add(c.fault.Late)
	s.at(at, func() {
		again := *c
		again.now, again.fault = at, nil
		rt.do(&again)
		rec.Performed = true
	})
}

// spoil answers instead of the operation. It takes the lock over and gives it
// back.
func (f *Fault) spoil(s *Server, w http.ResponseWriter, r *http.Request, c *call, rec *Request) {
	switch {
	case f.Cut:
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	case f.Hang:
		s.mu.Unlock()
		select {
		case <-r.Context().Done():
		case <-s.closing:
		}
		panic(http.ErrAbortHandler)
	}
	ans := answer{status: f.Status, header: f.Header.Clone(), raw: []byte(f.Body)}
	if f.Body == "" && f.Status >= http.StatusBadRequest {
		ans = refuse(f.Status, "%s", http.StatusText(f.Status))
		ans.edge, ans.header = true, f.Header.Clone()
	}
	if f.RetryAfter > 0 {
		if ans.header == nil {
			ans.header = http.Header{}
		}
		ans.header.Set("Retry-After", strconv.Itoa(int((f.RetryAfter+time.Second-1)/time.Second)))
	}
	s.send(w, r, c, rec, ans)
}
