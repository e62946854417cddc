package workspacetar_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// A name that is no text is listed as one by JSON. Targets are told as they are.
func TestLinksToWhatIsNoTextAreTakenAndToldAsTheyAre(t *testing.T) {
	t.Parallel()
	plain := written{
		entries: []one{
			file("files/a\xff\xfe", "x"),
			{tar.Header{Typeflag: tar.TypeLink, Name: "files/b", Linkname: "files/a\xff\xfe"}, ""},
			{tar.Header{Typeflag: tar.TypeSymlink, Name: "files/c", Linkname: "to\xff", Mode: 0o777}, ""},
			{tar.Header{Typeflag: tar.TypeSymlink, Name: "files/d", Linkname: "to�", Mode: 0o777}, ""},
			{tar.Header{Typeflag: tar.TypeSymlink, Name: "files/e", Linkname: "plain", Mode: 0o777}, ""},
		},
		lines: func(lines []box.ManifestEntry) []box.ManifestEntry {
			lines[0].Name, lines[0].NameBase64 = "", []byte(lines[0].Name)
			lines[2].Target = strings.ToValidUTF8(lines[2].Target, "�")
			return lines
		},
	}.bytes(t)
	got := map[string]string{}
	_, err := workspacetar.Read(bytes.NewReader(plain), func(e workspacetar.Entry) error {
		if e.Type == "link" || e.Type == "hardlink" {
			target, exact := e.LinkTarget()
			require.True(t, exact, e.Name)
			got[e.Name] = target
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"files/b": "a\xff\xfe", "files/c": "to\xff", "files/d": "to�", "files/e": "plain"}, got)
	_, exact := workspacetar.Entry{ManifestEntry: box.ManifestEntry{Target: "to�"}}.LinkTarget()
	require.False(t, exact, "an index of an earlier version kept no more")
}

type taken struct {
	strings.Builder
	closed bool
	fail   error
}

func (t *taken) Close() error { t.closed = true; return t.fail }

func TestContentIsHandedOnWhileItIsRead(t *testing.T) {
	t.Parallel()
	plain := written{entries: tree()}.bytes(t)
	got := map[string]*taken{}
	m, err := workspacetar.ReadInto(bytes.NewReader(plain), func(e workspacetar.Entry) (io.WriteCloser, error) {
		require.Empty(t, e.SHA256, "nothing was compared yet")
		if e.Type != "file" {
			return nil, nil //nolint:nilnil // nowhere
		}
		got[e.Name] = &taken{}
		return got[e.Name], nil
	}, nil)
	require.NoError(t, err)
	require.Len(t, got, int(m.Files))
	require.Equal(t, "alpha", got["files/workspace/a"].String())
	require.True(t, got["files/workspace/a"].closed)
	refusal := errors.New("no room")
	for _, take := range []workspacetar.Take{
		func(workspacetar.Entry) (io.WriteCloser, error) { return nil, refusal },
		func(workspacetar.Entry) (io.WriteCloser, error) { return &taken{fail: refusal}, nil },
	} {
		_, err = workspacetar.ReadInto(bytes.NewReader(plain), take, nil)
		require.ErrorIs(t, err, refusal)
	}
}
