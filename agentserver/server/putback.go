package server

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"

	"github.com/openhands/boxkeeper/agentserver/putback"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

const (
	workspacePath = "/api/boxd/workspace/"
	restoreDir    = runDir + "/restore" // a workspace that is put back, until it is whole
)

var sumForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// withSum gives a handler its turn: one at a time, since each is about all of the
// workspace.
func (s *Server) withSum(sum string, next func(http.ResponseWriter, *http.Request, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !sumForm.MatchString(sum) {
			refuseField(w, "path", "sha256", "must be the SHA-256 of the tar, 64 digits", sum)
			return
		}
		leave, err := s.imports.lock(r.Context(), restoreDir)
		if err != nil {
			return // the caller has gone
		}
		defer leave()
		next(w, r, sum)
	}
}

// getWorkspace answers what was put back, or whether it could be.
func (s *Server) getWorkspace(w http.ResponseWriter, r *http.Request, sum string) {
	size, err := strconv.ParseInt(cmp.Or(r.URL.Query().Get("bytes"), "0"), 10, 64)
	if err != nil || size < 0 {
		refuseField(w, "query", "bytes", "must be the length of the tar", nil)
		return
	}
	restored, there, err := s.putback.Restored(r.Context(), sum, size)
	switch {
	case err != nil:
		refuseError(w, err)
	case !there:
		refuse(w, http.StatusNotFound, "this workspace is not in the box")
	default:
		writeJSON(w, http.StatusOK, restored)
	}
}

// putWorkspace puts an exported workspace into a box that has no work yet, from
// its tar, whose SHA-256 names it. It is there as a whole or not at all: what is
// cut off begins anew, and a repeat of what is there answers what it was, without
// reading the body.
func (s *Server) putWorkspace(w http.ResponseWriter, r *http.Request, sum string) {
	body := &sent{&patientReader{r.Body, http.NewResponseController(w), stalled}}
	restored, fresh, err := s.putback.Restore(r.Context(), sum, r.ContentLength, body)
	if err != nil {
		s.log.Warn("put a workspace back", "error", err)
		// Whoever still sends may not see an answer.
		_, _ = io.CopyN(io.Discard, body, maxUnread)
	}
	switch {
	case err == nil && fresh:
		s.log.Info("a workspace was put back", "files", restored.Files, "repositories", restored.Repositories, "notes", len(restored.Notes))
		writeJSON(w, http.StatusCreated, restored)
	case err == nil:
		writeJSON(w, http.StatusOK, restored)
	case box.ClassOf(err) == box.ClassUnknown:
		refuse(w, http.StatusUnprocessableEntity, err.Error())
	default:
		refuseError(w, err)
	}
}

// maxUnread is how much of a body is read for nothing.
const maxUnread = 64 << 20

// sent is a body whose faults are the sender's or the network's.
type sent struct{ from io.Reader }

func (s *sent) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = box.Errorf(box.ClassUnavailable, "receive the workspace: %w", err)
	}
	return n, err
}

func newPutback(root string, git *repo.Git) *putback.Box {
	return putback.New(putback.Options{Root: root, Dirs: []string{workspaceDir, worktreesDir}, Scratch: restoreDir, Git: git})
}

// continueRestore finishes what was cut off while a workspace was moved to its
// place, and clears what did not come so far.
func continueRestore(root string, log *slog.Logger) {
	if err := newPutback(root, nil).Continue(); err != nil {
		log.Warn("finish a restore that was cut off", "error", err)
	}
}
