package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/openhands/boxkeeper/agentserver/retention"
	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/dockerruntime"
	"github.com/openhands/boxkeeper/box"
)

// create makes a conversation. A field "retention" is ours: it is kept before
// the agent-server hears of the conversation, so that nothing is made whose rule
// the disk has no room for, and is dropped when none is made. One that is there
// keeps the rule that it has.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(r) {
		s.pass(w, r) // the agent-server refuses it, and nobody keeps its body
		return
	}
	ours := s.ours(w, r)
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCreate))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		refuse(ours, http.StatusRequestEntityTooLarge, "the body is larger than this box takes")
		return
	}
	if err != nil {
		refuse(ours, http.StatusBadRequest, "the body could not be read")
		return
	}
	var fields map[string]json.RawMessage
	var name string
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		if readElsewhere(text) {
			refuseAs(ours, fault{Type: "json_invalid", Loc: []any{"body", 0}, Msg: "JSON decode error", Input: map[string]any{}})
			return
		}
		s.pass(w, withBody(r, text))
		return
	}
	_ = json.Unmarshal(fields["conversation_id"], &name) // another type is the agent-server's to refuse
	id, known := ondisk.ParseID(name)
	if known && s.refuseID(ours, id) {
		return
	}
	raw, given := fields["retention"]
	if !given || s.opts.Keeping == nil {
		s.pass(w, withBody(r, text))
		return
	}
	rule, ok := s.ruleOf(ours, raw)
	if !ok {
		return
	}
	delete(fields, "retention")
	if !known && (name == "" || string(fields["conversation_id"]) == "null") {
		id = newID()
		fields["conversation_id"] = json.RawMessage(`"` + ondisk.Dashed(id) + `"`)
	}
	if text, err = json.Marshal(fields); err != nil {
		refuse(ours, http.StatusInternalServerError, err.Error())
		return
	}
	s.createWith(w, withBody(r, text), id, rule)
}

// readElsewhere reports whether the agent-server may read a text that is no JSON
// to us: in another encoding, behind a mark of one, or with numbers that are none.
// It could then name a conversation that we do not see.
func readElsewhere(text []byte) bool {
	return bytes.IndexByte(text, 0) >= 0 || bytes.HasPrefix(text, []byte("\xef\xbb\xbf")) ||
		bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Infinity"))
}

// refuseID refuses to make a conversation of an id that is archived, or whose
// former owner's files are still in the box.
func (s *Server) refuseID(w http.ResponseWriter, id string) bool {
	root, err := os.OpenRoot(s.opts.Root)
	var archived, left bool
	if err == nil {
		defer root.Close()
		archived, _, err = ondisk.Archived(root, id)
	}
	if err == nil && archived {
		// A kill between the two leaves a marker without its conversation.
		var there bool
		if there, err = ondisk.Exists(root, id); err == nil && !there {
			s.forget(id)
			archived, _, err = ondisk.Archived(root, id)
		}
	}
	if err == nil {
		left, err = dockerruntime.Left(root, id)
	}
	switch {
	case err != nil:
		refuse(w, http.StatusServiceUnavailable, "cannot tell what the box holds of this conversation: "+err.Error())
	case archived:
		refuse(w, http.StatusGone, archivedText)
	case left:
		refuse(w, http.StatusConflict, "a deleted conversation of this id left files in the box; use another id, or reclaim its runtime first")
	}
	return err != nil || archived || left
}

// ruleOf reads the rule in a request that makes a conversation, or answers it.
func (s *Server) ruleOf(w http.ResponseWriter, raw json.RawMessage) (rule box.Retention, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if string(raw) == "null" {
		return box.Retention{Mode: box.RetentionDefault}, true
	}
	if err := decoder.Decode(&rule); err != nil {
		refuseField(w, "body", "retention", "is an object with \"mode\" and, for the mode \"days\", a number \"days\"", nil)
		return box.Retention{}, false
	}
	if err := retention.Check(rule); err != nil {
		field, message := "retention", err.Error()
		if said, ok := errors.AsType[*box.Error](err); ok {
			field, message = "retention."+said.Field, said.Message
		}
		refuseField(w, "body", field, message, nil)
		return box.Retention{}, false
	}
	return rule, !s.refuseOff(w, rule)
}

// createWith makes a conversation with a rule of its own.
func (s *Server) createWith(w http.ResponseWriter, r *http.Request, id string, rule box.Retention) {
	leave, err := s.creates.lock(r.Context(), id)
	if err != nil {
		return // the caller has gone
	}
	defer leave()
	there, err := s.exists(id)
	if err == nil && !there {
		err = s.opts.Keeping.Rules.Set(id, rule)
	}
	if err != nil {
		refuseError(s.ours(w, r), err)
		return
	}
	defer func() {
		// Also when the answer broke off: only the disk tells whether it was made.
		if now, err := s.exists(id); !there && err == nil && !now {
			if err := s.opts.Keeping.Rules.Drop(id); err != nil {
				s.log.Warn("drop the retention of a conversation that was not made", "conversation", id, "error", err)
			}
			return
		}
		s.opts.Keeping.Keeper.Wake()
	}()
	s.pass(w, r)
}

func (s *Server) exists(id string) (bool, error) {
	root, err := os.OpenRoot(s.opts.Root)
	if err != nil {
		return false, err
	}
	defer root.Close()
	return ondisk.Exists(root, id)
}

// forget drops what we keep of a conversation once its history has gone. An
// agent-server may say that it deleted one and leave it there.
func (s *Server) forget(id string) {
	there, err := s.exists(id)
	if err != nil || there {
		return
	}
	root, err := os.OpenRoot(s.opts.Root)
	if err == nil {
		defer root.Close()
		err = ondisk.Unarchive(root, id)
	}
	if s.opts.Keeping != nil {
		err = errors.Join(err, s.opts.Keeping.Rules.Drop(id))
	}
	if err != nil {
		s.log.Warn("forget a conversation that was deleted", "conversation", id, "error", err)
	}
}

// stopped archives a conversation whose runtime was stopped, when its rule says
// so. Its container may take a moment to end.
func (s *Server) stopped(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBudget)
	defer cancel()
	tick := time.NewTicker(stopPause)
	defer tick.Stop()
	for {
		out, due, err := s.opts.Keeping.Keeper.Stopped(ctx, id)
		switch {
		case err != nil:
			s.log.Warn("archive a conversation whose runtime was stopped", "conversation", id, "error", err)
			return
		case !due || out.Archived:
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return // a later pass tries again
		}
	}
}

// withBody is a request with another body.
func withBody(r *http.Request, text []byte) *http.Request {
	out := r.Clone(r.Context())
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(text)), int64(len(text)), nil
	out.Header.Del("Expect") // it is here, and its sender was told to go on
	return out
}

func newID() string {
	var raw [16]byte
	rand.Read(raw[:])
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	return hex.EncodeToString(raw[:])
}
