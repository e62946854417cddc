package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// markerOf is where an agent-server that runs conversations in containers looks
// whether one is conversation-archived. Conversations of every layout have their
// marker there, so that there is one place to look.
func markerOf(id string) string { return path.Join(ControlDir, id+".archived.json") }

// Archived reports whether a conversation is conversation-archived, and since
// when, a zero time when the marker does not say. Whatever has the marker's name
// counts; an error means that it can't be told.
func Archived(root *os.Root, id string) (archived bool, at time.Time, err error) {
	if !IsID(id) {
		return false, time.Time{}, nil
	}
	_, err = root.Lstat(markerOf(id))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, time.Time{}, nil
	case err != nil:
		return false, time.Time{}, fmt.Errorf("look for the marker of an archived conversation: %w", err)
	}
	// It is there, which is what counts; what it says may not be known.
	text, _ := ReadFile(root, markerOf(id), maxMeta)
	// Releases of before the rename wrote the older name.
	var marker struct {
		ArchivedAt string `json:"archived_at"`
		RetiredAt  string `json:"retired_at"`
	}
	_ = json.Unmarshal(text, &marker)
	for _, value := range []string{marker.ArchivedAt, marker.RetiredAt} {
		if when, err := time.Parse(time.RFC3339Nano, value); err == nil {
			return true, when.UTC(), nil
		}
	}
	return true, time.Time{}, nil
}

// Archive writes the marker of a conversation, on the disk before it returns. It
// may be repeated; the first time stands. ClassExhausted means that the disk has
// no room for it, ClassInvalid that id is none.
func Archive(root *os.Root, id string, write Writer) error {
	if !IsID(id) {
		return box.Invalidf("conversation", "is no conversation id")
	}
	if archived, _, err := Archived(root, id); err != nil || archived {
		return err
	}
	if err := root.MkdirAll(ControlDir, 0o700); err != nil {
		return fault(err)
	}
	if ok, err := IsDir(root, ControlDir); err != nil || !ok {
		return box.Errorf(box.ClassFailedPrecondition, "%s is a link, or lies behind one; put a directory in its place", ControlDir)
	}
	text, err := json.Marshal(map[string]string{"archived_at": time.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00")})
	if err != nil {
		return err
	}
	return fault(write(markerOf(id), append(text, '\n')))
}

// Unarchive removes the marker of a conversation that was deleted, or whose
// archiving found that it is used. It may be repeated.
func Unarchive(root *os.Root, id string) error {
	if !IsID(id) {
		return box.Invalidf("conversation", "is no conversation id")
	}
	err := root.Remove(markerOf(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fault(err)
}

// fault gives an error of the disk its class.
func fault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return box.Errorf(box.ClassExhausted, "the disk of the box is full; free room first: %w", err)
	}
	return box.Errorf(box.ClassInternal, "keep that a conversation is archived: %w", err)
}
