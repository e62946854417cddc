package gitpack_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/exports/gitpack"
)

// seen is one object, or the references, as it was told of.
type seen struct {
	kind  gitpack.Kind
	at    int64
	id    string
	texts []text
	ended bool
}

type text struct {
	offset, lines int64
	data          []byte
}

// recorder keeps all that it is told.
type recorder struct{ all []*seen }

func (r *recorder) last() *seen { return r.all[len(r.all)-1] }

func (r *recorder) Begin(kind gitpack.Kind, at int64) {
	if len(r.all) > 0 && !r.last().ended {
		panic("an object begins in another")
	}
	r.all = append(r.all, &seen{kind: kind, at: at})
}

func (r *recorder) From(offset, lines int64) {
	r.last().texts = append(r.last().texts, text{offset: offset, lines: lines})
}

func (r *recorder) Write(p []byte) (int, error) {
	t := &r.last().texts[len(r.last().texts)-1]
	t.data = append(t.data, p...)
	return len(p), nil
}

func (r *recorder) End(id string) {
	if r.last().ended {
		panic("an object ends twice")
	}
	r.last().id, r.last().ended = id, true
}

// listed are the objects that were told of, as "id kind", sorted.
func (r *recorder) listed() (out []string) {
	for _, o := range r.all {
		if o.id != "" {
			out = append(out, o.id+" "+string(o.kind))
		}
	}
	slices.Sort(out)
	return out
}

func (r *recorder) count(kind gitpack.Kind) (n int) {
	for _, o := range r.all {
		if o.kind == kind {
			n++
		}
	}
	return n
}

// prose is text that is different in each line.
func prose(r *rand.Rand, lines int) []string {
	words := strings.Fields("the a key token box work file read write list of in and then when history object secret value name line test run")
	var out []string
	for range lines {
		line := ""
		for range 4 + r.IntN(8) {
			line += words[r.IntN(len(words))] + " "
		}
		out = append(out, fmt.Sprintf("%s%d", line, r.IntN(1_000_000)))
	}
	return out
}

// repository makes one with some history: files that change a little, an annotated
// tag, a stash, a second branch, a name that is long, an empty file.
func repository(t testing.TB, format string, commits int) string {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) { agentservertest.Git(t, dir, args...) }
	git("init", "-q", "-b", "main", "--object-format="+format)
	git("config", "gc.auto", "0")
	r := rand.New(rand.NewPCG(1, 1))
	put := func(name, content string) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	files := map[string][]string{"a.txt": prose(r, 400), "src/b.txt": prose(r, 900), "src/deep/c.txt": prose(r, 30)}
	put("empty", "")
	put(strings.Repeat("long name ", 20)+"é", "x")
	for i := range 60 {
		put(fmt.Sprintf("many/%02d.txt", i), fmt.Sprintln("file", i))
	}
	for i := range commits {
		for name, lines := range files {
			at := r.IntN(len(lines))
			lines = slices.Replace(lines, at, min(len(lines), at+r.IntN(3)), prose(r, r.IntN(4))...)
			files[name] = lines
			put(name, strings.Join(lines, "\n")+"\n")
		}
		if i%3 == 0 {
			put(fmt.Sprintf("many/%02d.txt", i%60), fmt.Sprintln("again", i))
		}
		git("add", "-A")
		git("commit", "-q", "-m", fmt.Sprintf("change %d\n\nand why", i))
	}
	git("tag", "-a", "v1", "-m", "the first")
	git("branch", "feature/one")
	put("a.txt", "not committed\n")
	git("stash", "-q")
	return dir
}

// contents are all objects of a repository, as git knows them.
func contents(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "-C", dir, "cat-file", "--batch-all-objects", "--batch")
	out, err := cmd.Output()
	require.NoError(t, err)
	all := map[string][]byte{}
	for in := bufio.NewReader(bytes.NewReader(out)); ; {
		var id, kind string
		var size int
		if _, err := fmt.Fscanf(in, "%s %s %d\n", &id, &kind, &size); err != nil {
			require.ErrorIs(t, err, io.EOF)
			return all
		}
		data := make([]byte, size+1)
		_, err := io.ReadFull(in, data)
		require.NoError(t, err)
		all[id+" "+kind] = data[:size]
	}
}

// packed makes a pack of everything.
func packed(t testing.TB, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `git rev-list --objects --all --reflog | git pack-objects -q --stdout `+strings.Join(args, " "))
	cmd.Dir = dir
	out, err := cmd.Output()
	require.NoError(t, err)
	return out
}

// right compares what was told with what git has. What is text of an object stands
// in it where it was said to stand.
func right(t testing.TB, got *recorder, want map[string][]byte) {
	t.Helper()
	for _, o := range got.all {
		require.True(t, o.ended)
		data, ok := want[o.id+" "+string(o.kind)]
		if o.id == "" {
			continue
		}
		require.True(t, ok, "%s %s is not in the repository", o.kind, o.id)
		for _, part := range o.texts {
			there := data[part.offset : part.offset+int64(len(part.data))]
			if o.kind != gitpack.Tree {
				require.Equal(t, string(there), string(part.data))
				require.EqualValues(t, bytes.Count(data[:part.offset], []byte("\n")), part.lines)
				continue
			}
			require.EqualValues(t, -1, part.lines)
			for i, c := range part.data {
				if c != '\n' {
					require.Equal(t, there[i], c)
				}
			}
		}
	}
}

func TestAllObjectsOfPacksThatGitMadeAreSeen(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		dir := repository(t, format, 14)
		want := contents(t, dir)
		names := slices.Collect(func(yield func(string) bool) {
			for name := range want {
				if !yield(name) {
					return
				}
			}
		})
		slices.Sort(names)
		of := gitpack.SHA1
		if format == "sha256" {
			of = gitpack.SHA256
		}
		for name, args := range map[string][]string{
			"differences by their place": {"--delta-base-offset", "--no-reuse-delta"},
			"differences by id":          {"--no-reuse-delta"},
			"long chains":                {"--delta-base-offset", "--no-reuse-delta", "--depth=200", "--window=100"},
			"no differences":             {"--window=0", "--no-reuse-delta"},
			"not compressed":             {"--compression=0", "--delta-base-offset", "--no-reuse-object"},
			"compressed well":            {"--compression=9", "--delta-base-offset", "--no-reuse-object"},
		} {
			t.Run(format+", "+name, func(t *testing.T) {
				t.Parallel()
				got := &recorder{}
				pack := packed(t, dir, args...)
				require.NoError(t, gitpack.NewReader().Pack(bytes.NewReader(pack), of, got))
				require.Equal(t, names, got.listed())
				right(t, got, want)
				whole := 0
				for _, o := range got.all {
					for _, part := range o.texts {
						whole += len(part.data)
					}
				}
				all := 0
				for _, data := range want {
					all += len(data)
				}
				if slices.Contains(args, "--window=0") {
					require.Equal(t, all, whole)
				} else {
					require.Less(t, whole, all/2, "there were no differences, so this shows nothing")
				}
			})
		}
		for _, version := range []string{"2", "3"} {
			if version == "2" && format == "sha256" {
				continue // git makes none
			}
			t.Run(format+", a bundle of version "+version, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "b")
				agentservertest.Git(t, dir, "bundle", "create", "-q", "--version="+version, file, "--all")
				bundle, err := os.ReadFile(file)
				require.NoError(t, err)
				got := &recorder{}
				require.NoError(t, gitpack.NewReader().Bundle(bytes.NewReader(bundle), got))
				require.Equal(t, gitpack.References, got.all[0].kind)
				for _, ref := range []string{"refs/heads/main\n", "refs/heads/feature/one\n", "refs/tags/v1\n", "refs/stash\n", "HEAD\n"} {
					require.Contains(t, string(got.all[0].texts[0].data), ref)
				}
				require.Equal(t, names, got.listed())
				right(t, got, want)
			})
		}
		t.Run(format+", loose objects", func(t *testing.T) {
			t.Parallel()
			reader := gitpack.NewReader()
			got := &recorder{}
			loose, err := filepath.Glob(filepath.Join(dir, ".git/objects/??/*"))
			require.NoError(t, err)
			for _, name := range loose {
				data, err := os.ReadFile(name)
				require.NoError(t, err)
				require.NoError(t, reader.Loose(bytes.NewReader(data), of, got))
				require.Equal(t, filepath.Base(filepath.Dir(name))+filepath.Base(name), got.last().id)
			}
			require.Equal(t, names, got.listed())
			right(t, got, want)
		})
	}
}

// What a difference adds is seen also where it cannot be applied: its object is
// large, or is in no pack.
func TestDifferencesThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) { agentservertest.Git(t, dir, args...) }
	git("init", "-q", "-b", "main")
	git("config", "gc.auto", "0")
	r := rand.New(rand.NewPCG(2, 2))
	lines := prose(r, 40_000)
	commit := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "large"), []byte(text), 0o600))
		git("add", "-A")
		git("commit", "-q", "-m", "x")
	}
	for i := range 5 {
		lines[1000*i] = fmt.Sprintf("here is planted-%d, and no more", i)
		commit(strings.Join(lines, "\n"))
	}
	got := &recorder{}
	require.NoError(t, gitpack.NewReader().Pack(bytes.NewReader(packed(t, dir, "--delta-base-offset", "--no-reuse-delta")), gitpack.SHA1, got))
	want := contents(t, dir)
	require.Equal(t, 4, got.count(gitpack.Difference))
	require.Len(t, got.all, len(want))
	right(t, got, want)
	file := filepath.Join(t.TempDir(), "thin")
	git("bundle", "create", "-q", file, "main~1..main")
	thin, err := os.ReadFile(file)
	require.NoError(t, err)
	part := &recorder{}
	require.NoError(t, gitpack.NewReader().Bundle(bytes.NewReader(thin), part))
	require.Equal(t, 1, part.count(gitpack.Difference))
	for i := range 5 {
		planted := fmt.Sprintf("planted-%d", i)
		for _, one := range []*recorder{got, part} {
			if one == part && i < 4 {
				continue
			}
			n := 0
			for _, o := range one.all {
				for _, t := range o.texts {
					n += bytes.Count(t.data, []byte(planted))
				}
			}
			// Git has the newest version as a whole, and what was there before in the
			// differences.
			require.Positive(t, n, planted)
		}
	}
	// The places are those in the object, though nobody knows which one that is.
	for _, o := range part.all {
		if o.kind == gitpack.Difference {
			for _, text := range o.texts {
				there := []byte(strings.Join(lines, "\n"))[text.offset:]
				require.True(t, bytes.HasPrefix(there, text.data))
			}
		}
	}
}

// A key is often told by the name before it: what a difference copies is shown with
// what it adds.
func TestWhatIsAroundADifferenceIsShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) { agentservertest.Git(t, dir, args...) }
	git("init", "-q", "-b", "main")
	git("config", "gc.auto", "0")
	lines := prose(rand.New(rand.NewPCG(3, 3)), 2_000)
	for i := range 4 {
		lines[900] = fmt.Sprintf("the_name_of_a_value = %q # and more", strings.Repeat(string(rune('a'+i)), 30))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte(strings.Join(lines, "\n")), 0o600))
		git("add", "-A")
		git("commit", "-q", "-m", "x")
	}
	got := &recorder{}
	require.NoError(t, gitpack.NewReader().Pack(bytes.NewReader(packed(t, dir, "--delta-base-offset", "--no-reuse-delta")), gitpack.SHA1, got))
	for i := range 4 {
		line := []byte(fmt.Sprintf("the_name_of_a_value = %q # and more", strings.Repeat(string(rune('a'+i)), 30)))
		n, small := 0, 0
		for _, o := range got.all {
			for _, t := range o.texts {
				if bytes.Contains(t.data, line) {
					if n++; len(t.data) < 5*gitpack.Context {
						small++
					}
				}
			}
		}
		require.Equal(t, 1, n, "version %d", i)
		require.LessOrEqual(t, small, 1)
	}
}
