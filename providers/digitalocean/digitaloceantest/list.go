package digitaloceantest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// statuses are what the filter of a list takes.
func statuses() []string {
	return []string{"UNSPECIFIED", provisioning, ready, detached, updating, paused, destroying, destroyed, failed, "ALL"}
}

// list is the list of sessions, of the team or of one configuration. It hides
// what is destroyed or failed unless asked [docs 13 Nov 2026].
func (c *call) list() answer {
	query := c.r.URL.Query()
	status, known := strings.CutPrefix(query.Get("status"), statusPrefix)
	if status != "" && (!known || !slices.Contains(statuses(), status)) {
		return refuse(http.StatusBadRequest, "status is not a session status")
	}
	var rows []row
	for i, ses := range slices.Backward(c.s.sessions) {
		if ses.team != c.team || ses.region != c.region || len(c.ids) > 0 && ses.configID != c.ids[0] {
			continue
		}
		shown, reason, there := c.s.seen(c, ses)
		if !there || !wanted(ses, shown, status, query) {
			continue
		}
		rows = append(rows, row{i, ses.json(shown, reason)})
	}
	return c.page("sessions", rows)
}

func wanted(ses *session, shown, status string, query url.Values) bool {
	ended := shown == destroyed || shown == failed
	switch status {
	case "", "UNSPECIFIED":
		if ended {
			return false
		}
	case "ALL":
	default:
		if shown != status {
			return false
		}
	}
	if name := query.Get("name"); name != "" && (!strings.EqualFold(ses.name, name) || ended || shown == destroying) {
		return false // at most the one live holder
	}
	if parent := query.Get("parent_session_id"); parent != "" && ses.parent != parent {
		return false
	}
	return strings.Contains(strings.ToLower(ses.name), strings.ToLower(query.Get("search")))
}

// seen is what a list knows of a session, which may be behind.
func (s *Server) seen(c *call, ses *session) (status, reason string, there bool) {
	behind := c.behind
	if behind == nil && s.opts.ListLag > 0 {
		cut := c.now.Add(-s.opts.ListLag)
		behind = func(ch change) bool { return !ch.at.After(cut) }
	}
	if behind == nil {
		status, reason = ses.told(c.now)
		return status, reason, true
	}
	for _, ch := range ses.history {
		if behind(ch) {
			status, reason, there = ch.status, ch.reason, true
		}
	}
	return status, reason, there
}

// row is one entry of a list, with its place in all of them.
type row struct {
	place int
	body  map[string]any
}

// page cuts a list, the newest first, at the place that the token tells.
func (c *call) page(key string, rows []row) answer {
	query := c.r.URL.Query()
	size := 50
	if text := query.Get("page_size"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return refuse(http.StatusBadRequest, "page_size must be a number")
		}
		if n > 0 {
			size = min(n, 200)
		}
	}
	if token := query.Get("page_token"); token != "" {
		below, err := untoken(key, token)
		if err != nil {
			return refuse(http.StatusBadRequest, "page_token is not valid")
		}
		rows = slices.DeleteFunc(rows, func(r row) bool { return r.place >= below })
	}
	next := ""
	if len(rows) > size {
		next, rows = token(key, rows[size-1].place), rows[:size]
	}
	bodies := make([]map[string]any, len(rows))
	for i, r := range rows {
		bodies[i] = r.body
	}
	return ok(map[string]any{key: bodies, "next_page_token": next})
}

func token(key string, place int) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s after %d", key, place))
}

func untoken(key, token string) (place int, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(string(raw), key+" after %d", &place)
	return place, err
}
