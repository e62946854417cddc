package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

func (s *Server) getUse(w http.ResponseWriter, r *http.Request) {
	list, err := s.history.list()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	left, working, sockets := s.gate.state()
	use := agentserver.Use{
		InFlight: working, Sockets: sockets, DrainSeconds: left.Seconds(),
		Conversations: len(list), Server: agentserver.Process{State: "none"},
	}
	marks := make([]box.ConversationMark, 0, len(list))
	newest := s.started
	for _, one := range list {
		marks = append(marks, one.ConversationMark)
		use.Events += one.Events
		if one.newest.After(newest) {
			newest = one.newest
		}
	}
	use.Digest = box.HistoryDigest(marks)
	// A time in the future counts as now: an unsure reading never makes a box
	// look idle.
	use.IdleSeconds = max(0, time.Since(newest).Seconds())
	running, known := -1, false
	if s.opts.Upstream != nil {
		use.Server = s.opts.Upstream.Process()
		if idle, ok := s.upstreamIdle(r.Context()); ok {
			use.IdleSeconds = idle
		}
		running, known = s.upstreamRunning(r.Context())
	}
	if !known {
		running = 0
		for _, one := range list {
			if s.history.status(one.ID) == "running" {
				running++
			}
		}
	}
	use.Running = running
	writeJSON(w, http.StatusOK, use)
}

// upstreamIdle asks the agent-server for its own idle clock, in seconds.
func (s *Server) upstreamIdle(ctx context.Context) (float64, bool) {
	var info struct {
		IdleTime *float64 `json:"idle_time"`
	}
	if !s.ask(ctx, "/server_info", &info) || info.IdleTime == nil || math.IsNaN(*info.IdleTime) {
		return 0, false
	}
	return max(0, *info.IdleTime), true
}

// upstreamRunning asks the agent-server how many conversations run: of loaded
// ones it knows more than the disk, and counting loads none.
func (s *Server) upstreamRunning(ctx context.Context) (int, bool) {
	n := -1
	return n, s.ask(ctx, "/api/conversations/count?status=running", &n) && n >= 0
}

// ask reads one small JSON document from the agent-server.
func (s *Server) ask(ctx context.Context, path string, out any) bool {
	base, up := s.opts.Upstream.Target()
	if !up {
		return false
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.String()+path, nil)
	if err != nil {
		return false
	}
	if s.opts.Key != "" {
		request.Header.Set("X-Session-API-Key", s.opts.Key.Reveal())
	}
	response, err := s.asks.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return false
	}
	return json.NewDecoder(io.LimitReader(response.Body, maxInfo)).Decode(out) == nil
}

func (s *Server) postDrain(w http.ResponseWriter, r *http.Request) {
	var body struct {
		LeaseSeconds *float64 `json:"lease_seconds"`
	}
	if !decode(w, r, &body) {
		return
	}
	switch most := agentserver.MaxDrainLease.Seconds(); {
	case body.LeaseSeconds == nil:
		refuseAs(w, fault{Type: "missing", Loc: []any{"body", "lease_seconds"}, Msg: "Field required", Input: map[string]any{}})
		return
	case !(*body.LeaseSeconds > 0) || *body.LeaseSeconds > most:
		refuseField(w, "body", "lease_seconds", fmt.Sprintf("must be more than 0 and at most %g", most), *body.LeaseSeconds)
		return
	}
	lease := s.gate.drain(time.Duration(*body.LeaseSeconds * float64(time.Second)))
	writeJSON(w, http.StatusOK, agentserver.Drain{LeaseSeconds: lease.Seconds()})
}

func (s *Server) deleteDrain(w http.ResponseWriter, _ *http.Request) {
	s.gate.open()
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) postReclaim(w http.ResponseWriter, r *http.Request) {
	text, ok := readBody(w, r)
	if !ok {
		return
	}
	// Decoded, a null is a field that is not there: {"dry_run": null} would delete.
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields) // what is wrong with it is said below
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if string(fields[name]) == "null" {
			refuseField(w, "body", name, "must not be null; leave it out", nil)
			return
		}
	}
	var request box.ReclaimRequest
	if !decodeText(w, text, &request) {
		return
	}
	report, err := s.opts.Reclaim.Do(r.Context(), request)
	if err != nil {
		refuseError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, report)
}
