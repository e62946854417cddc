package putback_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
)

// bent is an archive with lists and a manifest that are right about what it
// holds, as a box that means ill would write it.
type bent struct {
	entries  []tar.Header // with a content of "x" each, where they have one
	streams  map[string]string
	order    []string // of streams
	manifest func(*box.Manifest)
	trailing bool
	size     int64 // of the last entry, when it lies
}

func (b bent) tar(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	to := tar.NewWriter(&out)
	put := func(h tar.Header, text string) {
		h.Size = int64(len(text))
		h.ModTime = time.Unix(1_700_000_000, 0)
		require.NoError(t, to.WriteHeader(&h), h.Name)
		_, err := to.Write([]byte(text))
		require.NoError(t, err)
	}
	m := box.Manifest{Version: 1, Repositories: []box.ManifestRepository{}}
	var list bytes.Buffer
	for _, h := range b.entries {
		line := box.ManifestEntry{Name: strings.TrimSuffix(strings.TrimPrefix(h.Name, "files/"), "/"), Mode: uint32(h.Mode)}
		text := ""
		switch h.Typeflag {
		case tar.TypeDir:
			line.Type = "directory"
		case tar.TypeSymlink:
			line.Type, line.Target, line.Mode = "link", h.Linkname, 0
		case tar.TypeLink:
			line.Type, line.Target, line.Mode = "hardlink", strings.TrimPrefix(h.Linkname, "files/"), 0
		case tar.TypeReg:
			text = "x"
			line.Type, line.Bytes, line.SHA256 = "file", 1, sumOf([]byte(text))
			m.Files++
			m.Bytes++
		}
		m.Entries++
		put(h, text)
		text2, err := json.Marshal(line)
		require.NoError(t, err)
		list.Write(append(text2, '\n'))
	}
	if list.Len() > 0 {
		m.Lists = []box.ManifestPart{{Name: "entries/000001.jsonl", Bytes: int64(list.Len()), SHA256: sumOf(list.Bytes())}}
		put(tar.Header{Typeflag: tar.TypeReg, Name: "entries/000001.jsonl", Mode: 0o600}, list.String())
	}
	for _, name := range b.order {
		put(tar.Header{Typeflag: tar.TypeReg, Name: "repositories/" + name + "/000001", Mode: 0o600}, b.streams[name])
	}
	if b.manifest != nil {
		b.manifest(&m)
	}
	text, err := json.Marshal(m)
	require.NoError(t, err)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Mode: 0o600}, string(text))
	require.NoError(t, to.Close())
	plain := out.Bytes()
	if b.size > 0 { // the length in the first header lies
		copy(plain[124:136], []byte("00000007777\x00"))
	}
	if b.trailing {
		plain = append(plain, plain...)
	}
	return plain
}

func aDir(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: "files/" + name + "/", Mode: 0o755}
}

func aFile(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: "files/" + name, Mode: 0o644}
}

func aLink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: "files/" + name, Linkname: to, Mode: 0o777}
}

func aHardlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: "files/" + name, Linkname: to}
}

// Each row is one thing that no box that means well writes. Nothing of it is put
// into the box, and nothing beside the box is touched.
func TestScenario99AHostileArchiveIsNotPutBack(t *testing.T) {
	t.Parallel()
	part := func(name, text string) box.ManifestPart {
		return box.ManifestPart{Name: "repositories/" + name, Parts: 1, Bytes: int64(len(text)), SHA256: sumOf([]byte(text))}
	}
	repository := func(change func(*box.ManifestRepository)) func(*box.Manifest) {
		return func(m *box.Manifest) {
			one := box.ManifestRepository{Path: "workspace/p", Kind: box.RepositoryClone}
			change(&one)
			m.Repositories = append(m.Repositories, one)
		}
	}
	for name, b := range map[string]bent{
		"absolute":                          {entries: []tar.Header{aFile("/etc/passwd")}},
		"climbing":                          {entries: []tar.Header{aFile("workspace/../../a")}},
		"climbing from the top":             {entries: []tar.Header{aFile("../a")}},
		"beside the places of work":         {entries: []tar.Header{aDir("conversations"), aFile("conversations/a")}},
		"our own directory":                 {entries: []tar.Header{aFile("run/address")}},
		"a place of work that is a file":    {entries: []tar.Header{aFile("workspace")}},
		"a place of work that is a link":    {entries: []tar.Header{aLink("workspace", "/etc")}},
		"a link, then a file below it":      {entries: []tar.Header{aDir("workspace"), aLink("workspace/a", "../conversations"), aFile("workspace/a/b")}},
		"a link out, then a file below it":  {entries: []tar.Header{aLink("workspace/a", "/tmp"), aFile("workspace/a/b")}},
		"a link, then a directory in it":    {entries: []tar.Header{aLink("workspace/a", ".."), aDir("workspace/a/b/c")}},
		"a hard link out":                   {entries: []tar.Header{aHardlink("workspace/a", "/etc/passwd")}},
		"a hard link that climbs":           {entries: []tar.Header{aHardlink("workspace/a", "files/../../etc/passwd")}},
		"a hard link to a link":             {entries: []tar.Header{aLink("workspace/a", "/etc/passwd"), aHardlink("workspace/b", "files/workspace/a")}},
		"a device":                          {entries: []tar.Header{{Typeflag: tar.TypeChar, Name: "files/workspace/null"}}},
		"a block device":                    {entries: []tar.Header{{Typeflag: tar.TypeBlock, Name: "files/workspace/sda"}}},
		"a pipe":                            {entries: []tar.Header{{Typeflag: tar.TypeFifo, Name: "files/workspace/pipe"}}},
		"set-user-id":                       {entries: []tar.Header{{Typeflag: tar.TypeReg, Name: "files/workspace/a", Mode: 0o4755}}},
		"a name twice":                      {entries: []tar.Header{aFile("workspace/a"), aFile("workspace/a")}},
		"a file and then a directory":       {entries: []tar.Header{aFile("workspace/a"), aDir("workspace/a")}},
		"out of order":                      {entries: []tar.Header{aFile("workspace/b"), aFile("workspace/a")}},
		"a git directory":                   {entries: []tar.Header{aDir("workspace/p"), aDir("workspace/p/.git"), aFile("workspace/p/.git/config")}},
		"a .git that is a file":             {entries: []tar.Header{aFile("workspace/p/.git")}},
		"a .git that is a link":             {entries: []tar.Header{aLink("workspace/p/.git", "../q")}},
		"a length that lies":                {entries: []tar.Header{aFile("workspace/a")}, size: 1},
		"something behind the end":          {entries: []tar.Header{aFile("workspace/a")}, trailing: true},
		"a repository that climbs":          {manifest: repository(func(r *box.ManifestRepository) { r.Path = "../../p" })},
		"a repository that is absolute":     {manifest: repository(func(r *box.ManifestRepository) { r.Path = "/p" })},
		"a repository in a git directory":   {manifest: repository(func(r *box.ManifestRepository) { r.Path = "workspace/p/.git/hooks" })},
		"a repository that is .git":         {manifest: repository(func(r *box.ManifestRepository) { r.Path = "workspace/.git" })},
		"a repository that has no commit":   {manifest: repository(func(r *box.ManifestRepository) { r.Head = strings.Repeat("a", 40) })},
		"a repository with nobody's bundle": {manifest: repository(func(r *box.ManifestRepository) { r.BundleOf = "workspace/q" })},
		"a repository that is there twice": {manifest: func(m *box.Manifest) {
			one := box.ManifestRepository{Path: "workspace/p", Kind: box.RepositoryClone}
			m.Repositories = append(m.Repositories, one, one)
		}},
		"a head that leads elsewhere": {manifest: repository(func(r *box.ManifestRepository) { r.Branch = "../../../hooks/x" })},
		"a bundle that is none":       {streams: map[string]string{"0001/bundle": "x"}, order: []string{"0001/bundle"}, manifest: repository(func(r *box.ManifestRepository) { r.Bundle = part("0001/bundle", "x") })},
		"a bundle that is cut off":    {streams: map[string]string{"0001/bundle": "# v2 git bundle\n"}, order: []string{"0001/bundle"}, manifest: repository(func(r *box.ManifestRepository) { r.Bundle = part("0001/bundle", "# v2 git bundle\n") })},
		"a reference that leads elsewhere": {streams: map[string]string{"0001/bundle": "# v2 git bundle\n" + strings.Repeat("a", 40) + " refs/../../x\n\n"}, order: []string{"0001/bundle"}, manifest: repository(func(r *box.ManifestRepository) {
			r.Bundle = part("0001/bundle", "# v2 git bundle\n"+strings.Repeat("a", 40)+" refs/../../x\n\n")
		})},
		"a stream with no number":             {streams: map[string]string{"../x/bundle": "x"}, order: []string{"../x/bundle"}},
		"a stream of a number that is none":   {streams: map[string]string{"000x/bundle": "x"}, order: []string{"000x/bundle"}, manifest: repository(func(r *box.ManifestRepository) { r.Bundle = part("000x/bundle", "x") })},
		"a file of git that climbs":           {streams: map[string]string{"0001/git/../../../x": "x"}, order: []string{"0001/git/../../../x"}, manifest: repository(func(r *box.ManifestRepository) { r.GitFiles = 1 })},
		"a manifest of another version":       {manifest: func(m *box.Manifest) { m.Version = 7 }},
		"a list that is about something else": {entries: []tar.Header{aFile("workspace/a")}, manifest: func(m *box.Manifest) { m.Lists[0].SHA256 = strings.Repeat("0", 64) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := freshBox(t)
			plain := b.tar(t)
			_, _, err := taking(t, root).Restore(t.Context(), sumOf(plain), int64(len(plain)), bytes.NewReader(plain))
			require.Error(t, err)
			require.Equal(t, box.ClassUnknown, box.ClassOf(err), err)
			untouched(t, root)
			list, err := os.ReadDir(filepath.Dir(root))
			require.NoError(t, err)
			require.Len(t, list, 1, "nothing beside the box")
		})
	}
}

// A remote whose address is a command, and files of git that run something, are
// left out; the rest is put back.
func TestWhatGitWouldRunIsLeftOut(t *testing.T) {
	t.Parallel()
	files := []string{"HEAD", "Hooks/post-checkout", "commondir", "config", "gitdir", "hooks/post-checkout", "objects/info/Alternates", "objects/info/alternates", "refs/heads/main"}
	b := bent{
		entries: []tar.Header{aDir("workspace"), aDir("workspace/p"), aFile("workspace/p/a")}, streams: map[string]string{},
		manifest: func(m *box.Manifest) {
			m.Missing = 1
			m.Incomplete = []string{"the bundle"}
			m.Repositories = []box.ManifestRepository{{
				Path: "workspace/p", Kind: box.RepositoryClone, Unbundled: "it was damaged", GitFiles: len(files),
				Remotes: map[string]string{"origin": "https://example.invalid/p", "evil": "ext::sh -c touch% x", "a/../b": "https://example.invalid/", "quote": `https://example.invalid/"` + "\\"},
			}}
		},
	}
	for _, name := range files {
		b.order = append(b.order, "0001/git/"+name)
		b.streams["0001/git/"+name] = "[core]\n\tfsmonitor = touch x\n"
	}
	b.streams["0001/git/commondir"] = "../evil\n" // where all settings would be read
	b.streams["0001/git/HEAD"] = "ref: refs/heads/main\n"
	b.streams["0001/git/refs/heads/main"] = strings.Repeat("a", 40) + "\n"
	plain := b.tar(t)
	root := freshBox(t)
	out, _, err := taking(t, root).Restore(t.Context(), sumOf(plain), int64(len(plain)), bytes.NewReader(plain))
	require.NoError(t, err)
	require.Len(t, out.Notes, 2)
	git := filepath.Join(root, "workspace/p/.git")
	for _, name := range []string{"hooks", "Hooks", "commondir", "gitdir", "objects/info/alternates", "objects/info/Alternates"} {
		require.NoFileExists(t, filepath.Join(git, name))
		require.NoDirExists(t, filepath.Join(git, name))
	}
	require.Equal(t, git, agentservertest.Git(t, filepath.Dir(git), "rev-parse", "--path-format=absolute", "--git-common-dir"))
	config, err := os.ReadFile(filepath.Join(git, "config"))
	require.NoError(t, err)
	require.NotContains(t, string(config), "fsmonitor")
	require.NotContains(t, string(config), "ext::")
	require.Equal(t, `https://example.invalid/"\`, agentservertest.Git(t, git, "config", "remote.quote.url"))
	require.Equal(t, "https://example.invalid/p", agentservertest.Git(t, git, "config", "remote.origin.url"))
}
