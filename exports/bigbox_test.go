package exports_test

import (
	"archive/zip"
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/openhands/boxkeeper/agentserver"
)

// fullVariable asks for tests at the sizes that the product is made for. They
// take many minutes and tens of gigabytes of disk.
const fullVariable = "BOXKEEPER_TEST_FULL"

// atFullSize says whether, and tells how to.
func atFullSize(t testing.TB) bool {
	t.Helper()
	if os.Getenv(fullVariable) != "" {
		return true
	}
	t.Logf("scaled down: %s=1 asks for the full size, which takes many minutes and some 20 GB below %s", fullVariable, os.TempDir())
	return false
}

// bigBox is a box whose history and workspace are made while they are read, so
// that they are in nobody's memory. Nothing in it compresses. Its conversations
// have the ids of hex32, from 1 on.
type bigBox struct {
	conversations []bigConversation
	work          generatedWork

	mu sync.Mutex
	// cut breaks off as many first downloads, each of what it names.
	cut       map[string]int
	downloads map[string]int
	under     int // way
	most      int // of those at a time
}

type bigConversation struct {
	events, eventBytes int
	text               bool // as people and agents write, not bytes of a file
}

func (b *bigBox) zipBytes() (n int64) {
	for _, c := range b.conversations {
		n += int64(c.events) * int64(c.eventBytes)
	}
	return n
}

func (b *bigBox) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	answer := func(value any) {
		out.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(out).Encode(value) // the caller may have gone
	}
	switch path := r.URL.Path; {
	case path == "/server_info":
		answer(map[string]any{"version": "1.58.2", "uptime": 10, "idle_time": 5, "capabilities": []string{agentserver.CapabilityExport}})
	case path == "/api/conversations/search":
		items := []any{}
		for i := range b.conversations {
			items = append(items, map[string]any{"id": hex32(i + 1)})
		}
		answer(map[string]any{"items": items, "next_page_id": nil})
	case path == "/api/conversations/count":
		answer(len(b.conversations))
	case strings.HasSuffix(path, "/events/count"):
		c, ok := b.find(strings.ReplaceAll(strings.Split(path, "/")[3], "-", ""))
		if !ok {
			http.NotFound(out, r)
			return
		}
		answer(c.events)
	case strings.HasPrefix(path, "/api/file/download-trajectory/"):
		id := path[strings.LastIndexByte(path, '/')+1:]
		c, ok := b.find(id)
		if !ok {
			http.NotFound(out, r)
			return
		}
		cut, left := b.enter(id)
		defer left()
		out.Header().Set("Content-Type", "application/octet-stream")
		b.end(c.write(id, b.shorter(out, cut, int64(c.events)*int64(c.eventBytes))))
	case path == "/api/workspace/export":
		cut, left := b.enter("workspace")
		defer left()
		out.Header().Set("Content-Type", "application/zstd")
		body, err := b.work.Workspace(r.Context())
		if err == nil {
			_, err = io.Copy(b.shorter(out, cut, int64(b.work.files)*b.work.bytes), body)
			_ = body.Close()
		}
		b.end(err)
	default:
		http.NotFound(out, r)
	}
}

// enter counts a download and says whether it breaks off.
func (b *bigBox) enter(what string) (cut bool, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.downloads == nil {
		b.downloads = map[string]int{}
	}
	b.downloads[what]++
	b.under++
	b.most = max(b.most, b.under)
	return b.downloads[what] <= b.cut[what], func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.under--
	}
}

// shorter ends a body at 70 % of its size, where it is to be cut off.
func (b *bigBox) shorter(out io.Writer, cut bool, size int64) io.Writer {
	if !cut {
		return out
	}
	return &upTo{out, size * 7 / 10}
}

type upTo struct {
	to   io.Writer
	left int64
}

func (u *upTo) Write(p []byte) (int, error) {
	if u.left -= int64(len(p)); u.left < 0 {
		return 0, io.ErrShortWrite
	}
	return u.to.Write(p)
}

// end breaks the connection off after an error, so that a part is not taken for
// the whole.
func (b *bigBox) end(err error) {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (b *bigBox) find(id string) (c bigConversation, ok bool) {
	n, err := strconv.ParseInt(id, 16, 64)
	if err != nil || n < 1 || int(n) > len(b.conversations) {
		return c, false
	}
	return b.conversations[n-1], true
}

// write writes the conversation's zip.
func (c bigConversation) write(id string, to io.Writer) error {
	out := bufio.NewWriterSize(to, 256<<10)
	z := zip.NewWriter(out)
	block := make([]byte, 64<<10)
	seed := [32]byte{}
	copy(seed[:], id)
	random := rand.NewChaCha8(seed)
	for i := range c.events {
		f, err := z.CreateHeader(&zip.FileHeader{Name: fmt.Sprintf("%s/events/event-%05d-%s.json", id, i, hex32(i)), Method: zip.Store})
		for left := c.eventBytes; err == nil && left > 0; left -= len(block) {
			part := block[:min(left, len(block))]
			_, _ = random.Read(part) // never fails; documented
			if c.text {
				for j, b := range part {
					part[j] = letters[b%64]
				}
			}
			_, err = f.Write(part)
		}
		if err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return out.Flush()
}

// letters make words of some length, with a comma here and there.
const letters = "abcdefghijklmnopqrstuvwxyz    ABCDEFGHI\n.,0123 aeiouaeiounrstlnrst"
