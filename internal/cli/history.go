package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// histories is what the export store holds of a workspace.
type histories struct {
	Workspace string `json:"workspace"`
	Exports   string `json:"exports"` // URL of the store
	// ClosedAt is when the workspace was closed for ever; zero while it is open.
	ClosedAt time.Time `json:"closed_at,omitzero"`
	// Abandoned says that nobody destroyed its box: it may still exist.
	Abandoned bool `json:"abandoned,omitzero"`
	// Verified says that every object was read back and proven just now.
	Verified      bool                        `json:"verified"`
	Conversations []exports.ConversationEntry `json:"conversations"`
	Bytes         int64                       `json:"bytes"`
	Events        int                         `json:"events"`
}

func (a *Shared) historyCommand() *cobra.Command {
	var verify bool
	c := &cobra.Command{
		Use: "history WORKSPACE [CONVERSATION]", Short: "Read what was exported, from the export store alone", Args: args("a workspace", 1, 2),
		Long: "Needs no Temporal, no worker and no box: histories stay readable after all of them are gone. " +
			"Without a conversation it lists them; with one it writes it for reading, or with -o json one event per line.",
	}
	c.Flags().BoolVar(&verify, "verify", false, "read every object back and prove length, sums and event counts")
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := box.ValidateWorkspace(given[0]); err != nil {
			return err
		}
		store, where, err := a.readStore(c.Context())
		if err != nil {
			return err
		}
		defer store.Close() //nolint:errcheck // only read
		if len(given) == 2 {
			if verify {
				return box.Invalidf("verify", "checks a whole workspace; leave the conversation out")
			}
			return a.conversation(c, store, given[0], strings.ToLower(strings.ReplaceAll(given[1], "-", "")))
		}
		return a.histories(c, store, where, given[0], verify)
	}
	return c
}

// readStore opens the export store to read from it. One that is not there is
// not made.
func (a *Shared) readStore(ctx context.Context) (*exports.Store, string, error) {
	cfg, err := a.Config()
	if err != nil {
		return nil, "", err
	}
	if u, err := url.Parse(cfg.Exports); err == nil && u.Scheme == "file" {
		if _, err := os.Stat(u.Path); errors.Is(err, fs.ErrNotExist) {
			return nil, "", box.Errorf(box.ClassNotFound, "there is no export store at %s; name the one of the workers with BOXKEEPER_EXPORTS, --data or a configuration file", cfg.Exports)
		}
	}
	store, err := openStore(ctx, cfg, exports.Options{Now: a.env.Now}, nil)
	return store, cfg.Exports, err
}

func (a *Shared) histories(c *cobra.Command, store *exports.Store, where, workspace string, verify bool) error {
	ctx := c.Context()
	out := histories{Workspace: workspace, Exports: where, Conversations: []exports.ConversationEntry{}}
	closed, tombstone, damage := store.Closed(ctx, workspace)
	if closed {
		out.ClosedAt, out.Abandoned = tombstone.At, tombstone.Kind == exports.KindAbandoned
	}
	if closed || verify {
		damage = nil // a tombstone is enough; a verification reads the ledger itself
	}
	var found error
	if verify {
		var proven []exports.History
		proven, found = store.Histories(ctx, workspace)
		for _, h := range proven {
			out.Conversations = append(out.Conversations, h.ConversationEntry)
		}
		_, damage = store.Ledger(ctx, workspace)
	} else {
		var entries []exports.ConversationEntry
		entries, found = store.Conversations(ctx, workspace)
		out.Conversations = append(out.Conversations, entries...)
	}
	for _, err := range []error{found, damage} {
		if class := box.ClassOf(err); err != nil && class != box.ClassUnknown && class != box.ClassUnsupported {
			return err // could not read: nothing can be said
		}
	}
	damage = errors.Join(found, damage)
	if len(out.Conversations) == 0 && damage == nil && !closed {
		if entries, err := store.Ledger(ctx, workspace); err == nil && len(entries) == 0 {
			return box.Errorf(box.ClassNotFound, "the export store %s has nothing of workspace %s; look at the id, and at which store the workers use", where, workspace)
		}
	}
	for _, e := range out.Conversations {
		out.Bytes += e.Bytes
		out.Events += e.Events
	}
	out.Verified = verify && damage == nil
	if err := a.show(c, out, func(p *page) { a.historiesText(p, out, verify) }); err != nil {
		return err
	}
	if damage != nil {
		return box.Errorf(box.ClassUnknown, "the export store %s is damaged; what is listed could be read, the rest is in a backup if anywhere: %w", where, damage)
	}
	return nil
}

func (a *Shared) historiesText(p *page, h histories, verify bool) {
	if !h.ClosedAt.IsZero() {
		p.linef("Workspace %s was closed %s%s.", h.Workspace, a.moment(h.ClosedAt), map[bool]string{true: "; it was abandoned, so its box may still exist and cost money"}[h.Abandoned])
	}
	if len(h.Conversations) == 0 {
		p.linef("No conversation was exported.")
		return
	}
	rows := [][]string{{"CONVERSATION", "EVENTS", "SIZE", "SHA256"}}
	for _, e := range h.Conversations {
		rows = append(rows, []string{e.ID, stringOf(int64(e.Events)), size(e.Bytes), e.SHA256})
	}
	p.table(rows)
	word := "listed"
	if verify {
		word = "read back and checked"
	}
	p.linef("%s, %s, %s: %s.", plural(len(h.Conversations), "conversation"), plural(h.Events, "event"), size(h.Bytes), word)
}

// event is one event of a conversation, for programs.
type event struct {
	Index     int       `json:"index"`
	ID        string    `json:"id"`
	Kind      string    `json:"kind,omitzero"`
	Source    string    `json:"source,omitzero"`
	Timestamp time.Time `json:"timestamp,omitzero"`
	SizeBytes int64     `json:"size_bytes"`
	// Event is as it was exported; absent for one of more than 8 MiB.
	Event json.RawMessage `json:"event,omitempty"`
}

// conversation writes one history as it is read, never whole in memory.
func (a *Shared) conversation(c *cobra.Command, store *exports.Store, workspace, id string) error {
	if a.output == formatText {
		return store.WriteText(c.Context(), c.OutOrStdout(), workspace, id)
	}
	for e, err := range store.Events(c.Context(), workspace, id) {
		if err != nil {
			return err
		}
		view := event{Index: e.Index, ID: e.ID, Kind: e.Kind, Source: e.Source, Timestamp: e.Timestamp, SizeBytes: e.SizeBytes}
		if json.Valid(e.Raw) {
			view.Event = e.Raw
		}
		if err := writeJSONLine(c.OutOrStdout(), view); err != nil {
			return err
		}
	}
	return nil
}
