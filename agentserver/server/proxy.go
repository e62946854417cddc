package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxInfo bounds what is read of a server_info to add to it.
	maxInfo = 1 << 20
	// drainRetry bounds the Retry-After of a drained box, which may be opened
	// long before its lease ends.
	drainRetry = 10 * time.Second
)

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		// Shorter than the 5 s after which the agent-server's side ends an unused
		// connection: a request that meets that end fails, and only some may be
		// sent again.
		IdleConnTimeout:       2 * time.Second,
		MaxIdleConnsPerHost:   32,
		DisableCompression:    true, // pass the caller's own encoding on
		ExpectContinueTimeout: time.Second,
	}
}

// admit lets a request through the gate, or answers it. leave must be called
// when the request is done.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) (admitted *http.Request, leave func(), ok bool) {
	var shut time.Duration
	switch {
	case isSocket(r):
		var ctx context.Context
		if ctx, leave, shut = s.gate.socket(r.Context()); shut == 0 {
			return r.WithContext(ctx), leave, true
		}
	case startsWork(r):
		if leave, shut = s.gate.enter(s.counted(r)); shut == 0 {
			return r, leave, true
		}
	default:
		return r, func() {}, true
	}
	refuseFor(s.ours(w, r), min(shut, drainRetry), "the box is drained before it is suspended; try again")
	return nil, nil, false
}

// pass hands a request to the agent-server.
func (s *Server) pass(w http.ResponseWriter, r *http.Request) {
	if _, up := s.opts.Upstream.Target(); !up {
		s.down(w, r)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		body := &callerBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
		r = r.WithContext(context.WithValue(r.Context(), callerBodyKey{}, body))
		r.Body = body
	}
	s.proxy.ServeHTTP(asGiven{w}, r)
}

// asGiven fills nothing in that the agent-server left out of its answer.
type asGiven struct{ http.ResponseWriter }

// Unwrap is for http.ResponseController.
func (w asGiven) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w asGiven) WriteHeader(status int) {
	if header := w.Header(); status >= http.StatusOK {
		for _, name := range []string{"Content-Type", "Date"} {
			if _, given := header[name]; !given {
				header[name] = nil
			}
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

type callerBodyKey struct{}

// callerBody is the body of a request on its way. An end of the exchange does
// not wait for a caller that sends no more.
type callerBody struct {
	io.ReadCloser
	control *http.ResponseController
	ended   atomic.Bool
	broken  atomic.Bool // it does not read: the caller's fault
}

func (b *callerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.broken.Store(!errors.Is(err, io.EOF) && !b.ended.Swap(true))
		b.ended.Store(true)
	}
	return n, err
}

// early lets an answer pass that came before the request has ended. What is left
// of the request then makes the connection useless for another.
func (b *callerBody) early(answer *http.Response) {
	if b.ended.Load() || answer.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	_ = b.control.EnableFullDuplex() // a writer that cannot is no connection
	answer.Header.Set("Connection", "close")
}

func (b *callerBody) Close() error {
	if !b.ended.Swap(true) {
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // ends a read that waits
	}
	return b.ReadCloser.Close()
}

// down answers for an agent-server that cannot be asked.
func (s *Server) down(w http.ResponseWriter, r *http.Request) {
	maps.Copy(w.Header(), s.origins.of(r.Header.Get("Origin")))
	refuseFor(w, time.Second, "the agent-server in this box is "+s.opts.Upstream.Process().State+"; try again")
}

func (s *Server) newProxy(transport http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // a stream is passed on as it comes
		Rewrite: func(p *httputil.ProxyRequest) {
			base, _ := s.opts.Upstream.Target()
			p.SetURL(base)
			p.Out.Host = p.In.Host
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			p.Out.Trailer = p.In.Trailer // filled in when the body has been read
			if target, ok := asWritten(p.In); ok {
				p.Out.URL.Opaque = target
			}
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values := p.In.Header.Values(name); len(values) > 0 {
					p.Out.Header[http.CanonicalHeaderKey(name)] = values
				}
			}
			if s.isInfo(p.In) {
				// What is added to must be readable.
				p.Out.Header.Set("Accept-Encoding", "identity")
			}
		},
		ModifyResponse: func(response *http.Response) error {
			if body, ok := response.Request.Context().Value(callerBodyKey{}).(*callerBody); ok {
				body.early(response)
			}
			if s.isInfo(response.Request) && response.StatusCode == http.StatusOK {
				return s.addCapabilities(response)
			}
			return nil
		},
		ErrorHandler: s.failed,
		ErrorLog:     slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

// asWritten returns the path of a request as its sender wrote it: parsed and
// written again, some characters would be escaped that were not. It does not
// return one that would be read as a host.
func asWritten(r *http.Request) (target string, ok bool) {
	target, _, _ = strings.Cut(r.RequestURI, "?")
	if !strings.HasPrefix(target, "/") || strings.HasPrefix(target, "//") {
		return "", false
	}
	parsed, err := url.ParseRequestURI(target)
	return target, err == nil && parsed.Path == r.URL.Path
}

// failed answers for an agent-server that broke off before it answered.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	body, _ := r.Context().Value(callerBodyKey{}).(*callerBody)
	switch {
	case body != nil && body.broken.Load():
		refuse(w, http.StatusBadRequest, "the body could not be read")
	case errors.Is(err, context.Canceled):
		// The caller has gone, or a drain ended its socket.
		refuse(w, http.StatusBadGateway, "the connection was ended")
	case isRefused(err):
		s.down(w, r)
	default:
		s.log.Warn("pass a request on", "method", r.Method, "path", r.URL.Path, "error", err)
		refuse(w, http.StatusBadGateway, "the agent-server in this box broke off its answer")
	}
}

// isRefused reports whether nothing was sent: nobody listens.
func isRefused(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

func (s *Server) isInfo(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/server_info" || r.URL.Path == s.opts.RootPath+"/server_info")
}

// addCapabilities adds ours to the list in a server_info and leaves every other
// byte as it is. A document that it does not understand passes unchanged.
func (s *Server) addCapabilities(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxInfo+1))
	if err != nil {
		return err
	}
	if len(text) > maxInfo || response.Header.Get("Content-Encoding") != "" {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(text), response.Body), response.Body}
		return nil
	}
	response.Body.Close()
	text = spliceCapabilities(text, s.capabilities())
	response.Body = io.NopCloser(bytes.NewReader(text))
	response.ContentLength = int64(len(text))
	response.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return nil
}

// spliceCapabilities inserts names into the top-level list "capabilities" of a
// JSON object.
func spliceCapabilities(text []byte, names []string) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(text, &fields) != nil || fields == nil {
		return text
	}
	var have []any
	if raw, ok := fields["capabilities"]; ok && json.Unmarshal(raw, &have) != nil {
		return text
	}
	known := map[string]bool{}
	for _, name := range have {
		if name, ok := name.(string); ok {
			known[name] = true
		}
	}
	var added []string
	for _, name := range names {
		if !known[name] {
			quoted, err := json.Marshal(name)
			if err != nil {
				return text
			}
			added = append(added, string(quoted))
		}
	}
	if len(added) == 0 {
		return text
	}
	insert := strings.Join(added, ",")
	end := bytes.LastIndexByte(text, '}')
	start, stop, found := valueOf(text, "capabilities")
	switch {
	case !found:
		if len(fields) > 0 {
			insert = `,"capabilities":[` + insert + "]"
		} else {
			insert = `"capabilities":[` + insert + "]"
		}
		return splice(text, end, end, insert)
	case have == nil: // null
		return splice(text, start, stop, "["+insert+"]")
	case len(have) > 0:
		insert = "," + insert
	}
	return splice(text, stop-1, stop-1, insert)
}

func splice(text []byte, from, to int, insert string) []byte {
	out := make([]byte, 0, len(text)+len(insert))
	out = append(out, text[:from]...)
	out = append(out, insert...)
	return append(out, text[to:]...)
}

// valueOf returns where the value of a top-level key of a JSON object lies; of
// a key that comes twice the last, as decoders have it.
func valueOf(text []byte, key string) (start, stop int, found bool) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if _, err := decoder.Token(); err != nil {
		return 0, 0, false
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return 0, 0, false
		}
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return 0, 0, false
		}
		if name == key {
			stop = int(decoder.InputOffset())
			start, found = stop-len(raw), true
		}
	}
	return start, stop, found
}
