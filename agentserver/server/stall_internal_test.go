package server

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipes is a listener in memory, whose connections hold nothing back: a reader
// that stops is felt at once, on the clock of a test.
type pipes struct {
	ends   chan net.Conn
	closed chan struct{}
	close  func()
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case end := <-p.ends:
		return end, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close()
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{} }

// connect serves a handler, and returns what asks it and reads the answer; each
// request has a connection of its own.
func connect(t *testing.T, handler http.Handler) func(path string) io.Reader {
	t.Helper()
	listener := &pipes{ends: make(chan net.Conn), closed: make(chan struct{})}
	listener.close = sync.OnceFunc(func() { close(listener.closed) })
	web := &http.Server{Handler: handler, ReadHeaderTimeout: time.Hour}
	go func() { _ = web.Serve(listener) }() // ends with Close
	t.Cleanup(func() { require.NoError(t, web.Close()) })
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		listener.ends <- theirs
		return ours, nil
	}}
	return func(path string) io.Reader {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://box"+path, nil)
		require.NoError(t, err)
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		t.Cleanup(func() { response.Body.Close() })
		if response.StatusCode == http.StatusNotImplemented {
			t.Skip("this system cannot look into a workspace")
		}
		require.Equal(t, http.StatusOK, response.StatusCode)
		return response.Body
	}
}

// One download of a conversation, and one export, is sent at a time: a caller that
// takes nothing gives its turn back, and one that takes a little now and then
// keeps it.
func TestACallerThatStallsLosesItsTurn(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	for name, row := range map[string]struct {
		file, path string
		patience   time.Duration
	}{
		"of a trajectory":        {conversationsDir + "/" + id + "/a.bin", trajectoryPath + id, time.Minute},
		"of the whole workspace": {workspaceDir + "/a.bin", "/api/workspace/export", 5 * time.Minute},
	} {
		root := t.TempDir()
		place := filepath.Join(root, row.file)
		require.NoError(t, os.MkdirAll(filepath.Dir(place), 0o700))
		noise := make([]byte, 4<<20) // as large when it is packed
		rand.Read(noise)
		require.NoError(t, os.WriteFile(place, noise, 0o600))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				get := connect(t, New(Options{Root: root}))
				start := time.Now()
				stalls := get(row.path) // and reads no further
				get(row.path)
				require.Equal(t, row.patience, time.Since(start))
				_, err := io.Copy(io.Discard, stalls)
				require.Error(t, err, "a part never passes for the whole")
			})
		})
		t.Run(name+" slowly", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				slow := connect(t, New(Options{Root: root}))(row.path)
				start, err, read := time.Now(), error(nil), int64(0)
				for err == nil {
					var n int64
					n, err = io.CopyN(io.Discard, slow, 256<<10)
					read += n
					time.Sleep(row.patience - time.Second)
				}
				require.ErrorIs(t, err, io.EOF)
				require.Greater(t, read, int64(len(noise)))
				require.Greater(t, time.Since(start), 10*row.patience, "no time bounds the whole")
			})
		})
	}
}
