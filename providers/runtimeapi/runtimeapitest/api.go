package runtimeapitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
)

// startRequest is the body of /start: the fields that public clients send.
type startRequest struct {
	Image           string            `json:"image"`
	Command         any               `json:"command"` // a string or a list
	WorkingDir      string            `json:"working_dir"`
	Environment     map[string]string `json:"environment"`
	SessionID       string            `json:"session_id"`
	ResourceFactor  *int              `json:"resource_factor"`
	RuntimeClass    *string           `json:"runtime_class"`
	RunAsUser       *int              `json:"run_as_user"`
	RunAsGroup      *int              `json:"run_as_group"`
	FSGroup         *int              `json:"fs_group"`
	ImagePullPolicy *string           `json:"image_pull_policy"`
}

// answer is what a call answers: a status and a JSON value.
type answer struct {
	status int
	value  any
}

// call is a request as a handler needs it.
type call struct {
	*http.Request
	tenant string
	body   []byte
	fault  Fault
}

func (s *Service) mux() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /start", s.handle(OpStart, s.startCall))
	m.HandleFunc("POST /stop", s.handle(OpStop, s.change(s.stopCall)))
	m.HandleFunc("POST /pause", s.handle(OpPause, s.change(s.pauseCall)))
	m.HandleFunc("POST /resume", s.handle(OpResume, s.change(s.resumeCall)))
	m.HandleFunc("GET /sessions/{id}", s.handle(OpSession, s.sessionCall))
	m.HandleFunc("GET /sessions/batch", s.handle(OpBatch, s.batchCall))
	m.HandleFunc("GET /runtime/{id}", s.handle(OpRuntime, s.runtimeCall))
	m.HandleFunc("GET /list", s.handle(OpList, s.listCall))
	m.HandleFunc("GET /registry_prefix", s.handle(OpRegistry, s.registryCall))
	m.HandleFunc("GET /image_exists", s.handle(OpImage, s.imageCall))
	m.HandleFunc("POST /build", s.handle(OpBuild, s.buildCall))
	m.HandleFunc("GET /build_status", s.handle(OpBuildStatus, s.buildStatusCall))
	m.HandleFunc("/{id}/{rest...}", func(w http.ResponseWriter, r *http.Request) { s.ingress(w, r, r.PathValue("id")) })
	return m
}

// handle is around every call: the log, the fault, the key.
func (s *Service) handle(op Op, do func(*call) answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		fault := s.take(op)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler) // the caller is gone
		}
		var fields map[string]any
		_ = json.Unmarshal(body, &fields)
		at := s.log(Call{Op: op, Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header.Clone(), Fields: fields})
		s.before(r, fault)
		out := answer{}
		if fault.Status == 0 || fault.Done {
			out = s.authorised(r, do, body, fault)
		}
		switch {
		case fault.Lost:
			panic(http.ErrAbortHandler)
		case fault.Status != 0:
			s.answered(at, fault.Status)
			fault.write(w)
		default:
			s.answered(at, out.status)
			out.write(w, fault.Edit)
		}
	}
}

// before is what a fault does before the work.
func (s *Service) before(r *http.Request, fault Fault) {
	if fault.Before != nil {
		fault.Before()
	}
	if fault.Hang {
		select {
		case <-r.Context().Done():
		case <-s.closed:
		}
	}
	if fault.Hang || fault.Drop {
		panic(http.ErrAbortHandler)
	}
}

// authorised runs do for a caller with a key. The shape of a refusal is unknown.
func (s *Service) authorised(r *http.Request, do func(*call) answer, body []byte, fault Fault) answer {
	key := r.Header.Get("X-API-Key")
	if !slices.Contains(s.opts.Keys, key) {
		return answer{http.StatusUnauthorized, map[string]any{"error": "Unauthorized"}}
	}
	return do(&call{Request: r, tenant: key, body: body, fault: fault})
}

func (s *Service) log(c Call) (at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.At = s.now
	s.calls = append(s.calls, c)
	return len(s.calls) - 1
}

func (s *Service) answered(at, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[at].Status = status
}

func (f Fault) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), f.Header)
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, f.Body)
}

func (a answer) write(w http.ResponseWriter, edit func(map[string]any)) {
	text, err := json.Marshal(a.value)
	if err == nil && edit != nil {
		var fields map[string]any
		if err = json.Unmarshal(text, &fields); err == nil {
			edit(fields)
			text, err = json.Marshal(fields)
		}
	}
	if err != nil {
		panic(err) // a fault of the test
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(a.status)
	_, _ = w.Write(text)
}

func refused(status int, format string, args ...any) answer {
	return answer{status, map[string]any{"detail": fmt.Sprintf(format, args...)}}
}

func (s *Service) absent() answer {
	name := "error"
	if s.opts.Detail {
		name = "detail"
	}
	return answer{http.StatusNotFound, map[string]any{name: "Runtime not found"}}
}

// session is the object that every call about one box answers.
func (s *Service) session(b *sandbox, reading bool) map[string]any {
	status, pod := b.told(reading)
	out := map[string]any{
		"runtime_id": b.RuntimeID, "session_id": b.SessionID, "url": b.URL, "status": status,
		"session_api_key": nil, "restart_count": len(b.crashes), "restart_reasons": append([]string{}, b.crashes...),
		"container_statuses": []any{}, "events": []any{}, "pod_logs": "",
		"work_hosts": map[string]int{b.URL + "/work-1": 12000, b.URL + "/work-2": 12001},
	}
	if b.key != "" && (status == StatusRunning || status == StatusStarting) { // null while paused
		out["session_api_key"] = b.key
	}
	if !s.opts.NoPodStatus {
		out["pod_status"] = pod
	}
	return out
}

// startCall makes a box, or answers or wakes the one that the session has.
func (s *Service) startCall(c *call) answer {
	var req startRequest
	strict := json.NewDecoder(bytes.NewReader(c.body))
	strict.DisallowUnknownFields() // what no public client sends is a mistake here
	if err := strict.Decode(&req); err != nil {
		return refused(http.StatusUnprocessableEntity, "%v", err)
	}
	if problem := req.problem(); problem != "" {
		return refused(http.StatusUnprocessableEntity, "%s", problem)
	}
	s.mu.Lock()
	b := s.find(c.tenant, req.SessionID)
	if c.fault.Between != nil {
		s.mu.Unlock()
		c.fault.Between()
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	switch {
	case b == nil || b.Status == StatusStopped:
		b = s.create(c.tenant, &req)
	case b.Status == StatusPaused, b.Status == StatusError:
		s.wake(b)
	}
	return answer{http.StatusOK, s.session(b, false)}
}

func (r *startRequest) problem() string {
	switch {
	case r.SessionID == "":
		return "session_id is required"
	case r.Image == "":
		return "image is required"
	case r.ResourceFactor != nil && !slices.Contains([]int{1, 2, 4, 8}, *r.ResourceFactor):
		return "resource_factor must be 1, 2, 4 or 8"
	case r.ImagePullPolicy != nil && !slices.Contains([]string{"Always", "IfNotPresent", "Never"}, *r.ImagePullPolicy):
		return "image_pull_policy must be Always, IfNotPresent or Never"
	}
	switch command := r.Command.(type) {
	case string:
		return ""
	case []any:
		for _, word := range command {
			if _, ok := word.(string); !ok {
				return "command must be a string or a list of strings"
			}
		}
		return ""
	}
	return "command must be a string or a list of strings"
}

// change reads {runtime_id} and runs do on a box that is not stopped.
func (s *Service) change(do func(*sandbox) answer) func(*call) answer {
	return func(c *call) answer {
		var req struct {
			RuntimeID string `json:"runtime_id"`
		}
		strict := json.NewDecoder(bytes.NewReader(c.body))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&req); err != nil || req.RuntimeID == "" {
			return refused(http.StatusUnprocessableEntity, "runtime_id is required, and nothing else")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		b := s.byID(c.tenant, req.RuntimeID)
		if b == nil || b.Status == StatusStopped {
			return s.absent()
		}
		return do(b)
	}
}

func (s *Service) stopCall(b *sandbox) answer {
	s.stop(b, "stop")
	return answer{http.StatusOK, map[string]any{"runtime_id": b.RuntimeID, "status": StatusStopped}}
}

func (s *Service) pauseCall(b *sandbox) answer {
	s.pause(b, "pause")
	return answer{http.StatusOK, s.session(b, false)}
}

func (s *Service) resumeCall(b *sandbox) answer {
	if b.Status != StatusRunning {
		s.wake(b)
	}
	return answer{http.StatusOK, s.session(b, false)}
}

func (s *Service) sessionCall(c *call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.one(s.find(c.tenant, c.PathValue("id")))
}

func (s *Service) runtimeCall(c *call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.one(s.byID(c.tenant, c.PathValue("id")))
}

func (s *Service) one(b *sandbox) answer {
	if b == nil || b.Status == StatusStopped && !s.opts.ShowStopped {
		return s.absent()
	}
	return answer{http.StatusOK, s.session(b, true)}
}

func (s *Service) batchCall(c *call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []any{}
	for _, id := range c.URL.Query()["ids"] {
		if b := s.find(c.tenant, id); b != nil && (b.Status != StatusStopped || s.opts.ShowStopped) {
			out = append(out, s.session(b, false))
		}
	}
	return answer{http.StatusOK, out}
}

// listCall shows every box of the tenant, whoever made it, but no stopped ones,
// and says nothing of pods.
func (s *Service) listCall(c *call) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := []any{}
	for _, b := range s.boxes {
		if b.tenant != c.tenant || b.Status == StatusStopped || b.Status == StatusError && !s.opts.ListFailed {
			continue
		}
		status, _ := b.told(false)
		row := map[string]any{"runtime_id": b.RuntimeID, "session_id": b.SessionID, "url": b.URL, "status": status, "session_api_key": nil}
		if b.key != "" && status != StatusPaused {
			row["session_api_key"] = b.key
		}
		rows = append(rows, row)
	}
	return answer{http.StatusOK, map[string]any{"total": len(rows), "runtimes": rows}}
}
