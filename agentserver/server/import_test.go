package server_test

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

func connect(t *testing.T, address string) *agentserver.Client {
	t.Helper()
	c, err := agentserver.New(agentserver.Options{URL: address, SessionKey: key})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// trajectory downloads a conversation as an export does.
func trajectory(t *testing.T, c *agentserver.Client, id string) []byte {
	t.Helper()
	body, _, err := c.DownloadTrajectory(t.Context(), id)
	require.NoError(t, err)
	defer body.Close()
	packed, err := io.ReadAll(body)
	require.NoError(t, err)
	return packed
}

func put(t *testing.T, c *agentserver.Client, id string, packed []byte) (agentserver.Imported, error) {
	t.Helper()
	return c.ImportHistory(t.Context(), id, bytes.NewReader(packed), int64(len(packed)))
}

func TestAHistoryGoesIntoANewBoxAndComesOutTheSame(t *testing.T) {
	t.Parallel()
	from, _ := alone(t, 3)
	to, root, _ := front(t, nil, "")
	old, fresh := connect(t, from), connect(t, to)
	info, err := fresh.Info(t.Context())
	require.NoError(t, err)
	require.True(t, info.Has(agentserver.CapabilityHistoryImport))
	for i := 1; i <= 3; i++ {
		id := fmt.Sprintf("%032x", i)
		packed := trajectory(t, old, id)
		got, err := put(t, fresh, id, packed)
		require.NoError(t, err)
		require.Equal(t, agentserver.Imported{ID: id, Events: i}, got)
		require.Equal(t, packed, trajectory(t, fresh, id), "what comes out is what went in")
		_, err = put(t, fresh, id, packed)
		require.Equal(t, box.ClassConflict, box.ClassOf(err), "one that is there is not written over: %v", err)
	}
	before, err := old.Use(t.Context())
	require.NoError(t, err)
	after, err := fresh.Use(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Digest, after.Digest)
	require.Equal(t, 6, after.Events)
	left, err := os.ReadDir(filepath.Join(root, "run", "import"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAHistoryThatIsNotOneIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	type file struct {
		name, body string
		mode       fs.FileMode
	}
	packed := func(files ...file) []byte {
		var buf bytes.Buffer
		w := zip.NewWriter(&buf)
		for _, f := range files {
			h := &zip.FileHeader{Name: f.name, Method: zip.Store}
			h.SetMode(f.mode)
			if f.mode == 0 {
				h.SetMode(0o600)
			}
			entry, err := w.CreateHeader(h)
			require.NoError(t, err)
			_, err = io.WriteString(entry, f.body)
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		return buf.Bytes()
	}
	good := packed(file{name: id + "/meta.json", body: "{}"}, file{name: id + "/events/event-00000-12345678.json", body: "{}"})
	for name, body := range map[string][]byte{
		"no zip":                      []byte("hello"),
		"an empty body":               {},
		"a zip that is cut off":       good[:len(good)-30],
		"a damaged entry":             bytes.Replace(good, []byte("{}"), []byte("[]"), 1),
		"an empty zip":                packed(),
		"another conversation":        packed(file{name: strings.Repeat("b", 32) + "/meta.json", body: "{}"}),
		"a name that climbs":          packed(file{name: id + "/../../../escape", body: "x"}),
		"an absolute name":            packed(file{name: "/etc/escape", body: "x"}),
		"a backslash":                 packed(file{name: id + `/..\escape`, body: "x"}),
		"a link":                      packed(file{name: id + "/link", body: "/etc/passwd", mode: fs.ModeSymlink | 0o777}),
		"a device":                    packed(file{name: id + "/device", mode: fs.ModeDevice | 0o600}),
		"one name twice":              packed(file{name: id + "/a", body: "1"}, file{name: id + "/a", body: "2"}),
		"a file that is a directory":  packed(file{name: id + "/a", body: "1"}, file{name: id + "/a/b", body: "2"}),
		"the conversation is a file":  packed(file{name: id, body: "x"}),
		"an entry that is too deep":   packed(file{name: id + strings.Repeat("/d", 40), body: "x"}),
		"a link and then through it":  packed(file{name: id + "/l", body: "/tmp", mode: fs.ModeSymlink}, file{name: id + "/l/x", body: "x"}),
		"a conversation with a slash": packed(file{name: id + "//meta.json", body: "{}"}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, root, _ := front(t, nil, "")
			c := connect(t, address)
			_, err := put(t, c, id, body)
			require.Error(t, err)
			require.Equal(t, box.ClassInvalid, box.ClassOf(err), err)
			require.NoDirExists(t, filepath.Join(root, "imported"))
			left, err := os.ReadDir(filepath.Join(root, "run", "import"))
			require.NoError(t, err)
			require.Empty(t, left)
			require.NoFileExists(t, filepath.Join(root, "..", "escape"))
			got, err := put(t, c, id, good)
			require.NoError(t, err, "the next one is taken in")
			require.Equal(t, 1, got.Events)
		})
	}
}

func TestAHistoryIsTakenInWithTheKeyOnly(t *testing.T) {
	t.Parallel()
	address, _, _ := front(t, nil, "")
	response, err := keyless(t, http.MethodPut, address+"/api/boxd/history/"+strings.Repeat("a", 32), strings.NewReader("x"))
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	_, err = put(t, connect(t, address), "no-id", []byte("x"))
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
}

func TestWhatACutOffImportLeftIsClearedByTheNext(t *testing.T) {
	t.Parallel()
	from, _ := alone(t, 1)
	address, root, _ := front(t, nil, "")
	left := filepath.Join(root, "run", "import", fmt.Sprintf("%032x", 1), fmt.Sprintf("%032x", 1), "events")
	require.NoError(t, os.MkdirAll(left, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(left, "event-00007-deadbeef.json"), []byte("{}"), 0o600))
	id := fmt.Sprintf("%032x", 1)
	got, err := put(t, connect(t, address), id, trajectory(t, connect(t, from), id))
	require.NoError(t, err)
	require.Equal(t, 1, got.Events, "and is no part of it")
}

// declared packs one entry that says that it is as large as says.
func declared(t *testing.T, id string, says uint64, really int) []byte {
	t.Helper()
	var deflated bytes.Buffer
	w, err := flate.NewWriter(&deflated, flate.BestSpeed)
	require.NoError(t, err)
	sum := crc32.NewIEEE()
	_, err = io.CopyN(io.MultiWriter(w, sum), zeros{}, int64(really))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	entry, err := archive.CreateRaw(&zip.FileHeader{
		Name: id + "/events/event-00000-12345678.json", Method: zip.Deflate, CRC32: sum.Sum32(),
		CompressedSize64: uint64(deflated.Len()), UncompressedSize64: says,
	})
	require.NoError(t, err)
	_, err = entry.Write(deflated.Bytes())
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	return out.Bytes()
}

func TestABombDoesNotFillTheDisk(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	for name, row := range map[string]struct {
		body  []byte
		class box.Class
	}{
		"one that says less than it is":      {declared(t, id, 10, 64<<20), box.ClassInvalid},
		"one that says more than it is":      {declared(t, id, 1<<20, 10), box.ClassInvalid},
		"one that says what no disk holds":   {declared(t, id, 1<<60, 10), box.ClassExhausted},
		"one that says more than a number":   {declared(t, id, 1<<63+5, 10), box.ClassExhausted},
		"one that is honest and within room": {declared(t, id, 1<<20, 1<<20), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, root, _ := front(t, nil, "")
			_, err := put(t, connect(t, address), id, row.body)
			require.Equal(t, row.class, box.ClassOf(err), "%v", err)
			left, err := os.ReadDir(filepath.Join(root, "run", "import"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestTwoImportsOfOneHistoryMakeOne(t *testing.T) {
	t.Parallel()
	from, _ := alone(t, 5)
	address, _, _ := front(t, nil, "")
	old := connect(t, from)
	results := make(chan error, 20)
	want := map[string][]byte{}
	for i := 1; i <= 5; i++ {
		id := fmt.Sprintf("%032x", i)
		want[id] = trajectory(t, old, id)
		for range 4 {
			c := connect(t, address)
			go func() {
				_, err := c.ImportHistory(t.Context(), id, bytes.NewReader(want[id]), int64(len(want[id])))
				results <- err
			}()
		}
	}
	taken := 0
	for range cap(results) {
		if err := <-results; err == nil {
			taken++
		} else {
			require.Equal(t, box.ClassConflict, box.ClassOf(err), "%v", err)
		}
	}
	require.Equal(t, 5, taken)
	for id, packed := range want {
		require.Equal(t, packed, trajectory(t, connect(t, address), id))
	}
}

// A sender that stops in the middle keeps no other history waiting, and when
// boxd is killed then, nothing of it is left.
func TestAKilledImportLeavesNothing(t *testing.T) {
	t.Parallel()
	from, _ := alone(t, 2)
	root := t.TempDir()
	b := startBoxd(t, root)
	first, second := fmt.Sprintf("%032x", 1), fmt.Sprintf("%032x", 2)
	packed := trajectory(t, connect(t, from), first)
	body, send := io.Pipe()
	t.Cleanup(func() { _ = send.Close() })
	go func() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.url+"/api/boxd/history/"+first, body)
		if err != nil {
			return
		}
		request.Header.Set("X-Session-API-Key", key)
		if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
			response.Body.Close()
		}
	}()
	_, err := send.Write(packed[:len(packed)/2])
	require.NoError(t, err)
	await(t, "half of the history to arrive", func() bool {
		info, err := os.Stat(filepath.Join(root, "run/import", first, "history.zip"))
		return err == nil && info.Size() == int64(len(packed)/2)
	})
	_, err = put(t, connect(t, b.url), second, trajectory(t, connect(t, from), second))
	require.NoError(t, err)
	require.NoError(t, b.Process.Kill())
	<-b.ended
	b.ended <- nil
	again := startBoxd(t, root)
	require.NoDirExists(t, filepath.Join(root, "run/import"))
	use := useOf(t, again)
	require.Equal(t, 1, use.Conversations, "the one that was whole")
	_, err = put(t, connect(t, again.url), first, packed)
	require.NoError(t, err)
	require.Equal(t, packed, trajectory(t, connect(t, again.url), first))
}

// The catalogue of a box shows what was put back among what is the agent-server's
// own, in one order, whatever the size of a page.
func TestWhatWasPutBackIsListedWithTheRest(t *testing.T) {
	t.Parallel()
	from, conversations := alone(t, 9)
	back, root, _ := front(t, nil, "")
	var theirs http.Handler // an agent-server that has the odd ones
	address, imported, _ := front(t, func(w http.ResponseWriter, r *http.Request) { theirs.ServeHTTP(w, r) }, "")
	_ = back
	for i := 1; i <= 9; i++ {
		id := fmt.Sprintf("%032x", i)
		if i%2 == 1 {
			require.NoError(t, os.CopyFS(filepath.Join(root, "conversations", id), os.DirFS(filepath.Join(conversations, id))))
			continue
		}
		_, err := put(t, connect(t, address), id, trajectory(t, connect(t, from), id))
		require.NoError(t, err)
	}
	require.DirExists(t, filepath.Join(imported, "imported"))
	theirs = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := http.NewRequestWithContext(r.Context(), r.Method, back+r.URL.RequestURI(), nil)
		if err != nil {
			return
		}
		request.Header = r.Header
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			return
		}
		defer response.Body.Close()
		w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	})
	for _, order := range []string{"", "&sort_order=CREATED_AT", "&sort_order=UPDATED_AT_DESC", "&status=running"} {
		for _, limit := range []int{1, 2, 4, 100} {
			list := func(base string) (ids []string) {
				for next := ""; ; {
					var page struct {
						Items []struct {
							ID string `json:"id"`
						} `json:"items"`
						Next string `json:"next_page_id"`
					}
					get(t, fmt.Sprintf("%s/api/conversations/search?limit=%d%s&page_id=%s", base, limit, order, next), &page)
					require.LessOrEqual(t, len(page.Items), limit)
					for _, item := range page.Items {
						ids = append(ids, item.ID)
					}
					if next = page.Next; next == "" {
						return ids
					}
				}
			}
			require.Equal(t, list(from), list(address), "%s by %d", order, limit)
		}
	}
	var n int
	get(t, address+"/api/conversations/count?status=running", &n)
	require.Equal(t, 5, n)
	status, _, _ := ask(t, http.MethodGet, address+"/api/conversations/search?limit=0", "")
	require.Equal(t, http.StatusUnprocessableEntity, status, "the agent-server's refusal")
	response, err := keyless(t, http.MethodGet, address+"/api/conversations/count", nil)
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}
