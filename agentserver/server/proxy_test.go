package server_test

import (
	"archive/zip"
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
)

const key = "the-session-key-52c1"

// behind is an agent-server that a test plays.
type behind struct {
	base *url.URL
	down atomic.Bool
}

func (b *behind) Target() (*url.URL, bool)     { return b.base, !b.down.Load() }
func (b *behind) Process() agentserver.Process { return agentserver.Process{State: "running"} }

// front starts a handler on a box of its own; without play it serves alone.
func front(t *testing.T, play http.HandlerFunc, base string) (address, root string, up *behind) {
	t.Helper()
	root = t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "conversations"), 0o700))
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	opts := server.Options{Root: root, Key: key, Reclaim: r, BasePath: base}
	if play != nil {
		real := httptest.NewServer(play)
		t.Cleanup(real.Close)
		up = &behind{}
		up.base, err = up.base.Parse(real.URL)
		require.NoError(t, err)
		opts.Upstream = up
	}
	web := httptest.NewServer(server.New(opts))
	t.Cleanup(web.Close)
	return web.URL + base, root, up
}

// keyless sends one request without the key.
func keyless(t *testing.T, method, address string, body io.Reader) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, body)
	if err != nil {
		return nil, err
	}
	return http.DefaultTransport.RoundTrip(request)
}

func TestARequestPassesUnchanged(t *testing.T) {
	t.Parallel()
	type seen struct {
		Method, URI, Host, Body string
		Header                  http.Header
	}
	got := make(chan seen, 1)
	for _, base := range []string{"", "/box-1"} {
		address, _, _ := front(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- seen{r.Method, r.RequestURI, r.Host, string(body), r.Header}
			w.Header().Add("Set-Cookie", "a=1; HttpOnly")
			w.Header().Add("Set-Cookie", "b=2")
			w.Header().Set("X-Odd", "yes")
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, `{"detail":"as it is"}`)
		}, base)
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"} {
			request, err := http.NewRequestWithContext(t.Context(), method, address+"/api/a%2Fb/c%20d?x=1;y&z=%zz&ids=1&ids=2", strings.NewReader("body"))
			require.NoError(t, err)
			request.Header.Set("X-Session-API-Key", key)
			request.Header.Set("X-Forwarded-For", "192.0.2.1")
			request.Header.Set("Accept-Encoding", "br")
			request.Header.Set("Cookie", "c=3")
			request.Host = "box.example"
			response, err := http.DefaultTransport.RoundTrip(request)
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			response.Body.Close()
			one := <-got
			require.Equal(t, method, one.Method)
			require.Equal(t, "/api/a%2Fb/c%20d?x=1;y&z=%zz&ids=1&ids=2", one.URI)
			require.Equal(t, "box.example", one.Host)
			require.Equal(t, "body", one.Body)
			require.Equal(t, key, one.Header.Get("X-Session-API-Key"))
			require.Equal(t, []string{"192.0.2.1"}, one.Header.Values("X-Forwarded-For"))
			require.Equal(t, "br", one.Header.Get("Accept-Encoding"))
			require.Equal(t, "c=3", one.Header.Get("Cookie"))
			require.Equal(t, http.StatusTeapot, response.StatusCode)
			require.Equal(t, `{"detail":"as it is"}`, string(text)) //nolint:testifylint // bytes, not meaning
			require.Equal(t, []string{"a=1; HttpOnly", "b=2"}, response.Header.Values("Set-Cookie"))
		}
		if base != "" {
			status, _, _ := ask(t, http.MethodGet, strings.TrimSuffix(address, base)+"/api/conversations/count", "")
			require.Equal(t, http.StatusNotFound, status, "nothing outside the base path")
			status, _, _ = ask(t, http.MethodGet, address+"x/api/storage", "")
			require.Equal(t, http.StatusNotFound, status)
		}
	}
}

func TestAStreamIsPassedOnAsItComes(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	address, _, _ := front(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		for part := range next {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
	}, "")
	response, err := keyless(t, http.MethodGet, address+"/api/stream", nil)
	require.NoError(t, err)
	defer response.Body.Close()
	read := bufio.NewReader(response.Body)
	for i := range 20 {
		part := fmt.Sprintf("part %d\n", i)
		next <- part // the next one is sent only when this one has arrived
		line, err := read.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, part, line)
	}
	close(next)
}

func TestAnUploadIsPassedOnAsItComes(t *testing.T) {
	t.Parallel()
	arrived := make(chan string)
	address, _, _ := front(t, func(_ http.ResponseWriter, r *http.Request) {
		read := bufio.NewReader(r.Body)
		for {
			line, err := read.ReadString('\n')
			if err != nil {
				return
			}
			arrived <- line
		}
	}, "")
	body, send := io.Pipe()
	done := make(chan error, 1)
	go func() {
		response, err := keyless(t, http.MethodPost, address+"/api/file/upload", body)
		if err == nil {
			response.Body.Close()
		}
		done <- err
	}()
	for i := range 20 {
		line := fmt.Sprintf("line %d\n", i)
		_, err := io.WriteString(send, line)
		require.NoError(t, err)
		require.Equal(t, line, <-arrived)
	}
	require.NoError(t, send.Close())
	require.NoError(t, <-done)
}

// echo speaks just enough of an upgraded connection to send back what it gets.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" || !strings.EqualFold(r.Header.Get("Connection"), "upgrade") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	connection, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()
	_, _ = io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n")
	_, _ = io.Copy(connection, both)
}

func dialSocket(t *testing.T, address string) (net.Conn, *bufio.Reader, int) {
	t.Helper()
	where, err := url.Parse(address)
	require.NoError(t, err)
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", where.Host)
	require.NoError(t, err)
	t.Cleanup(func() { connection.Close() })
	require.NoError(t, connection.SetDeadline(time.Now().Add(20*time.Second)))
	fmt.Fprintf(connection, "GET /sockets/events/x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n\r\n")
	read := bufio.NewReader(connection)
	response, err := http.ReadResponse(read, nil) //nolint:bodyclose // the connection is closed
	require.NoError(t, err)
	return connection, read, response.StatusCode
}

func TestASocketPassesBothWaysAndADrainEndsIt(t *testing.T) {
	t.Parallel()
	address, _, _ := front(t, echo, "")
	connection, read, status := dialSocket(t, address)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	for i := range 10 {
		line := fmt.Sprintf("frame %d\n", i)
		_, err := io.WriteString(connection, line)
		require.NoError(t, err)
		got, err := read.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, line, got)
	}
	_, text, _ := ask(t, http.MethodGet, address+"/api/boxd/use", "")
	var use agentserver.Use
	require.NoError(t, json.Unmarshal([]byte(text), &use))
	require.Equal(t, 1, use.Sockets)
	require.Zero(t, use.InFlight, "looking is not use")
	code, _, _ := ask(t, http.MethodPost, address+"/api/boxd/drain", `{"lease_seconds":60}`)
	require.Equal(t, http.StatusOK, code)
	_, err := read.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	_, _, status = dialSocket(t, address)
	require.Equal(t, http.StatusServiceUnavailable, status)
	code, _, _ = ask(t, http.MethodDelete, address+"/api/boxd/drain", "")
	require.Equal(t, http.StatusNoContent, code)
	_, _, status = dialSocket(t, address)
	require.Equal(t, http.StatusSwitchingProtocols, status)
}

func TestTheGateLetsReadsThroughAndCountsWork(t *testing.T) {
	t.Parallel()
	hold, holding := make(chan struct{}), make(chan struct{})
	address, _, _ := front(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/bash/execute_bash_command" {
			holding <- struct{}{}
			<-hold
		}
		w.WriteHeader(http.StatusNoContent)
	}, "")
	inFlight := func() int {
		_, text, _ := ask(t, http.MethodGet, address+"/api/boxd/use", "")
		var use agentserver.Use
		require.NoError(t, json.Unmarshal([]byte(text), &use))
		return use.InFlight
	}
	done := make(chan int, 2)
	for _, k := range []string{key, "a stranger's"} {
		go func() {
			request, _ := http.NewRequest(http.MethodPost, address+"/api/bash/execute_bash_command", nil) //nolint:noctx // a test
			request.Header.Set("X-Session-API-Key", k)
			response, err := http.DefaultTransport.RoundTrip(request)
			if err != nil {
				done <- 0
				return
			}
			response.Body.Close()
			done <- response.StatusCode
		}()
		<-holding
	}
	require.Equal(t, 1, inFlight(), "a stranger's request is not counted")
	status, _, _ := ask(t, http.MethodPost, address+"/api/boxd/drain", `{"lease_seconds": 0.5}`)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 1, inFlight(), "what was let in is still there")
	for path, method := range map[string]string{
		"/api/conversations": "POST", "/api/conversations/x/events": "POST", "/api/conversations/x/run": "POST", "/api/conversations/x": "PATCH",
		"/api/conversations/y": "DELETE", "/api/bash/start_bash_command": "POST", "/api/file/upload": "POST", "/v1/chat/completions": "POST",
		"/v1/models": "GET", "/api/settings": "PUT", "/unknown": "POST", "//api//conversations": "POST", "/api/conversations/prepare-for-sandbox-pause/": "POST",
		"/app-backends/x": "POST",
	} {
		status, text, header := ask(t, method, address+path, "{}")
		if status == http.StatusNoContent {
			require.Fail(t, "let through", "%s %s", method, path)
		}
		require.Equal(t, http.StatusServiceUnavailable, status, path)
		require.Equal(t, "1", header.Get("Retry-After"))
		require.Contains(t, text, "drained")
	}
	for path, method := range map[string]string{
		"/api/conversations/search": "GET", "/alive": "GET", "/api/conversations/prepare-for-sandbox-pause": "POST", "/api/x": "OPTIONS",
	} {
		status, _, _ := ask(t, method, address+path, "")
		require.Equal(t, http.StatusNoContent, status, path)
	}
	await(t, "the lease to end by itself", func() bool {
		status, _, _ := ask(t, http.MethodPost, address+"/api/conversations", "{}")
		return status == http.StatusNoContent
	})
	close(hold)
	require.Equal(t, http.StatusNoContent, <-done)
	require.Equal(t, http.StatusNoContent, <-done)
	await(t, "the work to end", func() bool { return inFlight() == 0 })
}

func TestATrajectoryNeedsNoAgentServer(t *testing.T) {
	t.Parallel()
	asked := atomic.Int32{}
	address, root, up := front(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusInsufficientStorage)
	}, "")
	id, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{Events: []agentservertest.Event{{Text: "x"}}})
	require.NoError(t, err)
	own := address + "/api/file/download-trajectory/" + id
	var first string
	for _, path := range []string{own, own, strings.Replace(own, id, "{"+agentservertest.Dashed(id)+"}", 1), address + "/api/conversations/" + id + "/file/download-trajectory/" + agentservertest.Dashed(id)} {
		status, text, _ := ask(t, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, status, path)
		archive, err := zip.NewReader(strings.NewReader(text), int64(len(text)))
		require.NoError(t, err)
		require.Len(t, archive.File, 5)
		if first != "" {
			require.Equal(t, first, text)
		}
		first = text
		up.down.Store(true)
	}
	response, err := keyless(t, http.MethodGet, own, nil)
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusUnauthorized, response.StatusCode, "not without the key")
	require.Zero(t, asked.Load(), "the agent-server would need room on the disk")
	status, _, _ := ask(t, http.MethodGet, address+"/api/conversations/count", "")
	require.Equal(t, http.StatusServiceUnavailable, status)
	up.down.Store(false)
	status, _, _ = ask(t, http.MethodGet, address+"/api/conversations/"+strings.Repeat("b", 32)+"/file/download-trajectory/"+id, "")
	require.Equal(t, http.StatusInsufficientStorage, status, "another conversation's is the agent-server's to refuse")
}

func TestAnAnswerThatBreaksOffStaysBrokenOff(t *testing.T) {
	t.Parallel()
	address, _, _ := front(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 10))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, "")
	response, err := keyless(t, http.MethodGet, address+"/api/other", nil)
	require.NoError(t, err)
	defer response.Body.Close()
	_, err = io.ReadAll(response.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestUseFallsBackToTheDisk(t *testing.T) {
	t.Parallel()
	address, root, _ := front(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "")
	conversations := filepath.Join(root, "conversations")
	for i, status := range []string{"running", "idle", "paused", "running"} {
		_, err := agentservertest.WriteConversation(conversations, agentservertest.Conversation{
			ID: fmt.Sprintf("%032x", i), Status: status, Events: make([]agentservertest.Event, i),
		})
		require.NoError(t, err)
	}
	_, text, _ := ask(t, http.MethodGet, address+"/api/boxd/use", "")
	var use agentserver.Use
	require.NoError(t, json.Unmarshal([]byte(text), &use))
	require.Equal(t, 2, use.Running)
	require.Equal(t, 6, use.Events)
	require.Less(t, use.IdleSeconds, 60.0)
	require.NotEmpty(t, use.Digest)
}
