package digitaloceantest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

// maxStream is what exec sends of each stream, in bytes [command-line client].
const maxStream = 1 << 20

// exec runs a command by the hook of the test, outside of the lock.
func (c *call) exec() answer {
	var in ExecRequest
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	switch {
	case len(in.Argv) == 0:
		return refuse(http.StatusBadRequest, "argv is required")
	case c.s.opts.Exec == nil:
		return refuse(http.StatusNotImplemented, "exec is not supported here")
	case !ses.runs(c.now):
		return refuse(http.StatusConflict, "session is not running")
	}
	if ans, blocked := c.gate(); blocked {
		return ans
	}
	ses.use(c.now, c.s.opts.NoActivity.Exec)
	var result ExecResult
	d := ses.describe()
	c.s.unlocked(func() {
		ctx := c.r.Context()
		if in.TimeoutSeconds > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(in.TimeoutSeconds)*time.Second)
			defer cancel()
		}
		result = c.s.opts.Exec(ctx, d, in)
	})
	if c.s.settle(); !ses.runs(c.s.time()) {
		return refuse(http.StatusConflict, "session is not running")
	}
	result.Stdout, result.Stderr = cut(result.Stdout), cut(result.Stderr)
	return ok(result)
}

func cut(text string) string { return text[:min(len(text), maxStream)] }

// input starts a run, and wakes a session that is paused [docs 13 Nov 2026].
func (c *call) input() answer {
	var in struct {
		Text      string `json:"text"`
		SourceRaw []byte `json:"source_raw"`
	}
	ses, ans := c.rouse("input")
	if ses == nil {
		return ans
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	if strings.TrimSpace(in.Text) == "" {
		return refuse(http.StatusBadRequest, "text is required")
	}
	ses.run(c.now, c.s.opts.Turn)
	return ok(map[string]any{"run_id": c.s.newID("run")})
}

// resolve decides what an agent waits for; it wakes too.
func (c *call) resolve() answer {
	ses, ans := c.rouse("hitl")
	if ses == nil {
		return ans
	}
	ses.run(c.now, c.s.opts.Turn)
	return done()
}

// rouse finds a session that takes input, and wakes it.
func (c *call) rouse(cause string) (*session, answer) {
	ses, ans := c.find()
	if ses == nil {
		return nil, ans
	}
	if ans, blocked := c.gate(); blocked {
		return nil, ans
	}
	switch ses.status {
	case ready, detached:
	case paused:
		ses.wake(c.s, c.now, cause)
	default:
		return nil, refuse(http.StatusConflict, "run is terminal or the session is not running")
	}
	ses.use(c.now, c.s.opts.NoActivity.Input)
	return ses, answer{}
}

// run starts a turn, which keeps the session from being idle.
func (ses *session) run(now time.Time, length time.Duration) {
	ses.lastEvent = now // run.started
	ses.turnEnds = now.Add(length)
}

// footer ends a download: the client verifies it and takes it off.
func footer(payload []byte) string {
	sum := sha256.Sum256(payload)
	return "DOWSSHA1" + hex.EncodeToString(sum[:]) + "\n"
}

// download sends a file below /workspace, or an archive of a directory.
func (c *call) download() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	query := c.r.URL.Query()
	archive := query.Get("as_archive") == "true"
	payload, ans, fine := c.payload(ses, query.Get("path"), archive)
	if !fine {
		return ans
	}
	return answer{
		status: http.StatusOK, raw: append(payload, footer(payload)...),
		header: http.Header{
			"Content-Type":           {"application/octet-stream"},
			"X-Workspace-Is-Archive": {strconv.FormatBool(archive)},
			"X-Workspace-Size-Bytes": {strconv.Itoa(len(payload))},
		},
	}
}

// payload reads what is to be sent.
func (c *call) payload(ses *session, name string, archive bool) ([]byte, answer, bool) {
	switch {
	case c.s.opts.Files == nil:
		return nil, refuse(http.StatusNotImplemented, "downloads are not supported here"), false
	case name == "":
		return nil, refuse(http.StatusBadRequest, "path is required"), false
	case !ses.runs(c.now):
		return nil, refuse(http.StatusConflict, "session is not running"), false
	}
	below := path.Clean(strings.TrimPrefix(strings.TrimPrefix(name, "/workspace"), "/"))
	if path.IsAbs(below) || !fs.ValidPath(below) {
		return nil, refuse(http.StatusForbidden, "path leaves the workspace"), false
	}
	tree := c.s.opts.Files(ses.describe())
	var payload []byte
	var err error
	if archive {
		payload, err = packed(tree, below)
	} else {
		payload, err = fs.ReadFile(tree, below)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse(http.StatusNotFound, "no such file"), false
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "path is not a file that can be read"), false
	}
	return payload, answer{}, true
}

func packed(tree fs.FS, dir string) ([]byte, error) {
	below, err := fs.Sub(tree, dir)
	if err != nil {
		return nil, err
	}
	if _, err := fs.Stat(tree, dir); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(below); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// transfer is a staged download. Uploads are left out.
type transfer struct {
	id, url string
	session *session
	payload []byte
	polled  bool
}

// spaceHost is where staged downloads are fetched, by whoever has the URL.
const spaceHost = "harness-transfers.nyc3.digitaloceanspaces.com"

// transfer stages a download.
func (c *call) transfer() answer {
	var in struct {
		Direction string `json:"direction"`
		Path      string `json:"path"`
		IsArchive bool   `json:"is_archive"`
		AsArchive bool   `json:"as_archive"`
		SizeBytes int64  `json:"size_bytes"`
		SHA256    string `json:"sha256"`
	}
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	if ans, ok := c.decode(&in); !ok {
		return ans
	}
	if in.Direction != "download" {
		return refuse(http.StatusNotImplemented, "only downloads are staged")
	}
	payload, ans, fine := c.payload(ses, in.Path, in.AsArchive)
	if !fine {
		return ans
	}
	t := &transfer{id: c.s.newID("transfer"), session: ses, payload: payload}
	t.url = "https://" + spaceHost + "/" + t.id + "?X-Amz-Signature=" + t.id[24:]
	c.s.secrets[t.id[24:]] = true
	c.s.transfers[t.id] = t
	return answer{status: http.StatusAccepted, body: t.json()}
}

func (t *transfer) json() map[string]any {
	out := map[string]any{"transfer_id": t.id, "direction": "download", "status": "pending"}
	if t.polled {
		sum := sha256.Sum256(t.payload)
		out["status"], out["download_url"] = "completed", t.url
		out["sha256"], out["size_bytes"] = hex.EncodeToString(sum[:]), len(t.payload)
	}
	return out
}

// transferGet tells how far it is: pending first, completed then.
func (c *call) transferGet() answer {
	ses, ans := c.find()
	if ses == nil {
		return ans
	}
	t := c.s.transfers[c.ids[1]]
	if t == nil || t.session != ses {
		return refuse(http.StatusNotFound, "transfer not found")
	}
	body := t.json()
	t.polled = true
	return ok(body)
}

// serveSpace hands out what was staged, without any token.
func (s *Server) serveSpace(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	t := s.transfers[strings.TrimPrefix(r.URL.Path, "/")]
	s.mu.Unlock()
	if t == nil || r.URL.Query().Get("X-Amz-Signature") != t.id[24:] {
		http.Error(w, "AccessDenied", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(t.payload)))
	_, _ = w.Write(t.payload)
}
