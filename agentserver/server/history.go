package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// history reads the conversations of a box from the disk. It takes no lock and
// no lease and loads nothing into a server.
type history struct {
	dir      string // the conversations directory, the agent-server's own
	imported string // what was taken in, which no agent-server sees
}

// stored is one conversation as its directory shows it.
type stored struct {
	box.ConversationMark
	newest time.Time // of the last event, by its file; zero without events
	taken  bool      // it was taken in
}

var eventForm = regexp.MustCompile(`^event-(\d{5,12})-([0-9a-fA-F-]{8,64})\.json$`)

// maxState bounds base_state.json and meta.json; an event may be larger.
const maxState = 64 << 20

// list returns every conversation, by id. A directory that cannot be read is an
// error: a list with holes would pass for a smaller history.
func (h history) list() ([]stored, error) {
	out, err := listIn(h.dir)
	if err != nil {
		return nil, err
	}
	if !h.hasImported() {
		return out, nil
	}
	taken, err := listIn(h.imported)
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, one := range out {
		own[one.ID] = true
	}
	for _, one := range taken {
		if !own[one.ID] {
			one.taken = true
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b stored) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// hasImported reports whether anything was ever taken in.
func (h history) hasImported() bool {
	_, err := os.Lstat(h.imported)
	return !errors.Is(err, fs.ErrNotExist)
}

// isImported reports whether a conversation was taken in, and is read-only.
func (h history) isImported(id string) bool {
	info, err := os.Lstat(filepath.Join(h.imported, id)) //nolint:gosec // shortID let only 32 digits through
	if err != nil || !info.IsDir() {
		return false
	}
	_, err = os.Lstat(filepath.Join(h.dir, id)) //nolint:gosec // as above
	return errors.Is(err, fs.ErrNotExist)
}

func listIn(dir string) ([]stored, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the conversations: %w", err)
	}
	defer root.Close()
	entries, err := listDir(root, ".")
	if err != nil {
		return nil, fmt.Errorf("list the conversations: %w", err)
	}
	var out []stored
	for _, entry := range entries {
		if !ondisk.IsID(entry.name) {
			continue
		}
		// A link or a file under such a name is an error of look's: left out, the
		// conversation would be missing from an export that passes for complete.
		one, err := look(root, entry.name)
		if err != nil {
			if _, gone := root.Lstat(entry.name); errors.Is(gone, fs.ErrNotExist) {
				continue // deleted meanwhile
			}
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

func look(root *os.Root, id string) (stored, error) {
	one := stored{ConversationMark: box.ConversationMark{ID: id}}
	dir, err := openDir(root, id)
	if err != nil {
		return one, fmt.Errorf("open conversation %s: %w", id, err)
	}
	defer dir.Close()
	events, err := eventsOf(dir)
	if err != nil {
		return one, fmt.Errorf("count the events of %s: %w", id, err)
	}
	if one.Events = len(events); one.Events > 0 {
		info, err := dir.Lstat(path.Join("events", events[len(events)-1].file))
		if err != nil {
			return one, fmt.Errorf("read the last event of %s: %w", id, err)
		}
		one.newest = info.ModTime()
	}
	return one, nil
}

// open opens the directory of a conversation, wherever it is. The agent-server's
// own comes first.
func (h history) open(id string) (*os.Root, error) {
	for _, place := range []string{h.dir, h.imported} {
		if place == h.imported && !h.hasImported() {
			continue
		}
		root, err := os.OpenRoot(place)
		if err != nil {
			// Not that the conversation is not there: nobody can say.
			return nil, errors.New("open the conversations: " + err.Error())
		}
		dir, err := openDir(root, id)
		root.Close()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoDir) {
			continue
		}
		return dir, err
	}
	return nil, fs.ErrNotExist
}

// event is one file of a history.
type event struct {
	file, id string
	index    int
}

// eventsOf lists the events of the conversation in dir, in their order. One
// without the directory has none.
func eventsOf(dir *os.Root) ([]event, error) {
	entries, err := listDir(dir, "events")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []event
	for _, entry := range entries {
		parts := eventForm.FindStringSubmatch(entry.name)
		if parts == nil || !entry.kind.IsRegular() {
			continue
		}
		out = append(out, event{file: entry.name, id: parts[2], index: indexOf(entry.name)})
	}
	slices.SortFunc(out, func(a, b event) int {
		if a.index != b.index {
			return a.index - b.index
		}
		return strings.Compare(a.file, b.file)
	})
	return out, nil
}

// indexOf returns the number of an event's file, -1 for another file.
func indexOf(name string) int {
	parts := eventForm.FindStringSubmatch(name)
	if parts == nil {
		return -1
	}
	index, err := strconv.Atoi(parts[1])
	if err != nil {
		return -1
	}
	return index
}

// status returns the execution_status of a conversation; "unknown" when its
// state is not there or does not read.
func (h history) status(id string) string { return h.state(id, stateMark{}).status }

// stateMark is what the state of a conversation said, and of which file that was.
type stateMark struct {
	status  string
	changed time.Time // of base_state.json; zero when it is not there
	size    int64
	info    fs.FileInfo
}

// state reads the state of a conversation, unless it is still the file that was
// read before.
func (h history) state(id string, before stateMark) stateMark {
	unknown := stateMark{status: "unknown"}
	dir, err := h.open(id)
	if err != nil {
		return unknown
	}
	defer dir.Close()
	const name = "base_state.json"
	info, err := dir.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return unknown
	}
	if before.info != nil && os.SameFile(info, before.info) && info.ModTime().Equal(before.changed) && info.Size() == before.size {
		return before
	}
	mark := stateMark{status: "unknown", changed: info.ModTime(), size: info.Size(), info: info}
	text, err := ondisk.ReadFile(dir, name, maxState)
	var state struct {
		Status string `json:"execution_status"`
	}
	switch {
	case err != nil || json.Unmarshal(text, &state) != nil:
		mark.info = nil // it may be readable the next time
	case state.Status == "":
		mark.status = "idle" // what an agent-server takes a missing field for
	default:
		mark.status = state.Status
	}
	return mark
}

// maxDepth is deeper than any conversation directory is.
const maxDepth = 32

// errNoDir is a file, a link or something else in place of a directory.
var errNoDir = errors.New("no directory")

// openDir opens a directory in parent, and never what a link leads to.
func openDir(parent *os.Root, name string) (*os.Root, error) {
	info, err := parent.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is %w", path.Base(name), errNoDir)
	}
	dir, err := parent.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	opened, err := dir.Lstat(".")
	if err == nil && !os.SameFile(info, opened) {
		err = fmt.Errorf("%s changed while it was opened", path.Base(name))
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// named is what a directory says of an entry, and no more: a conversation may have
// a hundred thousand.
type named struct {
	name string
	kind fs.FileMode // the type alone
}

// listDir lists a directory in parent by name, without following a link in its
// place.
func listDir(parent *os.Root, name string) ([]named, error) {
	dir, err := openDir(parent, name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	file, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var out []named
	for err == nil {
		var some []fs.DirEntry
		some, err = file.ReadDir(1_000)
		for _, entry := range some {
			out = append(out, named{entry.Name(), entry.Type()})
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.SortFunc(out, func(a, b named) int { return strings.Compare(a.name, b.name) })
	return out, err
}
