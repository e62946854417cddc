package workspacetar_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/workspacetar"
)

func TestWhoLooksOnSeesEachContent(t *testing.T) {
	t.Parallel()
	link := one{tar.Header{Typeflag: tar.TypeSymlink, Name: "files/c", Linkname: "../b"}, ""}
	archive := written{entries: []one{dir("files/a/"), file("files/a/x", "first"), file("files/b", ""), link, file("files/d", "last")}}.bytes(t)
	var begun []workspacetar.Begun
	seen := map[string]*bytes.Buffer{}
	m, err := workspacetar.ReadContents(bytes.NewReader(archive), nil, func(b workspacetar.Begun) io.Writer {
		begun = append(begun, b)
		if b.Name == "files/d" {
			return nil // who does not want to
		}
		seen[b.Name] = &bytes.Buffer{}
		return seen[b.Name]
	})
	require.NoError(t, err)
	require.EqualValues(t, 3, m.Files)
	require.Equal(t, []workspacetar.Begun{
		{Name: "files/a"}, {Name: "files/a/x", File: true, Bytes: 5}, {Name: "files/b", File: true}, {Name: "files/c", Target: "../b"}, {Name: "files/d", File: true, Bytes: 4},
	}, begun[:5])
	require.Equal(t, "manifest.json", begun[len(begun)-1].Name)
	require.Equal(t, "first", seen["files/a/x"].String())
	require.Empty(t, seen["files/b"].String())
	require.Contains(t, seen["manifest.json"].String(), `"version"`)

	_, err = workspacetar.ReadContents(bytes.NewReader(archive), nil, func(workspacetar.Begun) io.Writer { return refusing{} })
	require.ErrorIs(t, err, errRefused)
}

var errRefused = errors.New("not this")

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errRefused }
