package runtimeapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

// answers is a service that plays back what it is told, one answer a request.
type answers struct {
	took  func()   // runs while a /start is answered
	other []string // of all but /list, which is empty
	sent  []string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	path := r.Method + " " + r.URL.Path
	a.sent = append(a.sent, path)
	text := `{"total":0,"runtimes":[]}`
	if r.URL.Path != "/list" {
		text, a.other = a.other[0], a.other[1:]
	}
	if r.URL.Path == "/start" {
		a.took()
	}
	status := http.StatusOK
	switch text {
	case "absent":
		status, text = http.StatusNotFound, `{"error":"Runtime not found"}`
	case "away":
		status, text = http.StatusServiceUnavailable, `{}`
	}
	w := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}}
	w.Body = struct {
		*strings.Reader
		closer
	}{strings.NewReader(text), closer{}}
	return w, nil
}

type closer struct{}

func (closer) Close() error { return nil }

func TestAnUnclearCreateIsSentAgainAfterAWhile(t *testing.T) {
	t.Parallel()
	const there = `{"runtime_id":"r1","session_id":"bk-0a1b2c3d-a-1","status":"starting"}`
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	service := &answers{took: func() { now = now.Add(time.Minute) }}
	d, err := New("0a1b2c3d", Options{URL: "https://runtime.example", APIKey: "k", PausedLife: box.Never, Image: "i", Transport: service})
	if err != nil {
		t.Fatal(err)
	}
	d.now = func() time.Time { return now }
	create := func(want box.Class, starts int, play ...string) (wait time.Duration) {
		t.Helper()
		service.other, service.sent = play, nil
		_, err := d.Create(t.Context(), driver.CreateRequest{Identity: box.Identity{Installation: "0a1b2c3d", Workspace: "a", Epoch: 1}})
		if box.ClassOf(err) != want {
			t.Fatalf("%v, want %q", err, want)
		}
		if got := strings.Count(strings.Join(service.sent, "\n"), "POST /start"); got != starts {
			t.Fatalf("%d starts, want %d: %q", got, starts, service.sent)
		}
		_, wait = d.ErrorClass(err)
		return wait
	}
	cut := []string{"absent", "absent", "away", "absent"}
	create(box.ClassUnavailable, 1, cut...)
	for end := now.Add(changeWithin); now.Before(end); {
		// The start may still land: each try looks, and says when to look again.
		wait := create(box.ClassUnavailable, 0, "absent", "absent")
		if wait <= 0 || wait > min(lookAgain, end.Sub(now)) {
			t.Fatalf("look again after %s, %s before the end", wait, end.Sub(now))
		}
		now = now.Add(wait)
	}
	create(box.ClassUnavailable, 1, cut...) // equal is over
	now = now.Add(changeWithin - 1)
	create(box.ClassUnavailable, 0, "absent", "absent")
	// What comes to light meanwhile ends the doubt.
	create("", 0, there)
	create("", 1, "absent", "absent", there, there)
}

func FuzzSession(f *testing.F) {
	f.Add(`{"runtime_id":"r","session_id":"s","status":"running","pod_status":"ready","session_api_key":"canary-key","url":"https://h/r","restart_count":2,"restart_reasons":["OOM"]}`)
	f.Add(`{"status":null,"restart_reasons":{}}`)
	f.Add(`{"status":"paused\u0000\n","pod_status":"\u202e"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var s session
		if json.Unmarshal([]byte(text), &s) != nil {
			return
		}
		evidence := s.evidence()
		if len([]rune(evidence)) > 1000 || strings.ContainsAny(evidence, "\n\x00") {
			t.Errorf("evidence %q", evidence)
		}
		switch phase := s.phase(); phase {
		case box.PhaseGone:
			if lower(s.Status) != "stopped" {
				t.Errorf("%q reads as gone", s.Status)
			}
		case box.PhaseSuspended:
			if lower(s.Status) != "paused" {
				t.Errorf("%q reads as suspended", s.Status)
			}
		case box.PhaseRunning, box.PhaseStarting, box.PhaseFailed, box.PhaseUnknown:
		default:
			t.Errorf("%q is no phase", phase)
		}
	})
}

func FuzzAbsent(f *testing.F) {
	f.Add(`{"error":"Runtime not found"}`, "application/json")
	f.Add(`{"detail":"Not Found"}`, "application/json")
	f.Add(`<html>`, "text/html")
	f.Fuzz(func(t *testing.T, body, kind string) {
		r := &reply{Answer: httpdriver.Answer{Status: http.StatusNotFound, Header: http.Header{"Content-Type": {kind}}, Body: []byte(body)}}
		if !r.absent() {
			return
		}
		var object map[string]any
		if json.Unmarshal([]byte(body), &object) != nil || object["error"] == nil && object["detail"] == nil {
			// The decoder of Go takes names in any case; then the value is still one of the two.
			if !strings.Contains(strings.ToLower(body), "error") && !strings.Contains(strings.ToLower(body), "detail") {
				t.Errorf("%q is no word of the service", body)
			}
		}
		if !strings.Contains(strings.ToLower(kind), "json") { // kinds of content are the same in any case
			t.Errorf("%q is not JSON", kind)
		}
	})
}
