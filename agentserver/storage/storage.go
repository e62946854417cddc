package storage

import (
	"cmp"
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

	"github.com/openhands/boxkeeper/agentserver/reclaim"
)

// The directories of a box that layouts know, below its root.
const (
	ConversationsDir = "conversations"
	ControlDir       = "persistence/runtime-control"
	DataDir          = "persistence/runtime-data"
	WorkspaceDir     = "workspace"
	WorktreesDir     = "worktrees"
)

// Writer replaces a file below a box's root, whole and on the disk before it
// returns, such as [reclaim.Reclaimer.WriteFile], which has room set aside for a
// full disk.
type Writer func(name string, content []byte) error

var (
	idForm    = regexp.MustCompile(`^[0-9a-f]{32}$`)
	eventForm = regexp.MustCompile(`^event-(\d{5,12})-[0-9a-fA-F-]{8,64}\.json$`)
)

// IsID reports whether name is a conversation's id as directories carry it.
func IsID(name string) bool { return idForm.MatchString(name) }

// ParseID returns the 32 digits of an id in any form that an agent-server takes
// for one: with or without dashes, in braces, as a URN, in either letter case.
func ParseID(name string) (id string, ok bool) {
	name = strings.TrimPrefix(strings.ToLower(name), "urn:uuid:")
	if inner, ok := strings.CutPrefix(name, "{"); ok {
		name = strings.TrimSuffix(inner, "}")
	}
	name = strings.ReplaceAll(name, "-", "")
	return name, IsID(name)
}

// Dashed returns 32 digits as a UUID is written, and any other text as it is.
func Dashed(id string) string {
	if len(id) != 32 {
		return id
	}
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
}

// IsDir reports whether name below root is a directory, and neither a link nor
// behind one. An error means that it can't be told.
func IsDir(root *os.Root, name string) (bool, error) {
	steps := strings.Split(path.Clean(name), "/")
	for i := range steps {
		info, err := root.Lstat(path.Join(steps[:i+1]...))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return false, nil
		case err != nil:
			return false, err
		case !info.IsDir():
			return false, nil
		}
	}
	return true, nil
}

// List returns the names in a directory below root, in their order. One that is
// missing, is a link or lies behind one has none.
func List(root *os.Root, name string) ([]fs.DirEntry, error) {
	if ok, err := IsDir(root, name); err != nil || !ok {
		return nil, err
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	entries, err := file.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// OpenFile opens a plain file below root and refuses everything else: a link, a
// pipe that would never answer, a device. Files are replaced by renaming a new one
// over them, so that one which changes meanwhile is tried again.
func OpenFile(root *os.Root, name string) (*os.File, error) {
	for try := 0; ; try++ {
		file, err := openFile(root, name)
		if errors.Is(err, errChanged) && try < 10 {
			continue
		}
		return file, err
	}
}

var errChanged = errors.New("read it again")

func openFile(root *os.Root, name string) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no plain file", path.Base(name))
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	opened, err := file.Stat()
	if err == nil && !os.SameFile(info, opened) {
		err = fmt.Errorf("%s changed while it was opened: %w", path.Base(name), errChanged)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ReadFile reads a file that [OpenFile] opens whole, up to a bound in bytes.
func ReadFile(root *os.Root, name string, most int64) ([]byte, error) {
	file, err := OpenFile(root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path.Base(name), most)
	}
	return text, err
}

// maxMeta bounds what is read of a meta.json or a manifest, in bytes.
const maxMeta = 16 << 20

// LastActive returns when a conversation was used last, by what its history
// shows, and the name of what showed it: of base_state.json, the newest event
// and the time in meta.json the latest. The lease does not count, which moves
// while a conversation is merely loaded. A zero time means unknown. An error
// means that something is there and can't be read.
func LastActive(root *os.Root, id string) (at time.Time, from string, err error) {
	dir := path.Join(ConversationsDir, id)
	newer := func(when time.Time, name string) {
		if when.After(at) {
			at, from = when.UTC(), name
		}
	}
	stat := func(name, label string) error {
		info, err := root.Lstat(path.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			newer(info.ModTime(), label)
		}
		return err
	}
	if err := stat("base_state.json", "base_state.json"); err != nil {
		return time.Time{}, "", err
	}
	entries, err := List(root, path.Join(dir, "events"))
	if err != nil {
		return time.Time{}, "", err
	}
	newest, index := "", -1
	for _, entry := range entries {
		if parts := eventForm.FindStringSubmatch(entry.Name()); parts != nil {
			if n, err := strconv.Atoi(parts[1]); err == nil && n >= index {
				newest, index = entry.Name(), n
			}
		}
	}
	if newest != "" {
		if err := stat(path.Join("events", newest), "newest event"); err != nil {
			return time.Time{}, "", err
		}
	}
	text, err := ReadFile(root, path.Join(dir, "meta.json"), maxMeta)
	if errors.Is(err, fs.ErrNotExist) {
		return at, from, nil
	}
	if err != nil {
		return time.Time{}, "", err
	}
	var meta struct {
		UpdatedAt time.Time `json:"updated_at"`
	}
	if json.Unmarshal(text, &meta) == nil {
		newer(meta.UpdatedAt, "meta.json")
	}
	return at, from, nil
}

// Exists reports whether there is a conversation of this id: a directory with
// what an agent-server writes into a new one.
func Exists(root *os.Root, id string) (bool, error) {
	dir := path.Join(ConversationsDir, id)
	if ok, err := IsDir(root, dir); err != nil || !ok {
		return false, err
	}
	for _, name := range []string{"meta.json", "base_state.json"} {
		if _, err := root.Lstat(path.Join(dir, name)); err == nil {
			return true, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// SortPlaces puts the longest unused place first; those whose last use is not
// known come last.
func SortPlaces(places []reclaim.Place) {
	slices.SortStableFunc(places, func(a, b reclaim.Place) int {
		switch {
		case a.LastActive.IsZero() != b.LastActive.IsZero():
			if a.LastActive.IsZero() {
				return 1
			}
			return -1
		case !a.LastActive.Equal(b.LastActive):
			return a.LastActive.Compare(b.LastActive)
		}
		return cmp.Compare(a.Conversation, b.Conversation)
	})
}

// Orphan is something that lies where a layout keeps conversations, and belongs
// to none.
type Orphan struct {
	Path         string // below the box's root
	Conversation string // its id, when its name is one
	Reason       string
	// Forgotten says that it was a conversation's once, of which nothing else is
	// left; without it nothing is known of what it is, and it is never taken.
	Forgotten bool
}
