package server_test

import (
	"archive/zip"
	"bytes"
	"fmt"
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
