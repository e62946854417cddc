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
	"time"

	"golang.org/x/sys/unix"

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
// trajectory. It is read-only from then on: it lies where no agent-server looks,
// and is served from there. A conversation is there as a whole or not at all,
// and one that is there is never written over.
func (s *Server) putHistory(w http.ResponseWriter, r *http.Request, id string) {
	leave, err := s.imports.lock(r.Context(), id)
	if err != nil {
		return // the caller has gone
	}
	defer leave()
	body := &patientReader{http.MaxBytesReader(w, r.Body, maxImport), http.NewResponseController(w), s.patience}
	events, err := s.takeIn(body, id)
	_, bad := errors.AsType[badHistory](err)
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
		s.log.Info("a history was taken in", "conversation", id, "events", events)
		writeJSON(w, http.StatusCreated, agentserver.Imported{ID: id, Events: events})
	case errors.Is(err, errThere):
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

// patientReader gives every read its time: the sender holds the turn of its
// conversation.
type patientReader struct {
	r        io.Reader
	control  *http.ResponseController
	patience time.Duration
}

func (p *patientReader) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(p.patience)) // a reader without one waits
	n, err := p.r.Read(b)
	if err != nil {
		_ = p.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (s *Server) takeIn(body io.Reader, id string) (events int, err error) {
	root, err := os.OpenRoot(s.opts.Root)
	if err != nil {
		return 0, fmt.Errorf("open the box's directory: %w", err)
	}
	defer root.Close()
	if err := absent(root, id); err != nil {
		return 0, err
	}
	staging := path.Join(importDir, id)
	// What an import that was cut off has left.
	if err := root.RemoveAll(staging); err != nil {
		return 0, fmt.Errorf("clear the staging directory: %w", err)
	}
	if err := root.MkdirAll(staging, 0o700); err != nil {
		return 0, fmt.Errorf("make the staging directory: %w", err)
	}
	defer func() { err = errors.Join(err, root.RemoveAll(staging)) }()
	packed, err := root.OpenFile(path.Join(staging, "history.zip"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
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
	if err := s.hasRoom(archive); err != nil {
		return 0, err
	}
	if err := unpack(root, archive, staging, id); err != nil {
		return 0, err
	}
	taken, err := root.OpenRoot(path.Join(staging, id))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, badHistory("the zip does not hold conversation " + id)
	}
	if err != nil {
		return 0, err
	}
	defer taken.Close()
	found, err := eventsOf(taken)
	if err != nil {
		return 0, err
	}
	if err := root.Mkdir(importedDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, fmt.Errorf("make the directory of what was taken in: %w", err)
	}
	syscall.Sync() // the files before the name that makes them count
	// Somebody may have made it meanwhile, who knows nothing of this lock.
	if err := absent(root, id); err != nil {
		return 0, err
	}
	if err := root.Rename(path.Join(staging, id), path.Join(importedDir, id)); err != nil {
		return 0, fmt.Errorf("move the conversation in: %w", err)
	}
	return len(found), nil
}

var errThere = errors.New("the conversation is in the box")

// absent returns errThere when a conversation is in the box.
func absent(root *os.Root, id string) error {
	for _, place := range []string{conversationsDir, importedDir} {
		if _, err := root.Lstat(path.Join(place, id)); err == nil {
			return errThere
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for the conversation: %w", err)
		}
	}
	return nil
}

// hasRoom refuses an archive that says that it unpacks to more than is free: it
// would take the last of it from the agent-server before it fails.
func (s *Server) hasRoom(archive *zip.Reader) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(s.opts.Root, &disk); err != nil {
		return fmt.Errorf("ask for the free space: %w", err)
	}
	left := disk.Bavail * uint64(disk.Bsize) //nolint:gosec // no size is negative
	for _, entry := range archive.File {
		if entry.UncompressedSize64 > left {
			return fmt.Errorf("the history unpacks to more than is free: %w", syscall.ENOSPC)
		}
		left -= entry.UncompressedSize64
	}
	return nil
}

// unpack writes the entries below the staging directory. Names that leave it,
// links and devices are refused; sums are checked by reading to the end.
func unpack(root *os.Root, archive *zip.Reader, staging, id string) error {
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
		to := path.Join(staging, name)
		if mode.IsDir() {
			if err := makeDir(root, to); err != nil {
				return err
			}
			continue
		}
		if err := makeDir(root, path.Dir(to)); err != nil {
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

func makeDir(root *os.Root, name string) error {
	err := root.MkdirAll(name, 0o700)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTDIR) {
		return badHistory("a directory in the zip is a file as well")
	}
	return err
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
	says := entry.UncompressedSize64
	if says > uint64(most) { //nolint:gosec // it is not negative
		file.Close()
		return 0, badHistory("the zip unpacks to more than this box takes in")
	}
	n, err := io.Copy(file, io.LimitReader(from, int64(says)+1)) //nolint:gosec // no more than most
	closed := file.Close()
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return n, err
	case n > int64(says): //nolint:gosec // no more than most
		return n, badHistory("it is larger than it says")
	case errors.Is(err, zip.ErrChecksum), errors.Is(err, zip.ErrFormat), errors.Is(err, io.ErrUnexpectedEOF):
		return n, badHistory("it is damaged: " + err.Error())
	}
	return n, errors.Join(err, closed)
}
