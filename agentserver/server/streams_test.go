package server_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/internal/race"
)

// heapGrowth returns the most that the heap grew while run ran.
func heapGrowth(run func()) uint64 {
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			runtime.ReadMemStats(&now)
			most.Store(max(most.Load(), now.HeapAlloc))
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	run()
	close(stop)
	<-done
	return most.Load() - min(most.Load(), before.HeapAlloc)
}

// zeros is a body of n zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// One GiB goes up and another comes down without being held anywhere. This test
// runs alone: it looks at the heap.
func TestAGigabyteIsNotHeld(t *testing.T) { //nolint:paralleltest // see above
	const size = (1 << 30) / race.Slowness
	got := make(chan int64, 1)
	address, _, _ := front(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			n, _ := io.Copy(io.Discard, r.Body)
			got <- n
			return
		}
		_, _ = io.CopyN(w, zeros{}, size)
	}, "")
	grew := heapGrowth(func() {
		for _, body := range []io.Reader{io.LimitReader(zeros{}, size), nil} {
			method := http.MethodGet
			if body != nil {
				method = http.MethodPut
			}
			response, err := keyless(t, method, address+"/x", body)
			require.NoError(t, err)
			n, err := io.Copy(io.Discard, response.Body)
			require.NoError(t, err)
			response.Body.Close()
			if body == nil {
				require.EqualValues(t, size, n)
			}
		}
	})
	require.EqualValues(t, size, <-got)
	t.Logf("the heap grew by %.1f MiB at most", float64(grew)/(1<<20))
	require.Less(t, grew, uint64(24<<20))
}

// frame is one WebSocket frame as a server sends it.
func frame(op byte, payload []byte) []byte {
	out := []byte{0x80 | op}
	switch n := len(payload); {
	case n < 126:
		out = append(out, byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 127), uint64(n))
	}
	return append(out, payload...)
}

func readFrame(t *testing.T, r *bufio.Reader) (op byte, payload []byte) {
	t.Helper()
	var head [2]byte
	_, err := io.ReadFull(r, head[:])
	require.NoError(t, err)
	n := uint64(head[1] & 0x7f)
	switch n {
	case 126:
		var more [2]byte
		_, err = io.ReadFull(r, more[:])
		n = uint64(binary.BigEndian.Uint16(more[:]))
	case 127:
		var more [8]byte
		_, err = io.ReadFull(r, more[:])
		n = binary.BigEndian.Uint64(more[:])
	}
	require.NoError(t, err)
	payload = make([]byte, n)
	_, err = io.ReadFull(r, payload)
	require.NoError(t, err)
	return head[0] & 0x0f, payload
}

// playSocket upgrades and hands the connection over.
func playSocket(t *testing.T, play func(net.Conn, *bufio.ReadWriter)) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		connection, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer connection.Close()
		_, _ = io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
		play(connection, both)
	}
}

func TestASocketsEndArrivesAsItWasSent(t *testing.T) {
	t.Parallel()
	for _, code := range []uint16{1000, 1008, 1011, 1013, 4001, 4004} {
		t.Run(fmt.Sprint("code ", code), func(t *testing.T) {
			t.Parallel()
			said := append(binary.BigEndian.AppendUint16(nil, code), "because"...)
			address, _, _ := front(t, playSocket(t, func(c net.Conn, _ *bufio.ReadWriter) {
				_, _ = c.Write(frame(9, []byte("ping")))
				_, _ = c.Write(frame(8, said))
			}), "")
			_, read, status := dialSocket(t, address)
			require.Equal(t, http.StatusSwitchingProtocols, status)
			op, payload := readFrame(t, read)
			require.Equal(t, "9 ping", fmt.Sprint(op, " ", string(payload)))
			op, payload = readFrame(t, read)
			require.EqualValues(t, 8, op)
			require.Equal(t, said, payload)
			_, err := read.ReadByte()
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

func TestASocketPassesLargeFramesAndOneEndAtATime(t *testing.T) {
	t.Parallel()
	large := []byte(strings.Repeat("0123456789abcdef", 1<<18)) // 4 MiB
	ended := make(chan []byte, 1)
	address, _, _ := front(t, playSocket(t, func(c net.Conn, both *bufio.ReadWriter) {
		_, _ = c.Write(frame(2, large))
		all, _ := io.ReadAll(both) // until the caller has nothing more to say
		ended <- all
		_, _ = c.Write(frame(1, []byte("still here")))
	}), "")
	connection, read, status := dialSocket(t, address)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	_, err := connection.Write(frame(2, large))
	require.NoError(t, err)
	tcp, ok := connection.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, tcp.CloseWrite())
	op, payload := readFrame(t, read)
	require.EqualValues(t, 2, op)
	require.Equal(t, large, payload)
	require.Equal(t, frame(2, large), <-ended)
	_, payload = readFrame(t, read)
	require.Equal(t, "still here", string(payload), "the other direction is open")
	_, err = read.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

func TestACallerThatLeavesEndsTheSocketBehind(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	address, _, _ := front(t, playSocket(t, func(_ net.Conn, both *bufio.ReadWriter) {
		_, _ = io.Copy(io.Discard, both)
		close(gone)
	}), "")
	connection, _, status := dialSocket(t, address)
	require.Equal(t, http.StatusSwitchingProtocols, status)
	require.NoError(t, connection.Close())
	<-gone
}

func TestASocketThatIsRefusedIsRefused(t *testing.T) {
	t.Parallel()
	address, _, _ := front(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}, "")
	_, _, status := dialSocket(t, address)
	require.Equal(t, http.StatusForbidden, status)
}

// A caller that goes away in the middle is seen behind, and one that is slow
// keeps nobody else waiting.
func TestACallerThatLeavesEndsTheRequestBehind(t *testing.T) {
	t.Parallel()
	began, gone := make(chan struct{}, 1), make(chan struct{})
	address, _, _ := front(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			return
		}
		began <- struct{}{}
		<-r.Context().Done()
		close(gone)
	}, "")
	where, err := url.Parse(address)
	require.NoError(t, err)
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", where.Host)
	require.NoError(t, err)
	_, err = io.WriteString(connection, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-began
	status, _, _ := ask(t, http.MethodGet, address+"/quick", "")
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, connection.Close())
	<-gone
}

// Every way in which an agent-server can break off is seen as a break, not as
// an answer that is short.
func TestAnAgentServerThatDiesInItsAnswerIsSeen(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"in a body of a known length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
		"in a chunk":                  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nshort",
		"between chunks":              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
		"in the trailer":              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nshort\r\n0\r\nX-S",
		"in its header":               "HTTP/1.1 200 OK\r\nContent-Le",
		"before its header":           "",
		"with what is no HTTP":        "\x16\x03\x01 hello\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, _, _ := front(t, func(w http.ResponseWriter, _ *http.Request) {
				connection, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				_, _ = io.WriteString(connection, answer)
				connection.Close()
			}, "")
			response, err := keyless(t, http.MethodPost, address+"/x", nil)
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				require.Error(t, err, "a short answer passes for the whole: %q", text)
				return
			}
			require.NoError(t, err)
			require.Equal(t, http.StatusBadGateway, response.StatusCode)
			require.Contains(t, string(text), `"detail":"Internal Server Error","exception":"502: `)
		})
	}
}

// closeCode opens a socket, gives a key in its first frame, and returns the code
// with which it is closed.
func closeCode(t *testing.T, address, key string) uint16 {
	t.Helper()
	where, err := url.Parse(address)
	require.NoError(t, err)
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", where.Host)
	require.NoError(t, err)
	defer connection.Close()
	require.NoError(t, connection.SetDeadline(time.Now().Add(20*time.Second)))
	fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", where.RequestURI())
	read := bufio.NewReader(connection)
	response, err := http.ReadResponse(read, nil) //nolint:bodyclose // the connection is closed
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	// A caller's frames are masked; with a mask of zeros the text is as it is.
	first := fmt.Appendf(nil, `{"type":"auth","session_api_key":%q}`, key)
	head := []byte{0x81, 0x80 | byte(len(first)), 0, 0, 0, 0}
	_, err = connection.Write(append(head, first...))
	require.NoError(t, err)
	for {
		op, payload := readFrame(t, read)
		if op == 8 {
			return binary.BigEndian.Uint16(payload)
		}
	}
}
