package exports_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func opened(t *testing.T, s *exports.Store, n int) *exports.Conversation {
	t.Helper()
	c, err := s.OpenConversation(t.Context(), "ws", hex32(n))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func raws(t *testing.T, c *exports.Conversation, from, count int) (out []string, failed error) {
	t.Helper()
	for e, err := range c.Events(t.Context(), from, count) {
		if err != nil {
			return out, err
		}
		out = append(out, string(e.Raw))
	}
	return out, nil
}

func TestEventsArePagedByPosition(t *testing.T) {
	t.Parallel()
	src := newServer(7)
	s, _ := exported(t, newBucket(), src)
	want := src.events[hex32(1)]
	c := opened(t, s, 1)
	for _, row := range []struct{ from, count, begin, end int }{
		{0, 0, 0, 7}, {0, 3, 0, 3}, {3, 3, 3, 6}, {6, 3, 6, 7}, {7, 3, 7, 7}, {1000, 3, 7, 7}, {2, 0, 2, 7},
	} {
		got, err := raws(t, c, row.from, row.count)
		require.NoError(t, err)
		require.Equal(t, want[row.begin:row.end], append([]string{}, got...), "%+v", row)
	}
	for _, row := range [][2]int{{-1, 1}, {0, -1}} {
		_, err := raws(t, c, row[0], row[1])
		wantClass(t, err, box.ClassInvalid)
	}
	// A later export has the same events at the same positions.
	src.grow(hex32(1), 2)
	_, err := s.Export(t.Context(), request("b"), src, nil)
	require.NoError(t, err)
	later := opened(t, s, 1)
	require.Equal(t, 9, later.History.Events)
	got, err := raws(t, later, 3, 3)
	require.NoError(t, err)
	require.Equal(t, want[3:6], got)
}

// flipIn damages the content of one event where it is stored.
func flipIn(t *testing.T, b *bucket, key string, event int) {
	t.Helper()
	b.change(key, func(data []byte) []byte {
		at := bytes.Index(data, fmt.Appendf(nil, "event-%05d", event))
		require.Positive(t, at)
		data[at+70] ^= 1
		return data
	})
}

func TestADamagedEventIsTakenFromAnotherCopy(t *testing.T) {
	t.Parallel()
	b, src := newBucket(), newServer(3)
	s, first := exported(t, b, src)
	src.grow(hex32(1), 3)
	second, err := s.Export(t.Context(), request("b"), src, nil)
	require.NoError(t, err)
	require.Zero(t, second.Reused)
	want := src.events[hex32(1)]
	key := strings.Replace(second.Key, "manifest.json", "conversations/"+hex32(1)+".zip", 1)
	flipIn(t, b, key, 1)
	c := opened(t, s, 1)
	got, err := raws(t, c, 0, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	wantClass(t, c.Damage(), box.ClassUnknown)
	require.Contains(t, c.Damage().Error(), key)

	// One that no other copy has ends the reading, and is never handed out.
	flipIn(t, b, key, 4)
	got, err = raws(t, opened(t, s, 1), 0, 0)
	wantClass(t, err, box.ClassUnknown)
	require.Equal(t, want[:4], got)
	got, err = raws(t, opened(t, s, 1), 5, 0)
	require.NoError(t, err, "the rest can be read still")
	require.Equal(t, want[5:], got)
	// What is proven falls back to the copy that is whole.
	whole, err := s.ProveConversation(t.Context(), "ws", hex32(1))
	require.NoError(t, err)
	defer whole.Close() //nolint:errcheck // only read
	require.Equal(t, first.Key, whole.Manifest)
	wantClass(t, whole.Damage(), box.ClassUnknown)

	// An event of another box's conversation does not take its place.
	other := newServer(0)
	other.events[hex32(1)] = []string{message("a"), message("b")}
	other.served = func(_ int, id string, _ []byte) (io.ReadCloser, int64, error) {
		return body(zipped(t, func(w *zip.Writer) {
			for i, e := range other.events[id] {
				entry(t, w, &zip.FileHeader{Name: fmt.Sprintf("%s/events/event-%05d-%s.json", id, i, hex32(77+i))}, e)
			}
		}))
	}
	_, err = s.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 2, Attempt: "c"}, other, nil)
	require.NoError(t, err)
	b.change(strings.Replace(first.Key, "manifest.json", "conversations/"+hex32(1)+".zip", 1), func([]byte) []byte { return nil })
	got, err = raws(t, opened(t, s, 1), 0, 0)
	wantClass(t, err, box.ClassUnknown)
	require.Equal(t, want[:1], got)
}

func TestAStoreThatIsAwayIsNoDamage(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s, _ := exported(t, b, newServer(3))
	c := opened(t, s, 1)
	b.read = func(key string) error {
		if strings.HasSuffix(key, ".zip") {
			return errFailing
		}
		return nil
	}
	_, err := s.OpenConversation(t.Context(), "ws", hex32(1))
	wantClass(t, err, box.ClassUnavailable)
	_, err = s.ProveConversation(t.Context(), "ws", hex32(1))
	wantClass(t, err, box.ClassUnavailable)
	got, err := raws(t, c, 0, 0)
	require.NoError(t, err, "what was read before is kept")
	require.Len(t, got, 3)
}

func TestAConversationOfAnotherLengthIsNotOpened(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{
		"longer":  func(d []byte) []byte { return append(d, 0) },
		"shorter": func(d []byte) []byte { return d[:len(d)-1] },
		"fewer events": func(d []byte) []byte {
			return bytes.ReplaceAll(d, []byte("events/event-00001"), []byte("events/other-00001"))
		},
		"not there":     func([]byte) []byte { return nil },
		"cut by a read": nil,
	} {
		b := newBucket()
		s, receipt := exported(t, b, newServer(3))
		key := strings.Replace(receipt.Key, "manifest.json", "conversations/"+hex32(1)+".zip", 1)
		if change == nil {
			b.handed = func(name string, data []byte) []byte {
				if name == key {
					data = data[:len(data)/2]
				}
				return data
			}
		} else {
			b.change(key, change)
		}
		if _, err := s.OpenConversation(t.Context(), "ws", hex32(1)); box.ClassOf(err) != box.ClassUnknown {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Some agent-servers pack in the order of the disk.
func TestEventsThatLieScatteredAreNotFetchedOneByOne(t *testing.T) {
	t.Parallel()
	const events = 400
	content := make([]string, events)
	order := make([]int, events)
	for i := range content {
		content[i], order[i] = message(fmt.Sprint(i, " ", strings.Repeat("word ", 4000))), i
	}
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(events, func(i, j int) { order[i], order[j] = order[j], order[i] })
	data := zipped(t, func(w *zip.Writer) {
		for _, i := range order {
			entry(t, w, &zip.FileHeader{Name: fmt.Sprintf("%s/events/event-%05d-x.json", hex32(1), i), Method: zip.Store}, content[i])
		}
	})
	b, src := newBucket(), newServer(events)
	src.served = func(int, string, []byte) (io.ReadCloser, int64, error) { return body(data) }
	s, receipt := exported(t, b, src)
	b.sent, b.reads = 0, 0
	got, err := raws(t, opened(t, s, 1), 0, 0)
	require.NoError(t, err)
	require.Equal(t, content, got)
	require.Less(t, b.sent, 2*int64(len(data)))
	require.Less(t, b.reads, 20)
	// A few of them are.
	b.sent = 0
	got, err = raws(t, opened(t, s, 1), 200, 3)
	require.NoError(t, err)
	require.Equal(t, content[200:203], got)
	require.Less(t, b.sent, int64(len(data))/4)
	// When the copy is damaged, what is whole of it is read still.
	flipIn(t, b, strings.Replace(receipt.Key, "manifest.json", "conversations/"+hex32(1)+".zip", 1), 399)
	got, err = raws(t, opened(t, s, 1), 0, 0)
	wantClass(t, err, box.ClassUnknown)
	require.Equal(t, content[:399], got)
}

func TestFilesAreListedAndReadOneByOne(t *testing.T) {
	t.Parallel()
	src := newServer(2)
	s, _ := exported(t, newBucket(), src)
	for _, open := range []func(context.Context, string, string) (*exports.Conversation, error){s.OpenConversation, s.ProveConversation} {
		c, err := open(t.Context(), "ws", hex32(1))
		require.NoError(t, err)
		var names []string
		for f, err := range c.Files(t.Context()) {
			require.NoError(t, err)
			names = append(names, fmt.Sprint(f.Name, " ", f.SizeBytes))
		}
		id := hex32(1)
		require.Equal(t, []string{
			id + "/meta.json 41", id + "/base_state.json 27",
			fmt.Sprint(id, "/events/event-00000-", hex32(0), ".json ", len(src.events[id][0])), fmt.Sprint(id, "/events/event-00001-", hex32(1), ".json ", len(src.events[id][1])),
		}, names)
		for _, name := range []string{"base_state.json", id + "/base_state.json"} {
			f, err := c.Find(t.Context(), name)
			require.NoError(t, err)
			r, err := c.OpenFile(t.Context(), f)
			require.NoError(t, err)
			content, err := io.ReadAll(r)
			require.NoError(t, err)
			require.JSONEq(t, `{"execution_status":"idle"}`, string(content))
		}
		_, err = c.Find(t.Context(), "events/event-00002")
		wantClass(t, err, box.ClassNotFound)
		var copied bytes.Buffer
		require.NoError(t, c.WriteZip(t.Context(), &copied))
		require.Equal(t, packed(id, src.events[id]...), copied.Bytes())
		require.ErrorIs(t, c.WriteZip(t.Context(), brokenPipe{}), io.ErrClosedPipe)
		require.NoError(t, c.Close())
	}
}

func TestFilesOfAnAlteredZipAreNotHandedOut(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(d []byte) []byte
		listed bool // the damage is found when a file is read
	}{
		"a name that climbs":   {func(d []byte) []byte { return bytes.ReplaceAll(d, []byte("/meta.json"), []byte("/../m.json")) }, false},
		"a control character":  {func(d []byte) []byte { return bytes.ReplaceAll(d, []byte("/meta.json"), []byte("/meta\njson")) }, false},
		"altered content":      {func(d []byte) []byte { d[bytes.Index(d, []byte("/base_state.json"))+20] ^= 1; return d }, true},
		"a link in its place":  {func(d []byte) []byte { return asLink(d, "/meta.json") }, false},
		"another local header": {func(d []byte) []byte { return bytes.Replace(d, []byte("/base_state"), []byte("/base_slate"), 1) }, true},
	} {
		b := newBucket()
		s, receipt := exported(t, b, newServer(1))
		key := strings.Replace(receipt.Key, "manifest.json", "conversations/"+hex32(1)+".zip", 1)
		size := len(b.objects[key])
		b.change(key, row.change)
		require.Len(t, b.objects[key], size)
		c := opened(t, s, 1)
		err := readAllFiles(t, c)
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), "%s: %v", name, err)
		require.Equal(t, row.listed, !strings.Contains(err.Error(), "name that") && !strings.Contains(err.Error(), "link"), "%s: %v", name, err)
		require.Equal(t, box.ClassUnknown, box.ClassOf(c.WriteZip(t.Context(), io.Discard)), name)
		_, err = s.ProveConversation(t.Context(), "ws", hex32(1))
		require.Equal(t, box.ClassUnknown, box.ClassOf(err), name)
	}
}

// asLink makes an entry a symbolic link, in the directory of the zip.
func asLink(d []byte, name string) []byte {
	at := bytes.LastIndex(d, []byte(name)) - 46 - len(hex32(1))
	d[at+5] = 3 // made on Unix
	d[at+38], d[at+39], d[at+40], d[at+41] = 0, 0, 0xff, 0xa1
	return d
}

func readAllFiles(t *testing.T, c *exports.Conversation) error {
	t.Helper()
	for f, err := range c.Files(t.Context()) {
		if err != nil {
			return err
		}
		r, err := c.OpenFile(t.Context(), f)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
	}
	return nil
}

func TestReadingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, _ := exported(t, newBucket(), newServer(3))
	c := opened(t, s, 1)
	f, err := c.Find(t.Context(), "meta.json")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := c.OpenFile(ctx, f)
	require.NoError(t, err)
	cancel()
	_, err = io.ReadAll(r)
	wantClass(t, err, box.ClassCanceled)
	for _, err := range c.Events(ctx, 0, 0) {
		wantClass(t, err, box.ClassCanceled)
	}
	wantClass(t, c.WriteZip(ctx, io.Discard), box.ClassCanceled)
	require.ErrorIs(t, c.WriteText(ctx, io.Discard, 0, 0), context.Canceled)
	if _, err := s.OpenConversation(ctx, "ws", hex32(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
