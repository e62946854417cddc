package exports

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

const testID = "0123456789abcdef0123456789abcdef"

type file struct {
	name, content string
	method        uint16
	raw           bool // sizes in the local header, as Python writes them
}

func build(t testing.TB, files ...file) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, f := range files {
		var out io.Writer
		var err error
		if f.raw {
			out, err = w.CreateRaw(&zip.FileHeader{
				Name: f.name, Method: zip.Store, CRC32: crc32.ChecksumIEEE([]byte(f.content)),
				CompressedSize64: uint64(len(f.content)), UncompressedSize64: uint64(len(f.content)),
			})
		} else {
			out, err = w.CreateHeader(&zip.FileHeader{Name: f.name, Method: f.method})
		}
		if err == nil {
			_, err = io.WriteString(out, f.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func check(t testing.TB, data []byte) (zipFacts, error) {
	t.Helper()
	return checkZip(t.Context(), bytes.NewReader(data), int64(len(data)), testID, nil)
}

func event(n int) string { return fmt.Sprintf("%s/events/event-%05d-x.json", testID, n) }

func TestCheckZipCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(rt, "events")
		var files []file
		unpacked := 0
		for i := range n {
			f := file{name: event(i), content: rapid.String().Draw(rt, "content"), method: zip.Deflate}
			if rapid.Bool().Draw(rt, "stored") {
				f.method, f.raw = zip.Store, rapid.Bool().Draw(rt, "raw")
			}
			unpacked += len(f.content)
			files = append(files, f)
		}
		files = append(files, file{name: testID + "/meta.json", content: "{}"}, file{name: testID + "/events/"})
		facts, err := check(t, build(t, files...))
		if err != nil {
			rt.Fatal(err)
		}
		if facts.events != n || facts.entries != n+2 || facts.unpacked != int64(unpacked+2) {
			rt.Fatalf("%+v of %d events", facts, n)
		}
	})
}

// TestEveryFlippedBitIsNoticed flips each bit of a small zip: the events are
// either unchanged or the zip is refused.
func TestEveryFlippedBitIsNoticed(t *testing.T) {
	t.Parallel()
	data := build(t, file{name: event(0), content: `{"kind":"MessageEvent"}`, method: zip.Deflate}, file{name: event(1), content: `{"a":1}`, raw: true})
	want := contents(t, data)
	accepted := 0
	for i := range data {
		for bit := range 8 {
			bad := slices.Clone(data)
			bad[i] ^= 1 << bit
			facts, err := check(t, bad)
			if err != nil {
				if _, ok := errors.AsType[badZip](err); !ok {
					t.Fatalf("byte %d: %v", i, err)
				}
				continue
			}
			accepted++ // times, attributes, versions: nothing that is read
			if err := readByOthers(bad); err != nil {
				t.Fatalf("byte %d bit %d is accepted, and others cannot read it: %v", i, bit, err)
			}
			if facts.events == 2 && !slices.Equal(contents(t, bad), want) {
				t.Fatalf("byte %d bit %d changes what is read", i, bit)
			}
		}
	}
	if accepted == 0 || accepted > len(data)*4 {
		t.Errorf("%d of %d flips are accepted", accepted, len(data)*8)
	}
	for n := range data {
		if _, err := check(t, data[:n]); err == nil {
			t.Fatalf("a zip cut to %d of %d bytes is accepted", n, len(data))
		}
	}
}

// readByOthers reads a zip with the standard reader, which boxes use to take a
// history in.
func readByOthers(data []byte) error {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
	}
	return nil
}

func contents(t testing.TB, data []byte) (out []string) {
	t.Helper()
	z, err := openZip(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	u := newUnpacker(z)
	err = z.walk(t.Context(), func(e zipEntry) error {
		again, err := z.entryAt(e.at, e.number)
		if err != nil || again != e {
			t.Fatalf("entry %d reads again as %+v %v", e.number, again, err)
		}
		r, _, err := u.open(e)
		if err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		out = append(out, e.name+"="+string(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestHostileZips(t *testing.T) {
	t.Parallel()
	le := binary.LittleEndian
	ok := build(t, file{name: event(0), content: strings.Repeat("x", 300), raw: true}, file{name: event(1), content: strings.Repeat("y", 300), raw: true})
	end := len(ok) - endLen
	dir := int(le.Uint32(ok[end+16:]))
	second := bytes.LastIndex(ok, []byte{0x50, 0x4b, 1, 2})
	for name, harm := range map[string]func(d []byte) []byte{
		"count too low":                 func(d []byte) []byte { le.PutUint16(d[end+8:], 1); le.PutUint16(d[end+10:], 1); return d },
		"count too high":                func(d []byte) []byte { le.PutUint16(d[end+8:], 3); le.PutUint16(d[end+10:], 3); return d },
		"count of 65534":                func(d []byte) []byte { le.PutUint16(d[end+8:], 65534); le.PutUint16(d[end+10:], 65534); return d },
		"several disks":                 func(d []byte) []byte { le.PutUint16(d[end+4:], 1); return d },
		"directory beyond the end":      func(d []byte) []byte { le.PutUint32(d[end+16:], uint32(len(d))); return d },
		"directory of the whole file":   func(d []byte) []byte { le.PutUint32(d[end+12:], uint32(end)); le.PutUint32(d[end+16:], 0); return d },
		"entry in the directory":        func(d []byte) []byte { le.PutUint32(d[dir+42:], uint32(dir)); return d },
		"entry far outside":             func(d []byte) []byte { le.PutUint32(d[dir+42:], 0xfffffffe); return d },
		"two entries share their data":  func(d []byte) []byte { le.PutUint32(d[second+42:], 0); return d },
		"packed size over the end":      func(d []byte) []byte { le.PutUint32(d[dir+20:], 1<<30); le.PutUint32(d[18:], 1<<30); return d },
		"size larger than stored":       func(d []byte) []byte { le.PutUint32(d[dir+24:], 1<<31); le.PutUint32(d[22:], 1<<31); return d },
		"64-bit sizes that are missing": func(d []byte) []byte { le.PutUint32(d[dir+20:], 0xffffffff); return d },
		"encrypted":                     func(d []byte) []byte { d[dir+8] |= 1; d[6] |= 1; return d },
		"unknown method":                func(d []byte) []byte { d[dir+10], d[8] = 93, 93; return d },
		"other name in the data":        func(d []byte) []byte { d[localLen] ^= 1; return d },
		"no name":                       func(d []byte) []byte { le.PutUint16(d[dir+28:], 0); return d },
		"bytes behind the end":          func(d []byte) []byte { return append(d, "PK"...) },
		"bytes before the start":        func(d []byte) []byte { return append([]byte("#!/bin/sh\n"), d...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := check(t, harm(slices.Clone(ok))); err == nil {
				t.Error("it is accepted")
			} else if _, bad := errors.AsType[badZip](err); !bad {
				t.Errorf("%v is not a verdict on the zip", err)
			}
		})
	}
	if _, err := check(t, ok); err != nil {
		t.Fatalf("the zip before the harm: %v", err)
	}
	twice := build(t, file{name: testID + "/meta.json", content: "{}"}, file{name: testID + "/meta.json", content: "{}"})
	if _, err := check(t, twice); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("one name twice: %v", err)
	}
	// An entry whose data are a part of another's.
	inner := build(t, file{name: event(1), content: "{}", raw: true})
	inner = inner[:bytes.Index(inner, []byte{0x50, 0x4b, 1, 2})]
	nested := build(t, file{name: event(0), content: string(inner), raw: true}, file{name: event(1), content: "{}", raw: true})
	if _, err := check(t, nested); err != nil {
		t.Fatalf("before the harm: %v", err)
	}
	le.PutUint32(nested[bytes.LastIndex(nested, []byte{0x50, 0x4b, 1, 2})+42:], uint32(localLen+len(event(0))))
	if _, err := check(t, nested); err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("an entry inside of another: %v", err)
	}
	// Deflated data with something hidden behind their end.
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	real := build(t, file{name: event(0), content: "x", method: zip.Deflate})
	z, err := zip.NewReader(bytes.NewReader(real), int64(len(real)))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := z.File[0].OpenRaw()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(raw)
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.CreateRaw(&zip.FileHeader{Name: event(0), Method: zip.Deflate, CRC32: z.File[0].CRC32, UncompressedSize64: 1, CompressedSize64: uint64(len(data) + 5)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(append(data, "extra"...)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := check(t, packed.Bytes()); err == nil {
		t.Error("bytes hidden behind packed data are accepted")
	}
}

// TestZip64 uses more entries than 16 bits count.
func TestZip64(t *testing.T) {
	t.Parallel()
	files := make([]file, 0, 70_000)
	for i := range 70_000 {
		files = append(files, file{name: event(i), content: "{}", raw: true})
	}
	data := build(t, files...)
	facts, err := check(t, data)
	if err != nil || facts.events != 70_000 {
		t.Fatalf("%+v %v", facts, err)
	}
	at := bytes.LastIndex(data, []byte{0x50, 0x4b, 6, 6})
	for name, harm := range map[string]func(d []byte){
		"count":     func(d []byte) { d[at+24]++ },
		"both":      func(d []byte) { d[at+24]++; d[at+32]++ },
		"offset":    func(d []byte) { d[at+48]++ },
		"size":      func(d []byte) { d[at+40]++ },
		"negative":  func(d []byte) { d[at+55] = 0xff },
		"its place": func(d []byte) { d[at+end64Len+8]++ },
	} {
		bad := slices.Clone(data)
		harm(bad)
		if _, err := check(t, bad); err == nil {
			t.Errorf("a wrong %s in the 64-bit end is accepted", name)
		}
	}
}

// FuzzCheckZip compares with the standard reader: what is accepted here reads
// the same there, and has no name that could climb.
func FuzzCheckZip(f *testing.F) {
	f.Add(build(f, file{name: event(0), content: "{}", method: zip.Deflate}))
	f.Add(build(f, file{name: event(0), content: "{}", raw: true}, file{name: testID + "/meta.json", content: "[]"}))
	f.Add(build(f))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	for _, one := range hostileZips(f) {
		f.Add(one.data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := check(t, data)
		if err != nil {
			if _, ok := errors.AsType[badZip](err); !ok {
				t.Fatalf("%v is not a verdict on the zip", err)
			}
			return
		}
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatalf("accepted, but the standard reader says %v", err)
		}
		if len(z.File) != facts.entries {
			t.Fatalf("%d entries, the standard reader sees %d", facts.entries, len(z.File))
		}
		// Entries that do not overlap are no bomb: deflate packs 1,032 to 1.
		if facts.unpacked > 1033*int64(len(data)) {
			t.Fatalf("%d bytes unpack to %d", len(data), facts.unpacked)
		}
		mine, names := contents(t, data), map[string]bool{}
		for i, file := range z.File {
			if names[file.Name] {
				t.Fatalf("name %q is accepted twice", file.Name)
			}
			names[file.Name] = true
			r, err := file.Open()
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatalf("entry %d: %v", i, err)
			}
			if strings.HasSuffix(file.Name, "/") {
				continue // the standard reader skips the data of directories
			}
			if mine[i] != file.Name+"="+string(content) {
				t.Fatalf("entry %d reads differently", i)
			}
			if !fs.ValidPath(file.Name) {
				t.Fatalf("name %q is accepted", file.Name)
			}
		}
	})
}

// FuzzDecodeManifest looks for input that breaks the decoder, and checks that
// what it accepts is whole.
func FuzzDecodeManifest(f *testing.F) {
	const key = "exports/ws/0001/a/manifest.json"
	m := Manifest{Version: 1, Workspace: "ws", Epoch: 1, Attempt: "a", Digest: "x", Conversations: []ConversationEntry{}}
	for _, c := range [][]ConversationEntry{nil, {{ID: testID, Key: "exports/ws/0001/a/conversations/" + testID + ".zip", Bytes: 1, SHA256: strings.Repeat("0", 64), Events: 2}}} {
		m.Conversations, m.Totals, m.Digest = c, totals(c), box.HistoryDigest(marks(c))
		data, err := m.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, m := range manifestsOfToday(m) {
		data, err := m.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeManifest(key, data)
		if err != nil {
			return
		}
		if m.Workspace != "ws" || totals(m.Conversations) != m.Totals || box.HistoryDigest(marks(m.Conversations)) != m.Digest {
			t.Fatalf("accepted: %s", data)
		}
		if why := leadsAstray(m); why != "" {
			t.Fatalf("accepted although %s: %s", why, data)
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeManifest(key, again); err != nil {
			t.Fatalf("does not survive a round: %v", err)
		}
	})
}

func TestManifestThatContradictsItself(t *testing.T) {
	t.Parallel()
	const key = "exports/ws/0001/a/manifest.json"
	fresh := func() Manifest {
		c := []ConversationEntry{
			{ID: testID, Key: "exports/ws/0001/a/conversations/" + testID + ".zip", Bytes: 1, SHA256: strings.Repeat("0", 64), Events: 2},
			{ID: "f" + testID[1:], Key: "exports/ws/0001/older/conversations/f" + testID[1:] + "-2.zip", Bytes: 1, SHA256: strings.Repeat("0", 64), Events: 3, Reused: true},
		}
		return Manifest{Version: 1, Workspace: "ws", Epoch: 1, Attempt: "a", Totals: totals(c), Digest: box.HistoryDigest(marks(c)), Conversations: c}
	}
	for name, breakIt := range map[string]func(m *Manifest){
		"":                      func(*Manifest) {},
		"another workspace":     func(m *Manifest) { m.Workspace = "other" },
		"another epoch":         func(m *Manifest) { m.Epoch = 2 },
		"another attempt":       func(m *Manifest) { m.Attempt = "b" },
		"a newer version":       func(m *Manifest) { m.Version = 2 },
		"a wrong digest":        func(m *Manifest) { m.Digest = "x" },
		"a wrong total":         func(m *Manifest) { m.Totals.Events++ },
		"an altered count":      func(m *Manifest) { m.Conversations[0].Events++ },
		"another's object":      func(m *Manifest) { m.Conversations[0].Key = strings.Replace(m.Conversations[0].Key, "ws", "other", 1) },
		"an object that climbs": func(m *Manifest) { m.Conversations[0].Key = "exports/ws/0001/../../x/conversations/" + testID + ".zip" },
		"another conversation":  func(m *Manifest) { m.Conversations[0].Key = m.Conversations[1].Key },
		"a short sum":           func(m *Manifest) { m.Conversations[0].SHA256 = "00" },
		"no order":              func(m *Manifest) { slices.Reverse(m.Conversations) },
		"one twice": func(m *Manifest) {
			m.Conversations[1] = m.Conversations[0]
			m.Totals, m.Digest = totals(m.Conversations), box.HistoryDigest(marks(m.Conversations))
		},
	} {
		m := fresh()
		breakIt(&m)
		data, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeManifest(key, data); (err == nil) != (name == "") {
			t.Errorf("%q: %v", name, err)
		}
		if name == "" {
			if _, err := decodeManifest(key, append(data, "{}"...)); err == nil {
				t.Error("something behind the end is accepted")
			}
		}
	}
}
