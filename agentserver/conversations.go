package agentserver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Conversation is one conversation of a box, as its catalogue lists it.
type Conversation struct {
	box.ConversationMark
	Title  string
	Status string // execution_status; empty when the catalogue has no entry for it
	// CreatedAt and UpdatedAt are the box's own clock: for people, never for
	// comparisons with ours. Zero when not given.
	CreatedAt, UpdatedAt time.Time
}

// maxPages bounds a list: 100 a page, so a million conversations.
const maxPages = 10_000

// Conversations lists every conversation with its number of events, by id. The
// list is checked against the server's own count, and with boxd in front against
// the disk; a mismatch is read once more, then it is ClassUnknown and nothing
// may be deleted. Without boxd it asks each conversation for its count, which
// loads it into the server's memory. It does not move the idle clock.
func (c *Client) Conversations(ctx context.Context) ([]Conversation, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	list, why, err := c.conversations(ctx, info)
	if err == nil && why != "" {
		list, why, err = c.conversations(ctx, info)
	}
	switch {
	case err != nil:
		return nil, err
	case why != "":
		return nil, box.Errorf(box.ClassUnknown, "the list of conversations contradicts itself, twice: %s", why)
	}
	return list, nil
}

// conversations reads the list once; why says how it contradicts itself.
func (c *Client) conversations(ctx context.Context, info ServerInfo) (list []Conversation, why string, err error) {
	found, why, err := c.search(ctx)
	if err != nil || why != "" {
		return nil, why, err
	}
	total := -1
	if err := c.do(ctx, call{method: http.MethodGet, path: "/api/conversations/count", bound: quickCall}, &total); err != nil {
		return nil, "", err
	}
	if info.Has(CapabilityStorageStatus) {
		return c.fromDisk(ctx, found, total)
	}
	if total != len(found) {
		return nil, "the catalogue lists " + strconv.Itoa(len(found)) + " and counts " + strconv.Itoa(total), nil
	}
	for id, conversation := range found {
		events := -1
		what := call{method: http.MethodGet, path: "/api/conversations/" + dashed(id) + "/events/count", bound: slowCall}
		if err := c.do(ctx, what, &events); err != nil {
			return nil, "", err
		}
		if events < 0 {
			return nil, "conversation " + id + " counts no events", nil
		}
		conversation.Events = events
		list = append(list, conversation)
	}
	return sorted(list), "", nil
}

// fromDisk joins the catalogue with what boxd read from the disk. The catalogue
// leaves out what it cannot load, and the disk is what an export copies, so the
// disk decides; only an entry that the disk does not have is a contradiction.
func (c *Client) fromDisk(ctx context.Context, found map[string]Conversation, total int) (list []Conversation, why string, err error) {
	status, err := c.Storage(ctx)
	if err != nil {
		return nil, "", err
	}
	seen := make(map[string]bool, len(status.Conversations))
	for _, stored := range status.Conversations {
		id, ok := hexID(stored.ID)
		if !ok || seen[id] || stored.Events < 0 {
			return nil, "the storage status names a conversation twice, or one without a usable id or count", nil
		}
		seen[id] = true
		conversation := found[id]
		conversation.ConversationMark = box.ConversationMark{ID: id, Events: stored.Events}
		list = append(list, conversation)
	}
	for id := range found {
		if !seen[id] {
			return nil, "conversation " + id + " is in the catalogue and not on the disk", nil
		}
	}
	if total < len(found) || total > len(list) {
		return nil, "the catalogue lists " + strconv.Itoa(len(found)) + ", counts " + strconv.Itoa(total) + ", and the disk holds " + strconv.Itoa(len(list)), nil
	}
	return sorted(list), "", nil
}

// search reads every page of the catalogue.
func (c *Client) search(ctx context.Context) (found map[string]Conversation, why string, err error) {
	found = map[string]Conversation{}
	query := url.Values{"limit": {"100"}}
	pages := map[string]bool{}
	for {
		var page struct {
			Items []struct {
				ID        string `json:"id"`
				Title     string `json:"title"`
				Status    string `json:"execution_status"`
				CreatedAt stamp  `json:"created_at"`
				UpdatedAt stamp  `json:"updated_at"`
			} `json:"items"`
			Next string `json:"next_page_id"`
		}
		if err := c.do(ctx, call{method: http.MethodGet, path: "/api/conversations/search", query: query, bound: slowCall}, &page); err != nil {
			return nil, "", err
		}
		if page.Items == nil {
			return nil, "", box.Errorf(box.ClassUnknown, "GET /api/conversations/search answered no list")
		}
		for _, item := range page.Items {
			id, ok := hexID(item.ID)
			if !ok {
				return nil, "", box.Errorf(box.ClassUnknown, "GET /api/conversations/search answered the id %q, which is none", box.OneLine(item.ID, 60))
			}
			if _, twice := found[id]; twice {
				return nil, "conversation " + id + " is listed twice", nil
			}
			found[id] = Conversation{
				ConversationMark: box.ConversationMark{ID: id}, Title: item.Title, Status: item.Status,
				CreatedAt: item.CreatedAt.Time, UpdatedAt: item.UpdatedAt.Time,
			}
		}
		switch {
		case page.Next == "":
			return found, "", nil
		case pages[page.Next]:
			return nil, "the pages of the catalogue go round in a circle", nil
		case len(pages) == maxPages:
			return nil, "", box.Errorf(box.ClassUnknown, "the catalogue has more than %d pages", maxPages)
		}
		pages[page.Next] = true
		query.Set("page_id", page.Next)
	}
}

// DownloadTrajectory opens the history of one conversation as a zip; length is
// -1 when the server does not say. The caller closes body, and must verify the
// zip: a 200 alone proves nothing, and a NotFound can mean that the server lost
// its directory. Reading fails with ClassUnavailable when the body is cut off
// or silent for two minutes. It does not move the idle clock.
func (c *Client) DownloadTrajectory(ctx context.Context, id string) (body io.ReadCloser, length int64, err error) {
	short, ok := hexID(id)
	if !ok {
		return nil, 0, box.Invalidf("conversation", "%q is not a conversation id; use 32 hexadecimal digits", box.OneLine(id, 60))
	}
	what := call{method: http.MethodGet, path: "/api/file/download-trajectory/" + short}
	inner, cancel := context.WithCancelCause(ctx)
	// The server packs before it answers, so the first byte may take long.
	alarm := time.AfterFunc(slowCall, func() { cancel(errBound) })
	response, err := c.send(inner, what)
	if err != nil {
		alarm.Stop()
		late := ctx.Err() == nil && inner.Err() != nil
		cancel(nil)
		if late {
			err = box.Errorf(box.ClassDeadlineExceeded, "%s %s: no answer within %s: %w", what.method, what.path, slowCall, context.DeadlineExceeded)
		}
		return nil, 0, err
	}
	if kind := response.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/") || strings.Contains(kind, "json") {
		alarm.Stop()
		response.Body.Close()
		cancel(nil)
		return nil, 0, box.Errorf(box.ClassUnknown, "%s %s answered %q instead of a zip", what.method, what.path, box.OneLine(kind, 60))
	}
	alarm.Reset(quietBody)
	return &download{client: c, what: what, ctx: ctx, body: response.Body, quiet: quietBody, alarm: alarm, cancel: cancel}, response.ContentLength, nil
}

// download ends a body that stays silent, and classes what goes wrong.
type download struct {
	client *Client
	what   call
	ctx    context.Context //nolint:containedctx // it lives as long as the body
	body   io.ReadCloser
	quiet  time.Duration // the longest silence
	alarm  *time.Timer
	cancel context.CancelCauseFunc
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	if n > 0 {
		d.alarm.Reset(d.quiet)
	}
	if err == nil || err == io.EOF {
		return n, err
	}
	if d.ctx.Err() == nil && !d.alarm.Stop() {
		return n, box.Errorf(box.ClassUnavailable, "%s %s: silent for %s", d.what.method, d.what.path, d.quiet)
	}
	return n, d.client.transportError(d.ctx, d.what, err)
}

func (d *download) Close() error {
	d.alarm.Stop()
	d.cancel(nil)
	return d.body.Close()
}

// stamp reads a server's time, with or without a zone; what does not read is
// the zero time, since these are shown and never reckoned with.
type stamp struct{ time.Time }

func (s *stamp) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return nil //nolint:nilerr // see the type
	}
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999"} {
		if at, err := time.Parse(form, text); err == nil {
			s.Time = at.UTC()
			return nil
		}
	}
	return nil
}

// hexID returns the 32 lower-case digits of an id with or without dashes.
func hexID(id string) (string, bool) {
	short := strings.ToLower(id)
	if len(short) == 36 && short[8] == '-' && short[13] == '-' && short[18] == '-' && short[23] == '-' {
		short = strings.ReplaceAll(short, "-", "")
	}
	if len(short) != 32 || strings.Trim(short, "0123456789abcdef") != "" {
		return "", false
	}
	return short, true
}

// dashed returns the id as a UUID.
func dashed(short string) string {
	return short[:8] + "-" + short[8:12] + "-" + short[12:16] + "-" + short[16:20] + "-" + short[20:]
}

func sorted(list []Conversation) []Conversation {
	slices.SortFunc(list, func(a, b Conversation) int { return strings.Compare(a.ID, b.ID) })
	return list
}
