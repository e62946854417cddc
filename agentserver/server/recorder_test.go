package server_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// play says how the recording upstream answers; it travels in a header.
type play struct {
	Early   []int               `json:"early,omitempty"` // 1xx answers before
	Status  int                 `json:"status,omitempty"`
	Header  map[string][]string `json:"header,omitempty"`
	Parts   []string            `json:"parts,omitempty"` // written and flushed one by one
	Trailer map[string]string   `json:"trailer,omitempty"`
	Late    map[string]string   `json:"late,omitempty"` // trailers that were not announced
	Unread  bool                `json:"unread,omitempty"`
}

// side is one side of an exchange as it was seen.
type side struct {
	Line, Host string // method and target, or status
	Early      []int
	Header     map[string][]string
	Body       string
	Trailer    map[string][]string
	Err        string
}

// recorder is an upstream that keeps what it saw.
type recorder struct {
	mu   sync.Mutex
	seen []side
}

func (r *recorder) all() []side {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var p play
	_ = json.Unmarshal([]byte(request.Header.Get("X-Play")), &p)
	one := side{Line: request.Method + " " + request.RequestURI, Host: request.Host, Header: plainHeader(request.Header)}
	if p.Unread {
		_ = http.NewResponseController(w).EnableFullDuplex() // answer at once
		w.Header().Set("Connection", "close")                // what is left of the request is in the way
	} else {
		text, err := io.ReadAll(request.Body)
		one.Body, one.Trailer = short(text), request.Trailer
		if err != nil {
			one.Err = "cut off"
		}
	}
	r.mu.Lock()
	r.seen = append(r.seen, one)
	r.mu.Unlock()
	header := w.Header()
	for _, code := range p.Early {
		header.Set("Link", fmt.Sprintf("</%d>; rel=preload", code))
		w.WriteHeader(code)
		header.Del("Link")
	}
	header["Content-Type"] = nil // nothing is guessed
	maps.Copy(header, p.Header)
	for name := range p.Trailer {
		header.Add("Trailer", name)
	}
	if p.Status != 0 {
		w.WriteHeader(p.Status)
	}
	for _, part := range p.Parts {
		_, _ = io.WriteString(w, part)
		_ = http.NewResponseController(w).Flush()
	}
	for name, value := range p.Trailer {
		header.Set(name, value)
	}
	for name, value := range p.Late {
		header.Set(http.TrailerPrefix+name, value)
	}
}

// short keeps small bodies readable and large ones comparable.
func short(text []byte) string {
	if len(text) < 200 {
		return string(text)
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf("%d bytes %s", len(text), hex.EncodeToString(sum[:8]))
}

// plainHeader is a header without what belongs to one connection alone, and
// without a length of nothing, which says what no length says.
func plainHeader(h http.Header) map[string][]string {
	out := maps.Clone(h)
	for _, list := range h.Values("Connection") {
		for name := range strings.SplitSeq(list, ",") {
			delete(out, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Date", "Proxy-Authenticate", "Proxy-Authorization"} {
		delete(out, name)
	}
	if slices.Equal(out["Content-Length"], []string{"0"}) {
		delete(out, "Content-Length")
	}
	return out
}

// send writes one request as it is and reads its answer.
func send(t require.TestingT, address, raw, method string) side {
	return sendFor(t, 30*time.Second, address, raw, method)
}

func sendFor(t require.TestingT, most time.Duration, address, raw, method string) side {
	where, err := url.Parse(address)
	require.NoError(t, err)
	connection, err := net.Dial("tcp", where.Host) //nolint:noctx // it has a deadline
	require.NoError(t, err)
	defer connection.Close()
	require.NoError(t, connection.SetDeadline(time.Now().Add(most)))
	go func() { _, _ = io.WriteString(connection, raw) }()
	read := bufio.NewReader(connection)
	var early []int
	for {
		response, err := http.ReadResponse(read, &http.Request{Method: method})
		if err != nil {
			return side{Err: "no answer"}
		}
		if response.StatusCode < 200 && response.StatusCode != http.StatusSwitchingProtocols {
			if response.StatusCode != http.StatusContinue {
				early = append(early, response.StatusCode)
			}
			continue
		}
		one := side{Line: fmt.Sprint(response.Proto, " ", response.StatusCode), Early: early, Header: plainHeader(response.Header)}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		one.Body = short(text)
		if len(response.Trailer) > 0 {
			one.Trailer = response.Trailer
		}
		if err != nil {
			one.Err = "cut off"
		}
		return one
	}
}

// pair is a recording upstream that can be asked directly, and through boxd.
type pair struct {
	*recorder
	direct, through string
}

func newPair(t *testing.T, base string) *pair {
	t.Helper()
	r := &recorder{}
	address, _, up := front(t, r.ServeHTTP, base)
	return &pair{recorder: r, direct: up.base.String(), through: strings.TrimSuffix(address, base)}
}

// same sends one request both ways and requires that neither end can tell.
func (p *pair) same(t require.TestingT, raw, viaBoxd, method string) (seen, answer side) {
	before := len(p.all())
	direct := send(t, p.direct, raw, method)
	between := len(p.all())
	through := send(t, p.through, viaBoxd, method)
	all := p.all()
	require.Equal(t, direct, through, "the caller sees another answer to\n%.600q", raw)
	require.Equal(t, between-before, len(all)-between, "as many requests arrive for\n%.600q", raw)
	if between == before {
		return side{}, through
	}
	require.Equal(t, all[before], all[between], "the agent-server sees another request than\n%.600q", raw)
	return all[between], through
}

func request(line, headers, body string, p play) string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return line + " HTTP/1.1\r\nHost: box.example:8000\r\nX-Play: " + string(text) + "\r\nConnection: close\r\n" + headers + "\r\n" + body
}

func length(body string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(body)) }
