package agentserver_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

// Whatever the entries are, a verification answers or fails; it takes only what
// has a manifest of version 1.
func FuzzVerifyWorkspace(f *testing.F) {
	f.Add("files/workspace/a", "x", "entries/000001.jsonl", `{"name":"workspace/a","type":"file","bytes":1,"sha256":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","mode":384}`+"\n", `{"version":1,"entries":1}`)
	f.Add("repositories/0001/bundle/000001", "x", "manifest.json", "{}", `{"version":1}`)
	f.Add("manifest.json", `{"version":1,"lists":[]}`, "files/../x", "", "")
	f.Fuzz(func(t *testing.T, name1, body1, name2, body2, manifest string) {
		var out bytes.Buffer
		zip, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		to := tar.NewWriter(zip)
		for _, e := range [][2]string{{name1, body1}, {name2, body2}, {box.WorkspaceManifest, manifest}} {
			if to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e[0], Size: int64(len(e[1])), Mode: 0o600}) != nil {
				t.Skip("no tar has such a name")
			}
			_, _ = to.Write([]byte(e[1]))
		}
		if err := errors.Join(to.Close(), zip.Close()); err != nil {
			t.Fatal(err)
		}
		got, err := agentserver.VerifyWorkspace(&out)
		if err == nil && got.Version != 1 {
			t.Errorf("%q was taken for a manifest", manifest)
		}
	})
}

// An archive may be right in all its sums and still not be safe to unpack.
func TestNamesThatLeadElsewhereAreNotTaken(t *testing.T) {
	t.Parallel()
	verify := func(name string) error {
		sum := sha256.Sum256([]byte("x"))
		line := fmt.Sprintf(`{"name":%q,"type":"file","bytes":1,"sha256":"%x","mode":384}`+"\n", name, sum)
		manifest := fmt.Sprintf(`{"version":1,"entries":1,"files":1,"bytes":1,"lists":[{"name":"entries/000001.jsonl","bytes":%d,"sha256":"%x"}]}`,
			len(line), sha256.Sum256([]byte(line)))
		var out bytes.Buffer
		zip, err := zstd.NewWriter(&out)
		require.NoError(t, err)
		to := tar.NewWriter(zip)
		for _, e := range [][2]string{{"files/" + name, "x"}, {"entries/000001.jsonl", line}, {"manifest.json", manifest}} {
			require.NoError(t, to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e[0], Size: int64(len(e[1])), Mode: 0o600}))
			_, err := to.Write([]byte(e[1]))
			require.NoError(t, err)
		}
		require.NoError(t, errors.Join(to.Close(), zip.Close()))
		_, err = agentserver.VerifyWorkspace(&out)
		return err
	}
	require.NoError(t, verify("workspace/a"))
	for _, name := range []string{"../a", "..", "/a", "workspace/../../a", "./a", "a//b"} {
		require.ErrorContains(t, verify(name), "leads elsewhere", name)
	}
}
