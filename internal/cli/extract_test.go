package cli_test

import (
	"archive/zip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/exports"
)

const firstEvent = talk + "/events/event-00000-e0.json"

func TestHistoryShowsAPartOfAConversation(t *testing.T) {
	t.Parallel()
	data := exported(t)
	text := runIn(t, nil, data, "", "box", "history", "mine", "--conversation", talk, "--from", "1", "--count", "1")
	require.Equal(t, 0, text.code, text.stderr)
	assert.NotContains(t, text.stdout, "hello there")
	assert.Contains(t, text.stdout, "evil ")
	lines := runIn(t, nil, data, "", "box", "history", "mine", talk, "--count", "1", "-o", "json")
	require.Equal(t, 0, lines.code, lines.stderr)
	assert.Equal(t, 1, strings.Count(lines.stdout, "\n"))
	assert.Contains(t, lines.stdout, "hello there")
	behind := runIn(t, nil, data, "", "box", "history", "mine", talk, "--from", "2", "-o", "json")
	assert.Contains(t, behind.stderr, "beyond the end")
	require.Equal(t, 0, behind.code, behind.stderr)
	assert.Empty(t, behind.stdout)
	files := runIn(t, nil, data, "", "box", "history", "mine", talk, "--files")
	require.Equal(t, 0, files.code, files.stderr)
	assert.Contains(t, files.stdout, firstEvent+"\t")
	files = runIn(t, nil, data, "", "box", "history", "mine", talk, "--files", "-o", "json")
	var one struct {
		Name string `json:"name"`
		Size int64  `json:"size_bytes"`
	}
	require.NoError(t, json.Unmarshal([]byte(strings.SplitN(files.stdout, "\n", 2)[0]), &one))
	assert.Equal(t, firstEvent, one.Name)
	assert.Positive(t, one.Size)
}

func TestHistoryRefusesWhatDoesNotGoTogether(t *testing.T) {
	t.Parallel()
	data := exported(t)
	to := filepath.Join(t.TempDir(), "to")
	for _, args := range [][]string{
		{talk, "--conversation", talk},
		{"--conversation", ""},
		{"--extract", ""},
		{"--verify", "--extract", to},
		{"--verify", "--conversation", talk},
		{"--from", "1"},
		{"--count", "1"},
		{"--files"},
		{"--extract", to, "--only", "x"},
		{talk, "--zip"},
		{talk, "--force"},
		{talk, "--only", "x"},
		{talk, "--extract", to, "--zip", "--only", "x"},
		{talk, "--extract", to, "--from", "1"},
		{talk, "--files", "--count", "1"},
		{talk, "--extract", to, "--files"},
		{talk, "--from", "-1"},
		{talk, "--count", "-1"},
		{talk, "--count", "0"},
		{"--conversation", "talk", "--extract", to},
	} {
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine"}, args...)...)
		assert.Equal(t, 2, got.code, "%v: %s", args, got.stderr)
		assert.Empty(t, got.stdout, args)
	}
	assert.NoDirExists(t, to)
}

// everything lists what is below a directory.
func everything(t *testing.T, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, name); rel != "." {
			names = append(names, filepath.ToSlash(rel))
		}
		return err
	}))
	return names
}

func TestExtractWritesWhatWasExported(t *testing.T) {
	t.Parallel()
	data := exported(t)
	for name, args := range map[string][]string{"one conversation": {talk}, "all of them": {}} {
		to := filepath.Join(t.TempDir(), "new", "place")
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine", "--extract", to, "-o", "json"}, args...)...)
		require.Equal(t, 0, got.code, "%s: %s", name, got.stderr)
		var out struct {
			Directory     string
			Files         int
			Conversations []struct {
				ID     string
				Events int
				Epoch  int
			}
		}
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &out))
		assert.Equal(t, to, out.Directory)
		assert.Equal(t, 2, out.Files)
		require.Len(t, out.Conversations, 1)
		assert.Equal(t, talk, out.Conversations[0].ID)
		assert.Equal(t, 2, out.Conversations[0].Events)
		assert.Equal(t, 1, out.Conversations[0].Epoch)
		assert.Equal(t, []string{talk, talk + "/events", firstEvent, talk + "/events/event-00001-e1.json"}, everything(t, to))
		content, err := os.ReadFile(filepath.Join(to, firstEvent))
		require.NoError(t, err)
		assert.Contains(t, string(content), "hello there")
		info, err := os.Stat(filepath.Join(to, firstEvent))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "nobody else reads it")
	}
	to := t.TempDir()
	got := runIn(t, nil, data, "", "box", "history", "mine", talk, "--extract", to, "--only", "events/event-00001-e1.json")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "1 file")
	assert.Equal(t, []string{talk, talk + "/events", talk + "/events/event-00001-e1.json"}, everything(t, to))

	got = runIn(t, nil, data, "", "box", "history", "mine", "--extract", to, "--zip")
	require.Equal(t, 0, got.code, got.stderr)
	stored := one(t, data, "exports/exports/mine/*/*/conversations/*.zip")
	want, err := os.ReadFile(stored)
	require.NoError(t, err)
	have, err := os.ReadFile(filepath.Join(to, talk+".zip"))
	require.NoError(t, err)
	assert.Equal(t, want, have)

	none := filepath.Join(t.TempDir(), "none")
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "mine", talk, "--extract", none, "--only", "events/none.json").code)
	assert.NoDirExists(t, none, "it is looked for first")
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "mine", strings.Repeat("f", 32), "--extract", to).code)
	assert.Equal(t, 3, runIn(t, nil, data, "", "box", "history", "other", "--extract", to).code)
}

func TestExtractOverwritesByForceOnly(t *testing.T) {
	t.Parallel()
	data := exported(t)
	to := t.TempDir()
	mine := filepath.Join(to, firstEvent)
	require.NoError(t, os.MkdirAll(filepath.Dir(mine), 0o700))
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(to, talk+".zip"), []byte("mine"), 0o600))
	before := everything(t, to)
	for _, args := range [][]string{{}, {talk}, {"--zip"}, {talk, "--only", firstEvent}} {
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine", "--extract", to}, args...)...)
		assert.Equal(t, 4, got.code, "%v: %s", args, got.stderr)
		assert.Contains(t, got.stderr, "--force")
		assert.Equal(t, before, everything(t, to), args)
	}
	content, err := os.ReadFile(mine)
	require.NoError(t, err)
	assert.Equal(t, "mine", string(content))
	for _, args := range [][]string{{talk}, {"--zip"}} {
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine", "--force", "--extract", to}, args...)...)
		require.Equal(t, 0, got.code, got.stderr)
	}
	content, err = os.ReadFile(mine)
	require.NoError(t, err)
	assert.Contains(t, string(content), "hello there")
	assert.Equal(t, []string{talk, talk + "/events", firstEvent, talk + "/events/event-00001-e1.json", talk + ".zip"}, everything(t, to), "no draft is left")
}

func TestExtractStaysInItsDirectory(t *testing.T) {
	t.Parallel()
	data := exported(t)
	for name, link := range map[string]func(t *testing.T, to, away string){
		"the conversation is a link to elsewhere": func(t *testing.T, to, away string) {
			t.Helper()
			require.NoError(t, os.Symlink(away, filepath.Join(to, talk)))
		},
		"a directory is a link to elsewhere": func(t *testing.T, to, away string) {
			t.Helper()
			require.NoError(t, os.Mkdir(filepath.Join(to, talk), 0o700))
			require.NoError(t, os.Symlink(away, filepath.Join(to, talk, "events")))
		},
		"a directory is a link inside": func(t *testing.T, to, _ string) {
			t.Helper()
			require.NoError(t, os.MkdirAll(filepath.Join(to, talk, "inside"), 0o700))
			require.NoError(t, os.Symlink("inside", filepath.Join(to, talk, "events")))
		},
		"a directory is a file": func(t *testing.T, to, _ string) {
			t.Helper()
			require.NoError(t, os.Mkdir(filepath.Join(to, talk), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(to, talk, "events"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to, away := t.TempDir(), t.TempDir()
			link(t, to, away)
			before := everything(t, to)
			for _, force := range []string{"--force=false", "--force"} {
				got := runIn(t, nil, data, "", "box", "history", "mine", "--extract", to, force)
				assert.Equal(t, 4, got.code, got.stderr)
			}
			assert.Equal(t, before, everything(t, to))
			assert.Empty(t, everything(t, away))
		})
	}
	// A file that is a link is replaced itself, not what it points at.
	to, away := t.TempDir(), filepath.Join(t.TempDir(), "away")
	require.NoError(t, os.WriteFile(away, []byte("theirs"), 0o600))
	place := filepath.Join(to, firstEvent)
	require.NoError(t, os.MkdirAll(filepath.Dir(place), 0o700))
	require.NoError(t, os.Symlink(away, place))
	require.Equal(t, 4, runIn(t, nil, data, "", "box", "history", "mine", talk, "--only", firstEvent, "--extract", to).code)
	require.Equal(t, 0, runIn(t, nil, data, "", "box", "history", "mine", "--force", "--extract", to).code)
	content, err := os.ReadFile(away)
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(content))
	info, err := os.Lstat(place)
	require.NoError(t, err)
	assert.True(t, info.Mode().IsRegular())
}

// What is damaged is not written; what is whole is, and the damage is said.
func TestExtractWritesNothingThatIsDamaged(t *testing.T) {
	t.Parallel()
	data := exported(t)
	stored := one(t, data, "exports/exports/mine/*/*/conversations/*.zip")
	whole, err := os.ReadFile(stored)
	require.NoError(t, err)
	z, err := zip.OpenReader(stored)
	require.NoError(t, err)
	at, err := z.File[0].DataOffset()
	require.NoError(t, err)
	require.NoError(t, z.Close())
	harmed := append([]byte{}, whole...)
	harmed[at+3] ^= 1
	require.NoError(t, os.WriteFile(stored, harmed, 0o600))
	for _, args := range [][]string{{"--extract"}, {"--zip", "--extract"}, {talk, "--only", firstEvent, "--extract"}} {
		to := t.TempDir()
		got := runIn(t, nil, data, "", append([]string{"box", "history", "mine"}, append(args, to)...)...)
		assert.Equal(t, 1, got.code, got.stderr)
		assert.Contains(t, got.stderr, "damaged")
		for _, name := range everything(t, to) {
			info, err := os.Stat(filepath.Join(to, name))
			require.NoError(t, err)
			assert.True(t, info.IsDir(), name)
		}
	}
	shown := runIn(t, nil, data, "", "box", "history", "mine", talk)
	assert.Equal(t, 1, shown.code)
	assert.Contains(t, shown.stderr, "damaged")
	assert.NotContains(t, shown.stdout, "hello")
	// Another copy of it takes the place.
	require.NoError(t, os.WriteFile(stored, whole, 0o600))
	store, err := exports.Open(t.Context(), "file://"+filepath.Join(data, "exports"))
	require.NoError(t, err)
	_, err = store.Export(t.Context(), exports.Request{Workspace: "mine", Epoch: 2, Attempt: "b"}, source{whole}, nil)
	require.NoError(t, err)
	require.NoError(t, store.Close())
	second := one(t, data, "exports/exports/mine/0002/b/conversations/*.zip")
	require.NoError(t, os.WriteFile(second, harmed, 0o600))
	to := t.TempDir()
	got := runIn(t, nil, data, "", "box", "history", "mine", "--extract", to, "-o", "json")
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.stderr, "damaged")
	assert.Contains(t, got.stdout, `"epoch": 1`)
	assert.FileExists(t, filepath.Join(to, firstEvent))
	shown = runIn(t, nil, data, "", "box", "history", "mine", talk)
	assert.Equal(t, 1, shown.code)
	assert.Contains(t, shown.stdout, "hello there")
	assert.Contains(t, shown.stderr, "damaged")
}
