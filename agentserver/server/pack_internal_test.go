package server

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/internal/race"
)

// largeVariable asks for sizes that take minutes: one event of 325 MB and a file
// of more than 4 GiB.
const largeVariable = "BOXKEEPER_TEST_LARGE"

// conversation makes the directory of one and opens it.
func conversation(t *testing.T, files map[string]string) (dir *os.Root, place string) {
	t.Helper()
	place = filepath.Join(t.TempDir(), strings.Repeat("a", 32))
	require.NoError(t, os.MkdirAll(filepath.Join(place, "events"), 0o700))
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(place, name), []byte(content), 0o600))
	}
	dir, err := os.OpenRoot(place)
	require.NoError(t, err)
	t.Cleanup(func() { dir.Close() })
	return dir, place
}

func packed(t *testing.T, dir *os.Root) map[string]string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, pack(t.Context(), dir, "id", &out))
	archive, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	files := map[string]string{}
	for _, entry := range archive.File {
		file, err := entry.Open()
		require.NoError(t, err)
		text, err := io.ReadAll(file)
		require.NoError(t, err)
		files[strings.TrimPrefix(entry.Name, "id/")] = string(text)
	}
	return files
}

// Whatever makes a file unreadable to a parser does not make it pass as it is.
func TestAFileThatIsNoJSONIsMaskedAsText(t *testing.T) {
	t.Parallel()
	const secret = "sk-canary-0123456789"
	long := strings.Repeat(" ", wholeJSON)
	files := map[string]string{}
	for name, content := range map[string]string{
		"a byte order mark":      "\xef\xbb\xbf" + `{"api_key":"` + secret + `"}`,
		"cut off":                `{"a":1,"api_key":"` + secret,
		"cut off in a key":       `{"api_key":"` + secret + `","api_k`,
		"something after it":     `{"api_key":"` + secret + `"} }`,
		"one key twice":          `{"api_key":"` + secret + `","api_key":"` + secret + `2"}`,
		"an escaped key":         `{"api\u005fkey":"` + secret + `"}`,
		"an escaped key, cut":    `{"api\u005fkey":"` + secret + `"`,
		"a NUL":                  `{"api_key":"` + secret + "\x00" + `"}`,
		"a bare line feed":       "{\"api_key\":\"" + secret + "\nmore\"}",
		"a comma too many":       `{"api_key":"` + secret + `",}`,
		"a number that is none":  `{"n":NaN,"api_key":"` + secret + `"}`,
		"single quotes":          `{'api_key': '` + secret + `'}`,
		"deeper than is read":    strings.Repeat("[", 20_000) + `{"api_key":"` + secret + `"}` + strings.Repeat("]", 20_000),
		"bytes that are no text": "{\"x\":\"\xff\xfe\",\"api_key\":\"" + secret + "\"}",
		"one bad line":           `{"api_key":"` + secret + `"}` + "\n{bad\n" + `{"api_key":"` + secret + `"}`,
		"a token in a key":       `{"x` + fernet + `":1}`,
		"a token in the middle":  `{"x":"Bearer ` + fernet + ` and"}`,
		"a token, cut off":       `{"x":"` + fernet,
	} {
		files[name+".json"], files[name+", long.jsonl"] = content, long+content
	}
	dir, _ := conversation(t, files)
	out := packed(t, dir)
	for name := range files {
		require.Contains(t, out, name)
		require.NotContains(t, out[name], "sk-canary", name)
		require.NotContains(t, out[name], fernet[10:40], name)
	}
	require.Len(t, out, len(files)+2)
}

// A token is found wherever the buffers end.
func TestATokenAcrossTheEdgeOfABufferIsMasked(t *testing.T) {
	t.Parallel()
	for _, edge := range []int{64 << 10, 128 << 10, wholeJSON} {
		for shift := -2 * len(fernet); shift <= len(fernet); shift += 7 * race.Slowness {
			text := `{"x":"` + strings.Repeat("y", edge+shift) + " " + fernet + ` z","api_key":"` + strings.Repeat("s", 70_000) + `"}`
			var out bytes.Buffer
			require.NoError(t, redactJSON(&out, strings.NewReader(text)))
			require.NotContains(t, out.String(), fernet[20:60])
			require.NotContains(t, out.String(), "ssss")
			require.True(t, json.Valid(out.Bytes()))
		}
	}
}

func FuzzJSONIsToldFromTheRest(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+10,"x\u00e4\n",true,false,null,{}],"b":{}}`, `[`, `]`, `{"a"}`, `{"a":}`, `{,}`, `[1,]`, `01`, `1.`, `-`, `1e`, `"\x"`, "\"\n\"", `1 2`, `{}{}`, ``, ` `, `"a""b"`, `nul`, `[1 2]`, `{"a":1 "b"}`, `{1:2}`, "\xef\xbb\xbf{}", `.5`, `+1`, `1.5.2`, `"\u12G4"`, `{"a":1,}`,
	} {
		f.Add(seed, 3)
	}
	f.Fuzz(func(t *testing.T, text string, cut int) {
		want := true
		for decoder := json.NewDecoder(strings.NewReader(text)); ; {
			var skip json.RawMessage
			err := decoder.Decode(&skip)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				want = false
				break
			}
		}
		var c jsonChecker
		cut = max(0, min(cut, len(text)))
		got := c.write([]byte(text[:cut])) && c.write([]byte(text[cut:])) && c.complete()
		require.Equal(t, want, got, "%q", text)
	})
}

// peak returns the most of the heap that was in use beyond what it began with.
func peak(run func()) uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	before := stats.HeapAlloc
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var stats runtime.MemStats
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			runtime.ReadMemStats(&stats)
			most.Store(max(most.Load(), stats.HeapAlloc))
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
	return most.Load() - min(before, most.Load())
}

// One event may be larger than memory: valid ones and broken ones alike. It runs
// alone, since it looks at the heap.
func TestScenario94AHugeEventNeedsLittleMemory(t *testing.T) { //nolint:paralleltest // see above
	size := (48 << 20) / race.Slowness
	if os.Getenv(largeVariable) != "" {
		size = 325 << 20
	}
	dir, place := conversation(t, nil)
	for name, ends := range map[string]string{"event-00000-aaaaaaaa.json": `"}`, "event-00001-bbbbbbbb.json": ``} {
		file, err := os.Create(filepath.Join(place, "events", name))
		require.NoError(t, err)
		_, err = file.WriteString(`{"api_key":"sk-canary","text":"`)
		require.NoError(t, err)
		block := []byte(strings.Repeat("all work and no play \\n", 1<<12))
		for n := 0; n < size; n += len(block) {
			_, err = file.Write(block)
			require.NoError(t, err)
		}
		_, err = file.WriteString(ends)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
	began := time.Now()
	grew := peak(func() { require.NoError(t, pack(t.Context(), dir, "id", io.Discard)) })
	t.Logf("two events of %d MiB each: %.1f MiB of heap, %.1f s", size>>20, float64(grew)/(1<<20), time.Since(began).Seconds())
	require.Less(t, grew, uint64(32<<20))
}

// An archive has more entries and larger ones than the old form of the format
// holds.
func TestAnArchiveMayBeLarge(t *testing.T) {
	t.Parallel()
	const many = 66_000 / race.Slowness // more than 65,535 need the new form
	dir, place := conversation(t, map[string]string{"seed-0.txt": "x", "seed-1.txt": "y"})
	// More names of a file are quickly made; no file may have as many as are needed.
	for i := range many {
		seed := filepath.Join(place, fmt.Sprintf("seed-%d.txt", i%2))
		require.NoError(t, os.Link(seed, filepath.Join(place, fmt.Sprintf("link-%06d.txt", i))))
	}
	large := int64(1 << 20)
	if os.Getenv(largeVariable) != "" {
		large = 4<<30 + 4096
	}
	require.NoError(t, os.WriteFile(filepath.Join(place, "sparse.bin"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(place, "sparse.bin"), large))
	var out bytes.Buffer
	require.NoError(t, pack(t.Context(), dir, "id", &out))
	archive, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.Len(t, archive.File, many+5)
	last, err := archive.Open("id/sparse.bin")
	require.NoError(t, err)
	n, err := io.Copy(io.Discard, last) // the sum is checked at the end
	require.NoError(t, err)
	require.Equal(t, large, n)
}

// Of a file that is replaced, removed or added while it is packed, the archive
// holds one version as a whole.
func TestWhatChangesMeanwhileIsPackedAsOneVersion(t *testing.T) {
	t.Parallel()
	dir, place := conversation(t, map[string]string{"base_state.json": `{"v":0}`})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			text := fmt.Sprintf(`{"v":%d,"pad":"%s","again":%d}`, i, strings.Repeat("p", i%5000), i)
			draft := filepath.Join(place, "base_state.json.tmp")
			_ = os.WriteFile(draft, []byte(text), 0o600)
			_ = os.Rename(draft, filepath.Join(place, "base_state.json"))
			if i >= 2000 {
				continue
			}
			_ = os.WriteFile(filepath.Join(place, "events", fmt.Sprintf("event-%05d-%08x.json", i, i)), []byte(text), 0o600)
			other := filepath.Join(place, fmt.Sprintf("other-%d.json", i%3))
			_ = os.WriteFile(other, []byte("{}"), 0o600)
			_ = os.Remove(other)
		}
	}()
	for range max(3, 25/race.Slowness) {
		files := packed(t, dir)
		var state struct{ V, Again int }
		require.NoError(t, json.Unmarshal([]byte(files["base_state.json"]), &state))
		require.Equal(t, state.V, state.Again)
		events, most := 0, -1
		for name := range files {
			if n := indexOf(filepath.Base(name)); n >= 0 {
				events++
				most = max(most, n)
			}
		}
		require.Equal(t, most+1, events, "no event is missing before the last")
	}
	close(stop)
	<-done
}

// A directory that is swapped for a link while it is packed leads nowhere.
func TestALinkThatComesMeanwhileIsNotFollowed(t *testing.T) {
	t.Parallel()
	dir, place := conversation(t, map[string]string{"events/event-00000-aaaaaaaa.json": `{"in":1}`, "meta.json": "{}"})
	// Inside the same tree as well, where only the link makes it wrong.
	outside := filepath.Join(place, "acp")
	require.NoError(t, os.MkdirAll(outside, 0o700))
	for _, name := range []string{"event-00000-aaaaaaaa.json", "meta.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(outside, name), []byte(`{"canary":1}`), 0o600))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		events, meta := filepath.Join(place, "events"), filepath.Join(place, "meta.json")
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, one := range []string{events, meta} {
				aside := filepath.Join(filepath.Dir(place), "aside-"+filepath.Base(one))
				_ = os.Rename(one, aside)
				target := "acp"
				if one == meta {
					target = "acp/meta.json"
				}
				_ = os.Symlink(target, one)
				_ = os.Remove(one)
				_ = os.Rename(aside, one)
			}
		}
	}()
	whole := 0
	for range 500 {
		var out bytes.Buffer
		if pack(t.Context(), dir, "id", &out) != nil {
			continue // it may say that it cannot
		}
		whole++
		archive, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
		require.NoError(t, err)
		for _, entry := range archive.File {
			file, err := entry.Open()
			require.NoError(t, err)
			text, err := io.ReadAll(file)
			require.NoError(t, err)
			require.NotContains(t, string(text), "canary", entry.Name)
		}
	}
	close(stop)
	<-done
	t.Logf("%d of 500 were packed", whole)
}
