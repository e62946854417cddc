package cli

import (
	"bufio"
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
	// Abandoned says that nobody destroyed its box, and Left what is known of that.
	Abandoned bool   `json:"abandoned,omitzero"`
	Left      string `json:"left,omitzero"`
	// Verified says that every object was read back and proven just now.
	Verified      bool                        `json:"verified"`
	Conversations []exports.ConversationEntry `json:"conversations"`
	Bytes         int64                       `json:"bytes"`
	Events        int                         `json:"events"`
	// WorkspaceExport is the newest export of its files; absent when there is none.
	WorkspaceExport *exportedWorkspace `json:"workspace_export,omitempty"`
}

// historyQuery is what is asked of the export store.
type historyQuery struct {
	workspace, conversation string
	verify, files           bool
	from, count             int
	directory               string
	only                    []string
	zip, force              bool
	work, raw               bool // the workspace's files, not conversations
	epoch                   int
}

func (a *Shared) historyCommand() *cobra.Command {
	var want historyQuery
	c := &cobra.Command{
		Use: "history WORKSPACE [CONVERSATION]", Short: "Read what was exported, from the export store alone", Args: args("a workspace", 1, 2),
		Long: "Needs no Temporal, no worker and no box: histories stay readable after all of them, and the account at the provider, are gone. " +
			"Without a conversation it lists them; with one it writes it for reading, or with -o json one event per line. " +
			"Of a large export only what is shown is read.\n\n" +
			"--extract writes files: the events and states of one conversation, or of all, as they were exported, each below its id; with --zip the zips, with --only single files. It needs room for a conversation in the directory for temporary files. " +
			"Nothing is written outside of the directory, no link is made or followed, and what is there already is refused before anything is written.\n\n" +
			"--workspace is about the files of the workspace, of the newest export that holds any: alone it shows what there is and what the export lacks, --files lists it, --extract writes it into a new or empty directory, with --only a part. " +
			"Repositories come back with all that nobody pushed, their stashes and what was staged; that takes git on this machine, and nothing that a repository says is executed.",
		Example: "  boxkeeper box history mine --workspace\n  boxkeeper box history mine --workspace --extract ./back\n  boxkeeper box history mine --workspace --extract ./part --only workspace/project/src",
	}
	flags := c.Flags()
	flags.StringVar(&want.conversation, "conversation", "", "the same as naming it after the workspace")
	flags.BoolVar(&want.verify, "verify", false, "read every object back and prove length, sums and event counts")
	flags.IntVar(&want.from, "from", 0, "show events from this position on, the first is 0")
	flags.IntVar(&want.count, "count", 0, "show at most so many events (default all)")
	flags.BoolVar(&want.files, "files", false, "list the files of the conversation, or with -o json one per line")
	flags.StringVar(&want.directory, "extract", "", "write files below this directory, which is made when it is not there")
	flags.StringArrayVar(&want.only, "only", nil, "with --extract: this file of the conversation, or this file or directory of the workspace, as --files names it; may be given again")
	flags.BoolVar(&want.zip, "zip", false, "with --extract: the zip as it was exported")
	flags.BoolVar(&want.work, "workspace", false, "the files of the workspace instead of conversations")
	flags.IntVar(&want.epoch, "epoch", 0, "with --workspace: of this box of the workspace, the first is 1 (default the newest that holds files)")
	flags.BoolVar(&want.raw, "raw", false, "with --workspace --extract: repositories as bundles and patches, without git")
	flags.BoolVar(&want.force, "force", false, "with --extract: replace files that are there")
	c.RunE = func(c *cobra.Command, given []string) error {
		if err := want.read(c, given); err != nil {
			return err
		}
		store, where, err := a.readStore(c.Context())
		if err != nil {
			return err
		}
		defer store.Close() //nolint:errcheck // only read
		switch {
		case want.work:
			return a.workspaceFiles(c, store, where, want)
		case want.directory != "":
			return a.extract(c, store, where, want)
		case want.conversation != "":
			return a.conversation(c, store, where, want)
		}
		return a.histories(c, store, where, want.workspace, want.verify)
	}
	return c
}

// read takes the arguments and refuses what does not go together.
func (q *historyQuery) read(c *cobra.Command, given []string) error {
	q.workspace = given[0]
	if err := box.ValidateWorkspace(q.workspace); err != nil {
		return err
	}
	flags := c.Flags()
	if len(given) == 2 {
		if flags.Changed("conversation") {
			return box.Invalidf("conversation", "is named twice; leave one out")
		}
		q.conversation = given[1]
	}
	named := len(given) == 2 || flags.Changed("conversation")
	q.conversation = strings.ToLower(strings.ReplaceAll(q.conversation, "-", ""))
	extracts := flags.Changed("extract")
	part := flags.Changed("from") || flags.Changed("count")
	switch {
	case named && q.conversation == "":
		return box.Invalidf("conversation", "is empty; leave it out, or name one")
	case extracts && q.directory == "":
		return box.Invalidf("extract", "is empty; name a directory")
	case q.work && (named || part || q.zip || q.force):
		return box.Invalidf("workspace", "is about files, not conversations; leave the conversation, --from, --count, --zip and --force out")
	case q.work && extracts && (q.files || q.verify):
		return box.Invalidf("extract", "writes; leave --files and --verify out (what is extracted is proven in any case)")
	case q.work && q.files && q.verify:
		return box.Invalidf("files", "lists; leave --verify out")
	case !q.work && (flags.Changed("epoch") || q.raw):
		return box.Invalidf("workspace", "is needed for --epoch and --raw")
	case q.raw && (!extracts || len(q.only) > 0):
		return box.Invalidf("raw", "is for --extract of the whole workspace")
	case q.epoch < 0:
		return box.Invalidf("epoch", "is the number of a box, from 1 on")
	case !extracts && (q.zip || q.force || len(q.only) > 0):
		return box.Invalidf("extract", "is needed for --only, --zip and --force; name a directory")
	case q.work:
	case q.verify && (named || extracts):
		return box.Invalidf("verify", "checks a whole workspace; leave the conversation and --extract out (what is extracted is proven in any case)")
	case !named && (part || q.files || len(q.only) > 0):
		return box.Invalidf("conversation", "is needed for --from, --count, --files and --only; name one")
	case q.zip && len(q.only) > 0:
		return box.Invalidf("zip", "is the whole of a conversation; leave --only out")
	case part && (extracts || q.files):
		return box.Invalidf("from", "and --count choose what is shown, not files")
	case q.files && extracts:
		return box.Invalidf("files", "lists and --extract writes; use one of them")
	case q.from < 0:
		return box.Invalidf("from", "is the number of an event, from 0 on")
	case flags.Changed("count") && q.count < 1:
		return box.Invalidf("count", "is how many events are shown, from 1 on; leave it out for all")
	}
	return nil
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
		if out.Abandoned {
			out.Left = leftBy(tombstone)
		}
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
	files, _, broken := newestWorkspace(ctx, store, workspace, 0)
	if files != nil && verify {
		broken = errors.Join(broken, store.ProveWorkspace(ctx, workspace, files.receipt))
	}
	out.WorkspaceExport = files
	for _, err := range []error{found, damage, broken} {
		if class := box.ClassOf(err); err != nil && class != box.ClassUnknown && class != box.ClassUnsupported {
			return err // could not read: nothing can be said
		}
	}
	damage = errors.Join(found, damage, broken)
	if len(out.Conversations) == 0 && files == nil && damage == nil && !closed {
		if entries, err := store.Ledger(ctx, workspace); err == nil && len(entries) == 0 {
			return nothingOf(workspace, where)
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
		return damagedStore(where, damage)
	}
	return nil
}

// leftBy says what the end of a watch left behind. A tombstone that cannot be read
// says no more than that it is one.
func leftBy(tombstone exports.Entry) string {
	var last box.LedgerAbandonment
	_ = json.Unmarshal(tombstone.Data, &last)
	return last.LeavesBox()
}

// nothingOf says that a store has no export and no ledger of a workspace.
func nothingOf(workspace, where string) error {
	return box.Errorf(box.ClassNotFound, "the export store %s has nothing of workspace %s; look at the id, and at which store the workers use", where, workspace)
}

func damagedStore(where string, damage error) error {
	return box.Errorf(box.ClassUnknown, "the export store %s is damaged; what is listed, shown or written could be read, the rest is in a backup if anywhere: %w", where, damage)
}

func (a *Shared) historiesText(p *page, h histories, verify bool) {
	if !h.ClosedAt.IsZero() {
		p.linef("Workspace %s was closed %s%s.", h.Workspace, a.moment(h.ClosedAt), ifText("; it was abandoned: ", printable(h.Left)))
	}
	defer p.exportedWorkspace(a, h.WorkspaceExport, false)
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

// conversation writes one history, or a part of it, as it is read, never whole
// in memory. That it is not the best copy is said after what could be read.
func (a *Shared) conversation(c *cobra.Command, store *exports.Store, where string, want historyQuery) error {
	ctx := c.Context()
	from, err := store.OpenConversation(ctx, want.workspace, want.conversation)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // only read
	if events := from.History.Events; want.from > 0 && want.from >= events {
		note(c, "--from %d is beyond the end: the conversation has %s, and the first is number 0", want.from, plural(events, "event"))
	}
	switch {
	case want.files:
		err = a.files(c, from)
	case a.output == formatText:
		err = from.WriteText(ctx, c.OutOrStdout(), want.from, want.count)
	default:
		err = eventLines(c, from, want.from, want.count)
	}
	if err == nil && from.Damage() != nil {
		err = damagedStore(where, from.Damage())
	}
	return err
}

func eventLines(c *cobra.Command, from *exports.Conversation, first, count int) error {
	for e, err := range from.Events(c.Context(), first, count) {
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

// file is one file of a conversation, for programs.
type file struct {
	Name      string `json:"name"`
	SizeBytes int64  `json:"size_bytes"`
}

// files lists what --only takes: there can be a million.
func (a *Shared) files(c *cobra.Command, from *exports.Conversation) error {
	out := bufio.NewWriter(c.OutOrStdout())
	for f, err := range from.Files(c.Context()) {
		switch {
		case err != nil:
			return errors.Join(err, out.Flush())
		case f.Directory:
			continue
		case a.output == formatJSON:
			err = writeJSONLine(out, file{f.Name, f.SizeBytes})
		default:
			err = write(out, printable(f.Name)+"\t"+stringOf(f.SizeBytes)+"\n")
		}
		if err != nil {
			return err
		}
	}
	return out.Flush()
}
