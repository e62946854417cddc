package server

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/openhands/boxkeeper/agentserver"
)

// Bounds of a history that is taken in.
const (
	maxImport        = 64 << 30 // bytes, packed and unpacked
	maxImportEntries = 2 << 20
)

const (
	historyPath = "/api/boxd/history/"
	importDir   = runDir + "/import" // staged here, then moved in at once
)

// badHistory is a body that is not the history of this conversation.
type badHistory string

func (e badHistory) Error() string { return string(e) }

// putHistory takes in a conversation as an export holds it: the zip of a
// trajectory. It is read-only from then on, since nothing here can prompt it. A
// conversation is there as a whole or not at all, and one that is there is never
// written over.
func (s *Server) putHistory(w http.ResponseWriter, r *http.Request, id string) {
	if s.opts.Upstream != nil {
		refuse(w, http.StatusNotImplemented, "the agent-server in this box keeps its own history; one can be put only into a box that boxd serves alone")
		return
	}
	s.imports.Lock()
	defer s.imports.Unlock()
	events, err := s.takeIn(http.MaxBytesReader(w, r.Body, maxImport), id)
	_, bad := errors.AsType[badHistory](err)
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
		s.log.Info("a history was taken in", "conversation", id, "events", events)
		writeJSON(w, http.StatusCreated, agentserver.Imported{ID: id, Events: events})
	case errors.Is(err, fs.ErrExist):
		refuse(w, http.StatusConflict, "this conversation is in the box already; it is not written over")
	case bad:
		refuse(w, http.StatusUnprocessableEntity, err.Error())
	case large:
		refuse(w, http.StatusRequestEntityTooLarge, "the history is larger than this box takes in")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		refuse(w, http.StatusInsufficientStorage, "the disk of the box is full; free room first")
	default:
		refuse(w, http.StatusInternalServerError, err.Error())
	}
}

func (s *Server) takeIn(body io.Reader, id string) (events int, err error) {
	root, err := os.OpenRoot(s.opts.Root)
	if err != nil {
		return 0, fmt.Errorf("open the box's directory: %w", err)
	}
	defer root.Close()
	home := path.Join(conversationsDir, id)
	if _, err := root.Lstat(home); err == nil {
		return 0, fs.ErrExist
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("look for the conversation: %w", err)
	}
	// What an import that was cut off has left.
	if err := root.RemoveAll(importDir); err != nil {
		return 0, fmt.Errorf("clear the staging directory: %w", err)
	}
	if err := root.MkdirAll(importDir, 0o700); err != nil {
		return 0, fmt.Errorf("make the staging directory: %w", err)
	}
	defer func() { err = errors.Join(err, root.RemoveAll(importDir)) }()
	packed, err := root.OpenFile(path.Join(importDir, "history.zip"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, fmt.Errorf("make the staging file: %w", err)
	}
	defer packed.Close()
	size, err := io.Copy(packed, body)
	if err != nil {
		return 0, fmt.Errorf("receive the history: %w", err)
	}
	archive, err := zip.NewReader(packed, size)
	if err != nil {
		return 0, badHistory("the body is not a zip: " + err.Error())
	}
	if err := unpack(root, archive, id); err != nil {
		return 0, err
	}
	found, err := eventsOf(root, path.Join(importDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, badHistory("the zip does not hold conversation " + id)
	}
	if err != nil {
		return 0, err
	}
	syscall.Sync() // the files before the name that makes them count
	if err := root.Rename(path.Join(importDir, id), home); err != nil {
		return 0, fmt.Errorf("move the conversation in: %w", err)
	}
	return len(found), nil
}

// unpack writes the entries below the staging directory. Names that leave it,
// links and devices are refused; sums are checked by reading to the end.
func unpack(root *os.Root, archive *zip.Reader, id string) error {
	if len(archive.File) > maxImportEntries {
		return badHistory(fmt.Sprintf("the zip has more than %d entries", maxImportEntries))
	}
	left := int64(maxImport)
	for i, entry := range archive.File {
		name := strings.TrimSuffix(entry.Name, "/")
		mode := entry.Mode()
		switch {
		case !fs.ValidPath(name) || strings.ContainsAny(name, "\\\x00") || name != id && !strings.HasPrefix(name, id+"/"):
			return badHistory(fmt.Sprintf("entry %d of the zip is not a file of conversation %s", i, id))
		case strings.Count(name, "/") > maxDepth:
			return badHistory(fmt.Sprintf("entry %d of the zip is nested too deep", i))
		case !mode.IsRegular() && !mode.IsDir():
			return badHistory(fmt.Sprintf("entry %d of the zip is a link or a device", i))
		case name == id && !mode.IsDir():
			return badHistory("the conversation is a file in the zip")
		}
		to := path.Join(importDir, name)
		if mode.IsDir() {
			if err := root.MkdirAll(to, 0o700); err != nil {
				return err
			}
			continue
		}
		if err := root.MkdirAll(path.Dir(to), 0o700); err != nil {
			return err
		}
		n, err := unpackFile(root, entry, to, left)
		if err != nil {
			return fmt.Errorf("entry %d of the zip: %w", i, err)
		}
		left -= n
	}
	return nil
}

func unpackFile(root *os.Root, entry *zip.File, to string, most int64) (int64, error) {
	from, err := entry.Open()
	if err != nil {
		return 0, badHistory(err.Error())
	}
	defer from.Close()
	file, err := root.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return 0, badHistory("its name is there twice")
	}
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(file, io.LimitReader(from, most+1))
	closed := file.Close()
	switch {
	case errors.Is(err, zip.ErrChecksum), errors.Is(err, zip.ErrFormat), errors.Is(err, io.ErrUnexpectedEOF):
		return n, badHistory("it is damaged: " + err.Error())
	case n > most:
		return n, badHistory("the zip unpacks to more than this box takes in")
	}
	return n, errors.Join(err, closed)
}
