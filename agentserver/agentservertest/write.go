package agentservertest

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// write serves the few changing calls that tests need, in upstream's own way,
// oddities included. It reports whether the call was one of them.
func (s *Server) write(w http.ResponseWriter, r *http.Request) bool {
	id := idIn(r.URL.Path)
	success := func(ok bool) { answer(w, http.StatusOK, map[string]bool{"success": ok}) }
	refuse := func(status int, text string) { answer(w, status, map[string]string{"detail": text}) }
	route := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/api/")
	if id != "" {
		route = r.Method + " {id}"
		if _, tail, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/conversations/"), "/"); ok {
			route += "/" + tail
		}
	}
	var body struct {
		ConversationID string `json:"conversation_id"`
		Title          string `json:"title"`
		Role           string `json:"role"`
		Content        []struct {
			Text string `json:"text"`
		} `json:"content"`
		Workspace struct {
			Dir string `json:"working_dir"`
		} `json:"workspace"`
	}
	switch route {
	case "POST conversations", "POST {id}/events", "DELETE {id}", "PATCH {id}", "POST {id}/pause",
		"POST bash/execute_bash_command", "POST bash/start_bash_command":
	default:
		return false
	}
	if s.opts.Key != "" && r.Header.Get("X-Session-API-Key") != s.opts.Key.Reveal() {
		refuse(http.StatusUnauthorized, "Unauthorized")
		return true
	}
	if shut := s.ask(r); shut.status == http.StatusServiceUnavailable {
		shut.write(w)
		return true
	}
	if r.Method != http.MethodDelete && json.NewDecoder(r.Body).Decode(&body) != nil && strings.HasPrefix(route, "POST conv") {
		refuse(http.StatusUnprocessableEntity, "the body is no JSON object")
		return true
	}
	switch route {
	case "POST conversations":
		wanted := strings.ReplaceAll(body.ConversationID, "-", "")
		if s.exists(wanted) {
			answer(w, http.StatusOK, map[string]string{"id": Dashed(wanted)})
			return true
		}
		made, err := WriteConversation(s.Conversations(), Conversation{ID: wanted, Title: body.Title, WorkingDir: body.Workspace.Dir})
		if err != nil {
			refuse(http.StatusUnprocessableEntity, err.Error())
			return true
		}
		s.touch()
		answer(w, http.StatusCreated, map[string]string{"id": Dashed(made), "execution_status": "idle"})
	case "POST {id}/events":
		var text strings.Builder
		for _, part := range body.Content {
			text.WriteString(part.Text)
		}
		if _, err := AppendEvent(s.Conversations(), id, Event{Source: body.Role, Text: text.String()}); err != nil {
			refuse(http.StatusNotFound, "Not Found")
			return true
		}
		s.touch()
		success(true)
	case "DELETE {id}":
		if !s.exists(id) {
			refuse(http.StatusBadRequest, "Bad Request")
			return true
		}
		success(os.RemoveAll(filepath.Join(s.Conversations(), id)) == nil)
	case "PATCH {id}":
		success(s.exists(id))
	case "POST {id}/pause":
		if !s.exists(id) {
			refuse(http.StatusBadRequest, "Bad Request")
			return true
		}
		success(SetStatus(s.Conversations(), id, "paused") == nil)
	default:
		s.touch()
		success(true)
	}
	return true
}
