package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNobodyCanTellThatBoxdIsInFront(t *testing.T) {
	t.Parallel()
	ok := play{Status: 200, Parts: []string{"hello"}}
	big := strings.Repeat("0123456789abcdef", 1<<14)
	for name, row := range map[string]string{
		"a plain read":                         request("GET /x", "", "", ok),
		"a method that nobody knows":           request("FROBNICATE /x", "", "", ok),
		"a method with odd letters":            request("M-SEARCH /x", length("ab"), "ab", ok),
		"a lower-case method":                  request("get /x", "", "", ok),
		"TRACE":                                request("TRACE /x", "", "", ok),
		"OPTIONS before a page's request":      request("OPTIONS /x", "Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: X-Session-API-Key\r\n", "", play{Status: 204, Header: map[string][]string{"Access-Control-Allow-Origin": {"http://localhost:3000"}, "Vary": {"Origin", "Cookie"}}}),
		"HEAD with the length of a body":       request("HEAD /x", "", "", play{Status: 200, Header: map[string][]string{"Content-Length": {"1234"}, "Content-Type": {"text/plain"}}}),
		"a body with a length":                 request("POST /x", length(big), big, ok),
		"a body in chunks":                     request("POST /x", "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n\r\n", ok),
		"a body in chunks with a trailer":      request("PUT /x", "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n", "5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n", ok),
		"an empty body in chunks":              request("POST /x", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n", ok),
		"an empty body with a length":          request("POST /x", "Content-Length: 0\r\n", "", ok),
		"GET with a body":                      request("GET /x", length("body"), "body", ok),
		"DELETE with a body":                   request("DELETE /x", length("body"), "body", ok),
		"a body that is never read":            request("POST /x", length("unread"), "unread", play{Status: 413, Unread: true, Parts: []string{"no"}}),
		"Expect: 100-continue":                 request("POST /x", "Expect: 100-continue\r\n"+length("hello"), "hello", ok),
		"a form with files":                    request("POST /x", "Content-Type: multipart/form-data; boundary=b\r\n"+length("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\x00\xff\r\n--b--\r\n"), "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\x00\xff\r\n--b--\r\n", ok),
		"escaped and plain slashes":            request("GET /a%2Fb//c/../d/./e%2e%2E/%", "", "", ok),
		"escapes in either case":               request("GET /a%2fb%2Fc%c3%a4%C3%A4", "", "", ok),
		"bytes that others would escape":       request("GET /a|b\"c^d`e{f}<g>\\h[i]:@!$&'()*+,;=~", "", "", ok),
		"a path that is not ASCII":             request("GET /\xc3\xa4/\xff", "", "", ok),
		"two slashes first":                    request("GET //x//y", "", "", ok),
		"a query with semicolons":              request("GET /x?a=1;b=2&c=%zz&a=3&&=&d", "", "", ok),
		"a query that is empty":                request("GET /x?", "", "", ok),
		"a query with a question mark":         request("GET /x??a=?b#c", "", "", ok),
		"a space that is a plus":               request("GET /x?a=1+2%20%2B", "", "", ok),
		"many cookies":                         request("GET /x", "Cookie: a=1; b=\"2\"\r\nCookie: c=3\r\n", "", play{Status: 200, Header: map[string][]string{"Set-Cookie": {"a=1; Path=/box; HttpOnly; SameSite=None; Secure; Partitioned", "b=2; Max-Age=0", "c=\"x y\""}}}),
		"compression as it was asked for":      request("GET /x", "Accept-Encoding: br;q=1.0, gzip;q=0.5, *;q=0\r\n", "", play{Status: 200, Header: map[string][]string{"Content-Encoding": {"gzip"}, "Content-Type": {"text/plain"}}, Parts: []string{"\x1f\x8b not really"}}),
		"no Accept-Encoding, no User-Agent":    request("GET /x", "", "", ok),
		"a User-Agent":                         request("GET /x", "User-Agent: me/1.0 (x)\r\nAccept: */*\r\n", "", ok),
		"a range":                              request("GET /x", "Range: bytes=0-3,7-\r\nIf-Range: \"e\"\r\n", "", play{Status: 206, Header: map[string][]string{"Content-Range": {"bytes 0-3/10"}, "Content-Type": {"text/plain"}}, Parts: []string{"hell"}}),
		"a range that is none":                 request("GET /x", "Range: bytes=99-\r\n", "", play{Status: 416, Header: map[string][]string{"Content-Range": {"bytes */10"}}}),
		"not modified":                         request("GET /x", "If-None-Match: \"e\"\r\n", "", play{Status: 304, Header: map[string][]string{"Etag": {"\"e\""}}}),
		"no content":                           request("DELETE /x", "", "", play{Status: 204}),
		"a redirect":                           request("GET /x/", "", "", play{Status: 307, Header: map[string][]string{"Location": {"http://box.example:8000/x?a=1"}}}),
		"an early hint":                        request("GET /x", "", "", play{Early: []int{103}, Status: 200, Parts: []string{"x"}}),
		"processing, twice":                    request("GET /x", "", "", play{Early: []int{102, 102}, Status: 200, Parts: []string{"x"}}),
		"trailers that were announced":         request("GET /x", "TE: trailers\r\n", "", play{Status: 200, Parts: []string{"a", "b"}, Trailer: map[string]string{"X-Sum": "9"}}),
		"trailers that were not":               request("GET /x", "TE: trailers\r\n", "", play{Status: 200, Parts: []string{"a"}, Late: map[string]string{"X-Late": "1"}}),
		"an error with an exception":           request("GET /x", "", "", play{Status: 503, Header: map[string][]string{"Content-Type": {"application/json"}, "Retry-After": {"7"}}, Parts: []string{`{"detail":"Internal Server Error","exception":"503: x"}`}}),
		"a status that nobody knows":           request("GET /x", "", "", play{Status: 599, Parts: []string{"odd"}}),
		"an answer without a type":             request("GET /x", "", "", play{Status: 200, Parts: []string{"<html>"}}),
		"an answer without a body":             request("GET /x", "", "", play{Status: 200}),
		"an answer of a known length":          request("GET /x", "", "", play{Status: 200, Header: map[string][]string{"Content-Length": {"5"}}, Parts: []string{"hello"}}),
		"forwarded headers of another proxy":   request("GET /x", "X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a.example\r\nForwarded: for=192.0.2.1\r\nVia: 1.1 other\r\n", "", ok),
		"no forwarded headers":                 request("GET /x", "", "", ok),
		"one header many times":                request("GET /x", "X-Many: 1\r\nX-Many: 2\r\nx-many: 3\r\nX-Empty:\r\n", "", play{Status: 200, Header: map[string][]string{"X-Many": {"a", "b"}, "X-Empty": {""}}}),
		"a header of one connection":           request("GET /x", "Connection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n", "", ok),
		"an upgrade that nobody offers":        request("POST /x", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"+length("x"), "x", ok),
		"a header of 60 KB":                    request("GET /x", "X-Long: "+strings.Repeat("y", 60_000)+"\r\n", "", play{Status: 200, Header: map[string][]string{"X-Long": {strings.Repeat("z", 60_000)}}}),
		"a header in Latin-1":                  request("GET /x", "X-Name: M\xfcller\r\n", "", play{Status: 200, Header: map[string][]string{"X-Name": {"M\xfcller"}}}),
		"HTTP/1.0":                             "GET /x HTTP/1.0\r\nX-Play: {\"status\":200,\"header\":{\"Content-Length\":[\"2\"]},\"parts\":[\"hi\"]}\r\nHost: h\r\n\r\n",
		"two lengths that differ":              request("POST /x", "Content-Length: 5\r\nContent-Length: 6\r\n", "hello!", ok),
		"a length that is negative":            request("POST /x", "Content-Length: -1\r\n", "", ok),
		"a header line that is folded":         request("GET /x", "X-Fold: a\r\n b\r\n", "", ok),
		"a header name with a space":           request("GET /x", "X-Space : a\r\n", "", ok),
		"a header with a NUL":                  request("GET /x", "X-Nul: a\x00b\r\n", "", ok),
		"no host":                              "GET /x HTTP/1.1\r\nConnection: close\r\n\r\n",
		"chunks that break off":                request("POST /x", "Transfer-Encoding: chunked\r\n", "5\r\nhel", play{Status: 200, Unread: true}),
		"an encoding of the body that is none": request("POST /x", "Transfer-Encoding: gzip\r\n", "x", ok),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, "")
			method, _, _ := strings.Cut(row, " ")
			p.same(t, row, row, method)
		})
	}
}

// A target with a host is for proxies: what is behind one gets the path.
func TestATargetWithAHostArrivesWithoutIt(t *testing.T) {
	t.Parallel()
	p := newPair(t, "")
	send(t, p.through, request("GET http://box.example:8000/abs?x=1", "", "", play{}), "GET")
	require.Equal(t, "GET /abs?x=1", p.all()[0].Line)
	require.Equal(t, "box.example:8000", p.all()[0].Host)
}

func TestABodyThatDoesNotReadIsTheCallersFault(t *testing.T) {
	t.Parallel()
	p := newPair(t, "")
	answer := send(t, p.through, request("POST /x", "Transfer-Encoding: chunked\r\n", "0x5\r\nhello\r\n0\r\n\r\n", play{}), "POST")
	require.Equal(t, "HTTP/1.1 400", answer.Line)
	require.Contains(t, answer.Body, `{"detail":`)
}

func TestNobodyCanTellThatABasePathIsInFront(t *testing.T) {
	t.Parallel()
	p := newPair(t, "/box-1")
	for _, target := range []string{"/x", "/", "/a%2Fb//c?x=1;y", "/box-1/x", "/x|y", "/x?"} {
		direct := request("GET "+target, "", "", play{Status: 200, Parts: []string{"x"}})
		seen, _ := p.same(t, direct, request("GET /box-1"+target, "", "", play{Status: 200, Parts: []string{"x"}}), "GET")
		require.Equal(t, "GET "+target, seen.Line)
	}
}

// TestNoRandomRequestTells looks for a request that the table does not have.
func TestNoRandomRequestTells(t *testing.T) {
	t.Parallel()
	p := newPair(t, "")
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[A-Za-z0-9-]{1,12}`)
		value := rapid.StringMatching(`[!-~]([ -~]{0,40}[!-~])?`)
		target := "/x" + rapid.StringMatching("(/|%2F|%20|\\.\\.?/|[a-z|\"<>{}^;:@=+,]|%[0-9a-f]{2}|\xc3\xa4){0,20}").Draw(t, "path")
		if rapid.Bool().Draw(t, "asks") {
			target += "?" + rapid.StringMatching(`([a-z;&=+?/]|%[0-9a-fA-F]{2}|%z){0,20}`).Draw(t, "query")
		}
		method := rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "X-ODD"}).Draw(t, "method")
		var headers strings.Builder
		for range rapid.IntRange(0, 6).Draw(t, "headers") {
			fmt.Fprintf(&headers, "X-H-%s: %s\r\n", word.Draw(t, "name"), value.Draw(t, "value"))
		}
		body := strings.Repeat(rapid.StringN(0, 20, 80).Draw(t, "body"), rapid.SampledFrom([]int{0, 1, 3, 5000}).Draw(t, "times"))
		switch rapid.IntRange(0, 2).Draw(t, "framing") {
		case 0:
			body = ""
		case 1:
			headers.WriteString(length(body))
		default:
			headers.WriteString("Transfer-Encoding: chunked\r\n")
			var chunks strings.Builder
			for part := range slices.Chunk([]byte(body), max(1, len(body)/3+1)) {
				fmt.Fprintf(&chunks, "%x\r\n%s\r\n", len(part), part)
			}
			body = chunks.String() + "0\r\n\r\n"
		}
		answer := play{
			Status: rapid.SampledFrom([]int{200, 201, 202, 204, 206, 301, 304, 307, 400, 401, 404, 405, 409, 410, 416, 422, 429, 500, 501, 503, 507}).Draw(t, "status"),
			Header: map[string][]string{},
		}
		for range rapid.IntRange(0, 5).Draw(t, "answer headers") {
			name := http.CanonicalHeaderKey("X-R-" + word.Draw(t, "name"))
			answer.Header[name] = append(answer.Header[name], value.Draw(t, "value"))
		}
		if answer.Status != 204 && answer.Status != 304 {
			answer.Parts = rapid.SliceOfN(rapid.StringN(1, 30, 100), 0, 4).Draw(t, "parts")
		}
		raw := request(method+" "+target, headers.String(), body, answer)
		p.same(t, raw, raw, method)
	})
}

// What is smuggled past one of two servers that disagree on where a request
// ends never arrives as a request of its own.
func TestNothingIsSmuggledPastTheGate(t *testing.T) {
	t.Parallel()
	hidden := "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, head := range map[string]string{
		"both framings":             "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
		"both, the other way round": "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
		"an odd encoding":           "Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n",
		"a space before the colon":  "Transfer-Encoding : chunked\r\nContent-Length: 4\r\n",
		"a tab after it":            "Transfer-Encoding:\tchunked\r\nContent-Length: 4\r\n",
		"two encodings":             "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
		"a list of encodings":       "Transfer-Encoding: identity, chunked\r\n",
		"a folded one":              "Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n",
		"a bare line feed":          "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
		"a length with a plus":      "Content-Length: +4\r\n",
		"a list of lengths":         "Content-Length: 4, 40\r\n",
	} {
		for _, body := range []string{"0\r\n\r\n" + hidden, "4\r\n0\r\n\r\n\r\n0\r\n\r\n" + hidden, "ab\r\n" + hidden} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := newPair(t, "")
				// A connection that boxd would keep for other callers.
				send(t, p.through, "GET /before HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET")
				// Some of these wait for more, for ever.
				sendFor(t, 3*time.Second, p.through, "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+head+"\r\n"+body, "POST")
				send(t, p.through, "GET /after HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET")
				for _, one := range p.all() {
					require.NotContains(t, one.Line, "smuggled")
				}
				require.Equal(t, "GET /after", p.all()[len(p.all())-1].Line)
			})
		}
	}
}

func TestAConnectionServesManyRequests(t *testing.T) {
	t.Parallel()
	p := newPair(t, "")
	where, err := url.Parse(p.through)
	require.NoError(t, err)
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", where.Host)
	require.NoError(t, err)
	defer connection.Close()
	var all bytes.Buffer // sent at once
	for i := range 50 {
		fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", i)
	}
	go func() { _, _ = connection.Write(all.Bytes()) }()
	read := bufio.NewReader(connection)
	for i := range 50 {
		response, err := http.ReadResponse(read, nil)
		require.NoError(t, err)
		_, err = io.ReadAll(response.Body)
		require.NoError(t, err)
		response.Body.Close()
		require.Equal(t, fmt.Sprintf("POST /%d", i), p.all()[i].Line)
	}
}
