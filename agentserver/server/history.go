package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// history reads the conversations of a box from the disk. It takes no lock and
// no lease and loads nothing into a server.
type history struct {
	dir string // the conversations directory
}

// stored is one conversation as its directory shows it.
type stored struct {
	box.ConversationMark
	newest time.Time // of the last event, by its file; zero without events
}

var (
	idForm    = regexp.MustCompile(`^[0-9a-f]{32}$`)
	eventForm = regexp.MustCompile(`^event-(\d{5,12})-([0-9a-fA-F-]{8,64})\.json$`)
)

// maxState bounds base_state.json and meta.json; an event may be larger.
const maxState = 64 << 20

// list returns every conversation, by id. A directory that cannot be read is an
// error: a list with holes would pass for a smaller history.
func (h history) list() ([]stored, error) {
	root, err := os.OpenRoot(h.dir)
	if err != nil {
		return nil, fmt.Errorf("open the conversations: %w", err)
	}
	defer root.Close()
	entries, err := readDir(root, ".")
	if err != nil {
		return nil, fmt.Errorf("list the conversations: %w", err)
	}
	var out []stored
	for _, entry := range entries {
		if !entry.IsDir() || !idForm.MatchString(entry.Name()) {
			continue
		}
		events, err := eventsOf(root, entry.Name())
		if err != nil {
			if _, gone := root.Lstat(entry.Name()); errors.Is(gone, fs.ErrNotExist) {
				continue // deleted meanwhile
			}
			return nil, fmt.Errorf("count the events of %s: %w", entry.Name(), err)
		}
		one := stored{ConversationMark: box.ConversationMark{ID: entry.Name(), Events: len(events)}}
		if len(events) > 0 {
			info, err := root.Lstat(path.Join(entry.Name(), "events", events[len(events)-1].file))
			if err != nil {
				return nil, fmt.Errorf("read the last event of %s: %w", entry.Name(), err)
			}
			one.newest = info.ModTime()
		}
		out = append(out, one)
	}
	return out, nil
}

// event is one file of a history.
type event struct {
	file, id string
	index    int
}

// eventsOf lists the events of a conversation in their order. A conversation
// without the directory has none.
func eventsOf(root *os.Root, id string) ([]event, error) {
	entries, err := readDir(root, path.Join(id, "events"))
	if errors.Is(err, fs.ErrNotExist) {
		if info, err := root.Lstat(id); err != nil || !info.IsDir() {
			return nil, fs.ErrNotExist
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []event
	for _, entry := range entries {
		parts := eventForm.FindStringSubmatch(entry.Name())
		if parts == nil || !entry.Type().IsRegular() {
			continue
		}
		index, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, err
		}
		out = append(out, event{file: entry.Name(), id: parts[2], index: index})
	}
	slices.SortFunc(out, func(a, b event) int {
		if a.index != b.index {
			return a.index - b.index
		}
		return strings.Compare(a.file, b.file)
	})
	return out, nil
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
	root, err := os.OpenRoot(h.dir)
	if err != nil {
		return unknown
	}
	defer root.Close()
	name := path.Join(id, "base_state.json")
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return unknown
	}
	if before.info != nil && os.SameFile(info, before.info) && info.ModTime().Equal(before.changed) && info.Size() == before.size {
		return before
	}
	mark := stateMark{status: "unknown", changed: info.ModTime(), size: info.Size(), info: info}
	text, err := readFile(root, name, maxState)
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

// readDir lists a directory below root by name, without following a link at its
// end.
func readDir(root *os.Root, name string) ([]fs.DirEntry, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is no directory", path.Base(name))
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := sameFile(info, file); err != nil {
		return nil, err
	}
	entries, err := file.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// openFile opens a regular file below root and refuses everything else: a link,
// a pipe that would never answer, a device.
func openFile(root *os.Root, name string) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path.Base(name))
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := sameFile(info, file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// sameFile fails when what was opened is not what was looked at.
func sameFile(info fs.FileInfo, file *os.File) error {
	opened, err := file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, opened) {
		// Files are replaced by renaming a new one over them; then the next try
		// finds the new one.
		return fmt.Errorf("%s changed while it was opened: %w", path.Base(file.Name()), errChanged)
	}
	return nil
}

var errChanged = errors.New("read it again")

// readFile reads a regular file whole. One that is being replaced is tried
// again.
func readFile(root *os.Root, name string, most int64) ([]byte, error) {
	for try := 0; ; try++ {
		file, err := openFile(root, name)
		if errors.Is(err, errChanged) && try < 10 {
			continue
		}
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(io.LimitReader(file, most+1))
		file.Close()
		if err == nil && int64(len(text)) > most {
			err = fmt.Errorf("%s is larger than %d bytes", path.Base(name), most)
		}
		return text, err
	}
}
