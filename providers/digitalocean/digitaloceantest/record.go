package digitaloceantest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// mask stands where a secret was.
const mask = "***"

// Request is one entry of the record. It holds names of headers only, and
// values that are known to be secret are masked everywhere.
type Request struct {
	ID        string // the answer's x-request-id
	At        time.Time
	Op        Op
	Region    string
	Team      string // empty when the token was refused
	Method    string
	Path      string
	Query     string
	Headers   []string // sorted
	Body      string
	Session   string // the id that the path names, or that a create made
	Performed bool   // the operation ran, whatever was answered
	Fault     string // what the script did to it
	Status    int    // zero when nothing was answered
	Error     string // the message of an error that was answered
}

// Requests lists the requests so far, also those to ingress URLs.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Request, len(s.requests))
	for i, r := range s.requests {
		out[i] = *r
		out[i].Headers = slices.Clone(r.Headers)
	}
	return out
}

// Count is how many requests of an operation came, whatever became of them.
func (s *Server) Count(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if r.Op == op {
			n++
		}
	}
	return n
}

// record notes a request. The lock is held, and must be when the entry is
// changed.
func (s *Server) record(c *call, op Op) *Request {
	rec := &Request{
		ID: s.newID("request"), At: c.now, Op: op, Region: c.region, Method: c.r.Method,
		Headers: slices.Sorted(maps.Keys(map[string][]string(c.r.Header))),
	}
	rec.Session, _ = c.subject()
	body := s.readable(c.r, c.body)
	rec.Path, rec.Query, rec.Body = s.clean(c.r.URL.Path), s.clean(maskQuery(c.r.URL.Query())), s.clean(body)
	s.requests = append(s.requests, rec)
	return rec
}

// subject is the session that a request is about.
func (c *call) subject() (id, name string) {
	if strings.HasPrefix(c.r.URL.Path, c.prefix+"/sessions/") && len(c.ids) > 0 {
		id = c.ids[0]
		for _, ses := range c.s.sessions {
			if ses.id == id {
				name = ses.name
			}
		}
		return id, name
	}
	var in struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal(c.body, &in)
	return "", in.Name
}

// readable is a body as it may be recorded.
func (s *Server) readable(r *http.Request, body []byte) string {
	if len(body) == 0 {
		return ""
	}
	if isYAML(r) {
		return masked(string(body))
	}
	var fields map[string]any
	if json.Unmarshal(body, &fields) != nil {
		return fmt.Sprintf("(%d bytes)", len(body))
	}
	for key, value := range fields {
		switch text, _ := value.(string); key {
		case "manifest_yaml":
			fields[key] = masked(text)
		case "text", "source_raw": // what a person wrote to the agent
			fields[key] = fmt.Sprintf("(%d bytes)", len(text))
		}
	}
	return string(encode(fields))
}

// maskQuery keeps the names of parameters, and the values of those that are
// known to be harmless.
func maskQuery(query url.Values) string {
	for key, values := range query {
		if !slices.Contains([]string{
			"page_size", "page_token", "status", "name", "parent_session_id", "search", "resume_on_topoff", "openai_session_id",
			"path", "as_archive", "is_archive", "bound_session_id", "state", "kind",
		}, key) {
			for i := range values {
				values[i] = mask
			}
		}
	}
	text, err := url.QueryUnescape(query.Encode())
	if err != nil {
		return query.Encode()
	}
	return text
}

// clean masks every value that is known to be secret.
func (s *Server) clean(text string) string {
	for secret := range s.secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, mask)
		}
	}
	return text
}
