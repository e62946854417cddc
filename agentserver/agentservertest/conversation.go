package agentservertest

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Conversation is what to write. Its zero value is an idle, empty conversation
// with an id of its own, made now.
type Conversation struct {
	ID     string // 32 hexadecimal digits, or the same with dashes
	Title  string
	Status string // execution_status, "idle" when empty
	// WorkingDir is recorded in the files; nothing is made there.
	WorkingDir string
	CreatedAt  time.Time
	Tags       map[string]string
	Events     []Event
}

// Event is one entry of a history: a message of Source, or Raw as it is.
type Event struct {
	ID     string // a UUID
	Source string // "user" when empty
	Text   string
	At     time.Time
	// Raw replaces the whole document; its id, when it has one, must be ID.
	Raw json.RawMessage
}

// WriteConversation writes c below dir, the conversations directory of a box,
// and returns its id in 32 digits. It refuses an id that is there already. The
// directory appears whole or not at all.
func WriteConversation(dir string, c Conversation) (id string, err error) {
	id = strings.ToLower(strings.ReplaceAll(c.ID, "-", ""))
	if id == "" {
		id = newID()
	}
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return "", fmt.Errorf("conversation id %q is not 32 hexadecimal digits", c.ID)
	}
	created := c.CreatedAt
	if created.IsZero() {
		created = time.Now()
	}
	status := c.Status
	if status == "" {
		status = "idle"
	}
	place := filepath.Join(dir, id)
	if _, err := os.Lstat(place); err == nil {
		return "", fmt.Errorf("conversation %s is there already", id)
	}
	draft, err := os.MkdirTemp(dir, ".draft-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(draft)
		}
	}()
	if err := os.Mkdir(filepath.Join(draft, "events"), 0o755); err != nil {
		return "", err
	}
	workspace := map[string]any{"working_dir": c.WorkingDir, "kind": "LocalWorkspace"}
	var title any
	if c.Title != "" {
		title = c.Title
	}
	tags := c.Tags
	if tags == nil {
		tags = map[string]string{}
	}
	updated := created
	var leaf any
	for i, event := range c.Events {
		if event.At.IsZero() {
			event.At = created.Add(time.Duration(i) * time.Second)
		}
		name, err := writeEvent(filepath.Join(draft, "events"), i, event)
		if err != nil {
			return "", err
		}
		leaf, updated = name, event.At
	}
	if err := writeJSON(filepath.Join(draft, "meta.json"), map[string]any{
		"id": id, "title": title, "tags": tags, "workspace": workspace, "max_iterations": 500, "stuck_detection": true,
		"confirmation_policy": map[string]any{"kind": "NeverConfirm"}, "worktree": false, "autotitle": false,
		"created_at": stampZone(created), "updated_at": stampZone(updated),
	}); err != nil {
		return "", err
	}
	if err := writeJSON(filepath.Join(draft, "base_state.json"), map[string]any{
		"id": Dashed(id), "workspace": workspace, "persistence_dir": place, "max_iterations": 500, "stuck_detection": true,
		"execution_status": status, "confirmation_policy": map[string]any{"kind": "NeverConfirm"},
		"leaf_event_id": leaf, "tags": tags, "agent_state": map[string]any{},
		"agent": map[string]any{"kind": "Agent", "tools": []any{}, "llm": map[string]any{"model": "openai/never-called", "usage_id": "agent"}},
		"stats": map[string]any{"usage_to_metrics": map[string]any{}}, "secret_registry": map[string]any{"secret_sources": map[string]any{}},
	}); err != nil {
		return "", err
	}
	if err := os.Chmod(draft, 0o755); err != nil {
		return "", err
	}
	return id, os.Rename(draft, place)
}

// AppendEvent adds an event to a conversation that is there, and returns the
// event's id. One writer at a time.
func AppendEvent(dir, id string, event Event) (string, error) {
	events := filepath.Join(dir, strings.ToLower(strings.ReplaceAll(id, "-", "")), "events")
	entries, err := os.ReadDir(events)
	if err != nil {
		return "", err
	}
	next := 0
	for _, entry := range entries {
		if parts := eventName.FindStringSubmatch(entry.Name()); parts != nil {
			if n, err := strconv.Atoi(parts[1]); err == nil {
				next = max(next, n+1)
			}
		}
	}
	if event.At.IsZero() {
		event.At = time.Now()
	}
	return writeEvent(events, next, event)
}

// SetStatus rewrites the execution_status of a conversation that is there.
func SetStatus(dir, id, status string) error {
	place := filepath.Join(dir, strings.ToLower(strings.ReplaceAll(id, "-", "")), "base_state.json")
	text, err := os.ReadFile(place)
	if err != nil {
		return err
	}
	var state map[string]any
	if err := json.Unmarshal(text, &state); err != nil {
		return err
	}
	state["execution_status"] = status
	return writeJSON(place, state)
}

// Dashed returns an id of 32 digits as a UUID, the form that servers answer.
func Dashed(id string) string {
	if len(id) != 32 {
		return id
	}
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
}

var eventName = regexp.MustCompile(`^event-(\d{5,})-([0-9a-fA-F-]{8,})\.json$`)

func writeEvent(dir string, index int, event Event) (string, error) {
	id := event.ID
	if id == "" {
		id = Dashed(newID())
	}
	name := fmt.Sprintf("event-%05d-%s.json", index, id)
	if !eventName.MatchString(name) {
		return "", fmt.Errorf("event id %q is not a UUID", event.ID)
	}
	place := filepath.Join(dir, name)
	if event.Raw != nil {
		return id, writeFile(place, event.Raw)
	}
	source, role := event.Source, "user"
	if source == "" {
		source = "user"
	}
	if source != "user" {
		role = "assistant"
	}
	return id, writeJSON(place, map[string]any{
		"id": id, "timestamp": stampLocal(event.At), "source": source, "kind": "MessageEvent",
		"llm_message": map[string]any{
			"role":            role,
			"content":         []any{map[string]any{"type": "text", "text": event.Text, "cache_prompt": false}},
			"thinking_blocks": []any{},
		},
		"activated_skills": []any{}, "extended_content": []any{},
	})
}

// Servers write times of conversations with a zone and times of events without.
func stampZone(at time.Time) string  { return at.UTC().Format("2006-01-02T15:04:05.000000Z") }
func stampLocal(at time.Time) string { return at.Local().Format("2006-01-02T15:04:05.000000") }

func writeJSON(place string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return writeFile(place, text)
}

// writeFile replaces place whole, as servers do, so that a reader never sees half.
func writeFile(place string, text []byte) error {
	draft := place + ".tmp"
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, place)
}

func newID() string {
	var raw [16]byte
	rand.Read(raw[:])
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	return hex.EncodeToString(raw[:])
}
