package workspacetar_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// one is an entry of a tar as somebody may write it.
type one struct {
	tar.Header
	text string
}

func file(name, text string) one {
	return one{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, text}
}

func dir(name string) one {
	return one{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

// written is the tar of some entries, with a list and a manifest that are right
// about them, unless they are told otherwise.
type written struct {
	entries  []one
	lines    func([]box.ManifestEntry) []box.ManifestEntry
	manifest func(*box.Manifest)
	streams  []one
	after    []one
}

func (w written) bytes(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	to := tar.NewWriter(&out)
	put := func(e one) {
		e.Size = int64(len(e.text))
		if e.ModTime.IsZero() {
			e.ModTime = time.Unix(1_700_000_000, 0)
		}
		require.NoError(t, to.WriteHeader(&e.Header), e.Name)
		_, err := to.Write([]byte(e.text))
		require.NoError(t, err)
	}
	m := box.Manifest{Version: 1}
	var lines []box.ManifestEntry
	for _, e := range w.entries {
		put(e)
		line := box.ManifestEntry{Name: strings.TrimSuffix(strings.TrimPrefix(e.Name, "files/"), "/"), Mode: uint32(e.Mode)}
		switch e.Typeflag {
		case tar.TypeDir:
			line.Type = "directory"
		case tar.TypeSymlink:
			line.Type, line.Target, line.Mode = "link", e.Linkname, 0
		case tar.TypeLink:
			line.Type, line.Target, line.Mode = "hardlink", strings.TrimPrefix(e.Linkname, "files/"), 0
		default:
			sum := sha256.Sum256([]byte(e.text))
			line.Type, line.Bytes, line.SHA256 = "file", int64(len(e.text)), hex.EncodeToString(sum[:])
		}
		lines = append(lines, line)
	}
	if w.lines != nil {
		lines = w.lines(lines)
	}
	var list []byte
	for _, line := range lines {
		switch line.Type {
		case "left-out":
			m.LeftOut++
		default:
			m.Entries++
			m.Bytes += line.Bytes
			if line.Type == "file" {
				m.Files++
			}
		}
		text, err := json.Marshal(line)
		require.NoError(t, err)
		list = append(append(list, text...), '\n')
	}
	if len(list) > 0 {
		sum := sha256.Sum256(list)
		m.Lists = []box.ManifestPart{{Name: "entries/000001.jsonl", Bytes: int64(len(list)), SHA256: hex.EncodeToString(sum[:])}}
		put(file("entries/000001.jsonl", string(list)))
	}
	for _, e := range w.streams {
		put(e)
	}
	if w.manifest != nil {
		w.manifest(&m)
	}
	text, err := json.Marshal(m)
	require.NoError(t, err)
	put(file("manifest.json", string(text)))
	for _, e := range w.after {
		put(e)
	}
	require.NoError(t, to.Close())
	return out.Bytes()
}

func tree() []one {
	return []one{
		dir("files/workspace/"), file("files/workspace/a", "alpha"), dir("files/workspace/b/"), file("files/workspace/b/c", "beta"),
		{tar.Header{Typeflag: tar.TypeLink, Name: "files/workspace/d", Linkname: "files/workspace/a"}, ""},
		{tar.Header{Typeflag: tar.TypeSymlink, Name: "files/workspace/e", Linkname: "../../etc/passwd", Mode: 0o777}, ""},
	}
}

func TestATarIsReadAndEverythingInItTold(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("onetwo"))
	plain := written{
		entries: tree(),
		lines: func(l []box.ManifestEntry) []box.ManifestEntry {
			return append(l, box.ManifestEntry{Name: "workspace/node_modules", Type: "left-out", Why: "can be made again"})
		},
		streams: []one{file("repositories/0001/bundle/000001", "one"), file("repositories/0001/bundle/000002", "two")},
		manifest: func(m *box.Manifest) {
			m.Repositories = []box.ManifestRepository{{Bundle: box.ManifestPart{Name: "repositories/0001/bundle", Parts: 2, Bytes: 6, SHA256: hex.EncodeToString(sum[:])}}}
		},
	}.bytes(t)
	var told []workspacetar.Entry
	m, err := workspacetar.Read(bytes.NewReader(plain), func(e workspacetar.Entry) error { told = append(told, e); return nil })
	require.NoError(t, err)
	require.EqualValues(t, 2, m.Files)
	names := make([]string, 0, len(told))
	for _, e := range told {
		names = append(names, e.Name)
		if e.Type != "file" && e.Type != workspacetar.TypePart {
			continue
		}
		text := plain[e.Offset : e.Offset+e.Bytes]
		if e.Type == "file" {
			sum := sha256.Sum256(text)
			require.Equal(t, hex.EncodeToString(sum[:]), e.SHA256, e.Name)
		}
	}
	require.Equal(t, []string{
		"files/workspace", "files/workspace/a", "files/workspace/b", "files/workspace/b/c", "files/workspace/d", "files/workspace/e",
		"files/workspace/node_modules", "entries/000001.jsonl", "repositories/0001/bundle/000001", "repositories/0001/bundle/000002", "manifest.json",
	}, names)
	refusal := errors.New("no more")
	_, err = workspacetar.Read(bytes.NewReader(plain), func(workspacetar.Entry) error { return refusal })
	require.ErrorIs(t, err, refusal)
	_, err = workspacetar.Read(io.MultiReader(bytes.NewReader(plain[:2000]), failing{refusal}), nil)
	require.ErrorIs(t, err, refusal)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A row is one thing that no box that means well writes; each begins as an
// archive that is right in all its sums.
func TestScenario99WhatWouldLeadElsewhereIsNotTaken(t *testing.T) {
	t.Parallel()
	link := func(name, to string) one {
		return one{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}, ""}
	}
	hard := func(name, to string) one {
		return one{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}, ""}
	}
	for name, row := range map[string]struct {
		w    written
		want string
	}{
		"absolute":                       {written{entries: []one{file("files//etc/passwd", "x")}}, "leads elsewhere"},
		"climbing":                       {written{entries: []one{file("files/../a", "x")}}, "leads elsewhere"},
		"climbing in the middle":         {written{entries: []one{file("files/workspace/../../a", "x")}}, "leads elsewhere"},
		"a name that is only dots":       {written{entries: []one{dir("files/../")}}, "leads elsewhere"},
		"no name":                        {written{entries: []one{dir("files/")}}, "leads elsewhere"},
		"twice":                          {written{entries: []one{file("files/a", "x"), file("files/a", "y")}}, "there twice"},
		"twice, as a directory":          {written{entries: []one{dir("files/a/"), file("files/a", "x")}}, "there twice"},
		"out of order":                   {written{entries: []one{file("files/b", "x"), file("files/a", "y")}}, "out of its order"},
		"below a link":                   {written{entries: []one{link("files/a", "/etc"), file("files/a/passwd", "x")}}, "below what is no directory"},
		"below a file":                   {written{entries: []one{file("files/a", "x"), file("files/a/b", "x")}}, "below what is no directory"},
		"below a link, far down":         {written{entries: []one{link("files/a", "/etc"), dir("files/a/b/c/")}}, "below what is no directory"},
		"a hard link elsewhere":          {written{entries: []one{hard("files/b", "files/../../etc/passwd")}}, "no file before it"},
		"a hard link out of the tree":    {written{entries: []one{hard("files/b", "manifest.json")}}, "no file before it"},
		"a hard link to itself":          {written{entries: []one{hard("files/b", "files/b")}}, "no file before it"},
		"a hard link to what follows":    {written{entries: []one{hard("files/a", "files/b"), file("files/b", "x")}}, "no file before it"},
		"a device":                       {written{entries: []one{{tar.Header{Typeflag: tar.TypeChar, Name: "files/null"}, ""}}}, "of a kind that no"},
		"a pipe":                         {written{entries: []one{{tar.Header{Typeflag: tar.TypeFifo, Name: "files/pipe"}, ""}}}, "of a kind that no"},
		"set-user-id":                    {written{entries: []one{{tar.Header{Typeflag: tar.TypeReg, Name: "files/a", Mode: 0o4755}, "x"}}}, "more than permissions"},
		"attributes":                     {written{entries: []one{{tar.Header{Typeflag: tar.TypeReg, Name: "files/a", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}, "x"}}}, "its header says"},
		"an entry of its own kind":       {written{streams: []one{file("elsewhere/a", "x")}}, "no entry of a workspace"},
		"a manifest that is a link":      {written{streams: []one{link("manifest.json", "/etc/passwd")}}, "of a kind that only the tree has"},
		"a list that is a directory":     {written{streams: []one{dir("entries/")}}, "of a kind that only the tree has"},
		"a part elsewhere":               {written{streams: []one{file("repositories/../../000001", "x")}}, "leads elsewhere"},
		"an entry after the manifest":    {written{after: []one{file("files/z", "x")}}, "follows the manifest"},
		"a second manifest":              {written{after: []one{file("manifest.json", "{}")}}, "follows the manifest"},
		"a stream that nobody names":     {written{streams: []one{file("repositories/0001/bundle/000001", "x")}}, "there are 1"},
		"a stream that is named in vain": {written{manifest: func(m *box.Manifest) { m.Repositories = []box.ManifestRepository{{GitFiles: 1}} }}, "there are 0"},
		"a count below nothing": {written{streams: []one{file("repositories/0001/x/000001", "x")}, manifest: func(m *box.Manifest) {
			m.Repositories = []box.ManifestRepository{{GitFiles: 2, BrokenOff: -1}}
		}}, "fewer streams than none"},
		"a part that is missing": {written{streams: []one{file("repositories/0001/bundle/000002", "x")}}, "a part before it is missing"},
		"one stream in two places": {written{streams: []one{
			file("repositories/0001/bundle/000001", "x"), file("repositories/0001/other/000001", "x"), file("repositories/0001/bundle/000001", "x"),
		}}, "there already"},
		"one git file in two places": {written{streams: []one{
			file("repositories/0001/git/a/000001", "x"), file("repositories/0001/git/b/000001", "x"), file("repositories/0001/git/a/000001", "x"),
		}}, "there already"},
		"listed with another sum": {written{entries: tree(), lines: func(l []box.ManifestEntry) []box.ManifestEntry {
			l[1].SHA256 = strings.Repeat("0", 64)
			return l
		}}, "not as listed"},
		"not listed": {written{entries: tree(), lines: func(l []box.ManifestEntry) []box.ManifestEntry { return l[:2] }}, "lists less"},
		"listed in vain": {written{entries: tree(), lines: func(l []box.ManifestEntry) []box.ManifestEntry {
			return append(l, box.ManifestEntry{Name: "z", Type: "file"})
		}}, "lists more"},
		"left out and there": {written{entries: tree(), lines: func(l []box.ManifestEntry) []box.ManifestEntry {
			return slices.Insert(l, 2, box.ManifestEntry{Name: "workspace/a", Type: "left-out"})
		}}, "there twice"},
		"left out elsewhere": {written{lines: func(l []box.ManifestEntry) []box.ManifestEntry {
			return append(l, box.ManifestEntry{Name: "../x", Type: "left-out"})
		}}, "leads elsewhere"},
		"less missing than nothing": {written{manifest: func(m *box.Manifest) { m.Missing = -1 }}, "less than nothing"},
		"of the future":             {written{manifest: func(m *box.Manifest) { m.Version = 2 }}, "version 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := workspacetar.Read(bytes.NewReader(row.w.bytes(t)), nil)
			require.ErrorContains(t, err, row.want)
		})
	}
	_, err := workspacetar.Read(bytes.NewReader(written{entries: tree()}.bytes(t)), nil)
	require.NoError(t, err)
}

// A sparse file's content is not where its header is, so nobody could read it by
// its place.
func TestASparseFileIsNotTaken(t *testing.T) {
	t.Parallel()
	records := map[string]string{"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.name": "files/a", "XXX.sparse.realsize": "1"}
	plain := written{entries: []one{{tar.Header{Typeflag: tar.TypeReg, Name: "files/a", PAXRecords: records}, "1\n0\n1\n" + strings.Repeat("\x00", 506) + "x"}}}.bytes(t)
	// The writer refuses to write these, so they are bent afterwards.
	plain = bytes.ReplaceAll(plain, []byte("XXX."), []byte("GNU."))
	h, err := tar.NewReader(bytes.NewReader(plain)).Next()
	require.NoError(t, err)
	require.EqualValues(t, 1, h.Size, "it is no sparse file, so this test shows nothing")
	_, err = workspacetar.Read(bytes.NewReader(plain), nil)
	require.ErrorContains(t, err, "its header says")
}

func TestWhatFollowsTheEndIsNotTaken(t *testing.T) {
	t.Parallel()
	plain := written{entries: tree()}.bytes(t)
	_, err := workspacetar.Read(bytes.NewReader(append(bytes.Clone(plain), plain...)), nil)
	require.ErrorContains(t, err, "follows its end")
	for n := range plain {
		if _, err := workspacetar.Read(bytes.NewReader(plain[:n]), nil); err == nil {
			t.Fatalf("cut at %d of %d it was taken", n, len(plain))
		}
	}
}

func TestOrderIsThatOfAWalk(t *testing.T) {
	t.Parallel()
	walk := []string{"a", "a/b", "a/b/c", "a/c", "a\x01", "a b", "a-b", "a.txt", "a0", "b"}
	for i, a := range walk {
		for j, b := range walk {
			got := workspacetar.Order(a, b)
			if got != 0 != (i != j) || got < 0 != (i < j) {
				t.Errorf("Order(%q, %q) is %d", a, b, got)
			}
		}
	}
}

// FuzzRead gives any bytes; what is taken must hold together.
func FuzzRead(f *testing.F) {
	f.Add(written{entries: tree()}.bytes(f))
	f.Add(written{}.bytes(f))
	f.Add([]byte{})
	for _, plain := range hostileTars(f) {
		f.Add(plain)
	}
	f.Fuzz(func(t *testing.T, plain []byte) {
		last := ""
		m, err := workspacetar.Read(bytes.NewReader(plain), func(e workspacetar.Entry) error {
			if !workspacetar.Whole(e.Name) || e.Offset < 0 || e.Bytes < 0 || e.Offset+e.Bytes > int64(len(plain)) {
				t.Errorf("told of %+v in %d bytes", e, len(plain))
			}
			if e.Type == "file" {
				if sum := sha256.Sum256(plain[e.Offset : e.Offset+e.Bytes]); hex.EncodeToString(sum[:]) != e.SHA256 {
					t.Errorf("%q is not what it was told to be", e.Name)
				}
			}
			if e.Type != workspacetar.TypePart {
				if workspacetar.Order(last, e.Name) >= 0 {
					t.Errorf("%q after %q", e.Name, last)
				}
				last = e.Name
			}
			return nil
		})
		if err == nil && m.Version != 1 {
			t.Error("something without a manifest was taken")
		}
	})
}
