package server

import (
	"net/http"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// takeTurn waits for a turn: one look and one export at a time, since each reads
// the whole workspace. A look does not wait for an export, whose reader may be
// slow. It reports false when the caller gave up.
func takeTurn(r *http.Request, turn chan struct{}) bool {
	select {
	case turn <- struct{}{}:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (s *Server) getUnsaved(w http.ResponseWriter, r *http.Request) {
	if !takeTurn(r, s.looks) {
		return
	}
	answer, err := s.work.Unsaved(r.Context())
	<-s.looks // before the answer is sent: its reader may be slow
	if err != nil {
		refuseError(w, err)
		return
	}
	if answer.Repositories == nil {
		answer.Repositories = []box.UnsavedRepository{}
	}
	writeJSON(w, http.StatusOK, answer)
}

// getExport streams. Once a byte has gone out a failure can only be told by
// cutting the answer off; a reader knows by the missing manifest as well.
func (s *Server) getExport(w http.ResponseWriter, r *http.Request) {
	if !takeTurn(r, s.exports) {
		return
	}
	defer func() { <-s.exports }()
	out, control := &begun{ResponseWriter: w}, http.NewResponseController(w)
	err := s.work.Export(r.Context(), &patientWriter{out, control, stalled})
	switch {
	case err == nil:
		_ = control.SetWriteDeadline(time.Time{}) // the connection may serve on
	case out.began:
		s.log.Warn("export the workspace", "error", err)
		panic(http.ErrAbortHandler)
	default:
		refuseError(w, err)
	}
}

// begun notes whether an answer has begun, and begins it with its headers.
type begun struct {
	http.ResponseWriter
	began bool
}

// stalled is how long a reader may take nothing, since it holds up whoever wants
// to look next.
const stalled = 5 * time.Minute

func (b *begun) Write(p []byte) (int, error) {
	if !b.began {
		b.began = true
		b.Header().Set("Content-Type", "application/zstd")
		b.Header().Set("Content-Disposition", `attachment; filename="workspace.tar.zst"`)
		b.Header().Set("Cache-Control", "no-store")
	}
	return b.ResponseWriter.Write(p)
}
