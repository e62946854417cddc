package exports_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

// pat is a made-up token.
func pat(seed uint64) string { return leaks(seed)[0].value }

// leakyHistory makes a repository with a token in each place where one can be, and
// in none that is checked out. It returns them by place.
func leakyHistory(t *testing.T) (dir string, planted map[string]string) {
	t.Helper()
	dir, planted = t.TempDir(), map[string]string{}
	for i, place := range []string{"message", "old version", "line", "tag", "stash", "branch", "wide", "named", "tree"} {
		planted[place] = pat(uint64(300 + i))
	}
	planted["named"] = leaks(308)[2].value
	git := func(args ...string) { agentservertest.Git(t, dir, args...) }
	put := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	git("init", "-q", "-b", "main")
	git("config", "gc.auto", "0")
	lines := strings.Split(strings.Repeat("one line of a file, and there are more\n", 1), "\n")[:1]
	for i := range 400 {
		lines = append(lines, fmt.Sprintf("line %d of a file that is long enough to be kept as a difference", i))
	}
	text := func() string { return strings.Join(lines, "\n") + "\n" }
	put("settings.txt", "the first version\n"+planted["old version"]+"\n")
	put("utf16.txt", wide(planted["wide"]+"\n", false, true))
	put(planted["tree"]+".txt", "nothing")
	put("long.txt", text())
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	// A line that was there and went: git keeps the newest version whole.
	lines = slices.Insert(lines, 200, "  "+planted["line"])
	lines[300] = "DB_PASSWORD=" + planted["named"]
	put("long.txt", text())
	git("rm", "-q", "settings.txt", "utf16.txt", planted["tree"]+".txt")
	git("add", "-A")
	git("commit", "-q", "-m", "second, with "+planted["message"])
	lines = slices.Delete(lines, 200, 201)
	lines[299] = "DB_PASSWORD=" + strings.Repeat("x", 24)
	put("long.txt", text())
	git("add", "-A")
	git("commit", "-q", "-m", "third")
	git("tag", "-a", "v1", "-m", "a tag with "+planted["tag"])
	git("branch", "feature/"+planted["branch"])
	put("long.txt", "WIP "+planted["stash"]+"\n"+text())
	git("stash", "-q")
	return dir, planted
}

// bundleOf makes the bundle of a repository, and says how many differences are in it.
func bundleOf(t testing.TB, dir string) (bundle string, differences int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "b")
	agentservertest.Git(t, dir, "bundle", "create", "-q", file, "--all")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	_, pack, _ := bytes.Cut(data, []byte("\n\n"))
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "git index-pack --stdin >/dev/null && git verify-pack -v objects/pack/*.idx")
	cmd.Dir = t.TempDir()
	agentservertest.Git(t, cmd.Dir, "init", "-q", "--bare")
	cmd.Stdin = bytes.NewReader(pack)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 7 { // the last are the depth and what it is a difference to
			differences++
		}
	}
	return string(data), differences
}

// wide is text in UTF-16.
func wide(text string, big, mark bool) string {
	var order binary.AppendByteOrder = binary.LittleEndian
	if big {
		order = binary.BigEndian
	}
	var out []byte
	if mark {
		out = order.AppendUint16(out, 0xfeff)
	}
	for _, u := range utf16.Encode([]rune(text)) {
		out = order.AppendUint16(out, u)
	}
	return string(out)
}

func historyPlaces(o exports.ScannedObject) (out []string) {
	for _, f := range o.List {
		out = append(out, f.Rule+" "+f.Git)
	}
	slices.Sort(out)
	return out
}

func TestScenario93SecretsInHistoriesAreReportedWithoutTheirValues(t *testing.T) {
	t.Parallel()
	dir, planted := leakyHistory(t)
	bundle, differences := bundleOf(t, dir)
	require.GreaterOrEqual(t, differences, 2, "git made no difference, so this shows nothing")
	all := slices.Collect(func(yield func(leak) bool) {
		for _, value := range planted {
			if !yield(leak{value: value, text: value}) {
				return
			}
		}
	})
	for _, policy := range []box.SecretsPolicy{box.SecretsKeep, box.SecretsRedact, box.SecretsBlock} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			b := newBucket()
			s := scanningStore(t, b)
			src := newBoxWithWork(t, work{"workspace/": "", "repositories/0001/bundle/000001": bundle[:777], "repositories/0001/bundle/000002": bundle[777:]}, 2)
			receipt, err := s.Export(t.Context(), withPolicy("a", policy), src, nil)
			var r exports.SecretsReport
			switch policy {
			case box.SecretsKeep:
				require.NoError(t, err)
				require.Equal(t, box.SecretsReceipt{Scanned: true, Found: len(planted)}, receipt.Secrets)
				require.True(t, receipt.Archive.Held())
				_, err = s.Verify(t.Context(), "ws", receipt)
				require.NoError(t, err)
				r = reportOf(t, s, receipt.Key)
			case box.SecretsRedact:
				require.NoError(t, err)
				require.True(t, receipt.Archive.Withheld)
				require.Empty(t, chunkKeys(b.keys()))
				r = reportOf(t, s, receipt.Key)
			case box.SecretsBlock:
				wantClass(t, err, box.ClassFailedPrecondition)
				noManifest(t, b)
				require.Empty(t, chunkKeys(b.keys()))
				r, err = s.Secrets(t.Context(), "exports/ws/0001/a/secrets.json")
				require.NoError(t, err)
			}
			o := filesIn(t, r)
			require.Equal(t, []string{
				"generic-api-key blob", "github-pat blob", "github-pat blob", "github-pat blob", "github-pat blob",
				"github-pat commit", "github-pat references", "github-pat tag", "github-pat tree",
			}, historyPlaces(o))
			require.Zero(t, o.Packed)
			require.Zero(t, o.Partial)
			for _, f := range o.List {
				require.Equal(t, "repositories/0001/bundle", f.Entry)
				if f.Git == "references" {
					require.Empty(t, f.Object)
					continue
				}
				// It stands in the object where the report says.
				content := agentservertest.Git(t, dir, "cat-file", f.Git, f.Object)
				raw, err := exec.CommandContext(t.Context(), "git", "-C", dir, "cat-file", f.Git, f.Object).Output()
				require.NoError(t, err)
				if f.Git == "tree" {
					require.Zero(t, f.Line)
				} else {
					require.EqualValues(t, 1+bytes.Count(raw[:f.Offset], []byte("\n")), f.Line, content)
				}
				value := strings.ReplaceAll(string(raw[f.Offset:]), "\x00", "")
				require.True(t, slices.ContainsFunc(all, func(l leak) bool { return strings.HasPrefix(value, l.value) }))
			}
			// The one place where they may stand.
			for _, key := range append(chunkKeys(b.keys()), o.Key) {
				b.change(key, func([]byte) []byte { return nil })
			}
			wantNone(t, append(everything(t, b, err), fmt.Sprintf("%+v %+v", receipt, r)...), all)
		})
	}
}

// What git kept as files, of a repository that it could not bundle, and of a bare
// one.
func TestScenario93SecretsInGitDirectoriesAreFound(t *testing.T) {
	t.Parallel()
	dir, planted := leakyHistory(t)
	files := work{"workspace/": "", "workspace/bare.git/": "", "workspace/not-git/": "", "workspace/not-git/objects/": "", "workspace/not-git/objects/ab/": ""}
	tree := func(from, to, part string) {
		require.NoError(t, filepath.WalkDir(from, func(name string, d os.DirEntry, err error) error {
			below, _ := filepath.Rel(from, name)
			switch place := to + filepath.ToSlash(below); {
			case err != nil:
				return err
			case !d.IsDir():
				data, err := os.ReadFile(name)
				files[place+part] = string(data)
				return err
			case part == "":
				files[place+"/"] = ""
			}
			return nil
		}))
	}
	tree(filepath.Join(dir, ".git/objects"), "repositories/0001/git/objects/", "/000001")
	agentservertest.Git(t, dir, "gc", "-q")
	tree(filepath.Join(dir, ".git/objects"), "workspace/bare.git/objects/", "")
	delete(files, "workspace/bare.git/objects/./")
	other := pat(400)
	files["workspace/bare.git/objects/info/alternates"] = other
	// What is no object of git is a file, whatever its name is.
	files["workspace/not-git/objects/ab/cdef"] = pat(401)
	files["workspace/not-git/objects/ab/x"] = "x"
	s := scanningStore(t, newBucket())
	src := newBoxWithWork(t, files)
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	require.NoError(t, err)
	o := filesIn(t, reportOf(t, s, receipt.Key))
	count := map[string]int{}
	for _, f := range o.List {
		switch where, _, _ := strings.Cut(f.Entry, "/objects/"); {
		case f.Git == "":
			count["files"]++
		case strings.HasPrefix(f.Entry, "repositories/"):
			require.Equal(t, strings.ReplaceAll(strings.TrimPrefix(f.Entry, "repositories/0001/git/objects/"), "/", ""), f.Object)
			count[where]++
		default:
			require.True(t, strings.HasSuffix(f.Entry, ".pack"), f.Entry)
			count[where]++
		}
	}
	// The name of the branch is in no object.
	require.Equal(t, map[string]int{"repositories/0001/git": len(planted) - 1, "files/workspace/bare.git": len(planted) - 1, "files": 2}, count)
	require.Zero(t, o.Packed)

	// The next export says the same, though it reads nothing but the packs again.
	again := request("b")
	again.Previous = receipt
	second, err := s.Export(t.Context(), again, src, nil)
	require.NoError(t, err)
	sameFinds(t, o, filesIn(t, reportOf(t, s, second.Key)))
}

// sameFinds compares the reports of two exports.
func sameFinds(t testing.TB, a, b exports.ScannedObject) {
	t.Helper()
	a.Key, a.SHA256 = b.Key, b.SHA256
	require.Equal(t, a, b)
}

// handMade is a bundle of whole objects.
func handMade(blobs ...string) string {
	out := bytes.NewBufferString("# v2 git bundle\n0123456789012345678901234567890123456789 refs/heads/main\n\n")
	out.Write(binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(blobs))))
	for _, b := range blobs {
		size := len(b)
		head := []byte{3<<4 | byte(size&15)}
		for size >>= 4; size > 0; size >>= 7 {
			head[len(head)-1] |= 0x80
			head = append(head, byte(size&0x7f))
		}
		out.Write(head)
		out.WriteString(deflated(b))
	}
	out.Write(make([]byte, 20)) // nobody compares the sum
	return out.String()
}

func deflated(text string) string {
	var out bytes.Buffer // it never fails
	z := zlib.NewWriter(&out)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return out.String()
}

// Many versions have one secret: it is one find.
func TestOneSecretInManyVersionsIsOneFind(t *testing.T) {
	t.Parallel()
	var versions []string
	for i := range 300 {
		versions = append(versions, fmt.Sprintf("version %d\n%s\n", i, pat(500)))
	}
	s := scanningStore(t, newBucket())
	bundle := handMade(append(versions, pat(501))...)
	receipt, err := s.Export(t.Context(), request("a"), newBoxWithWork(t, work{
		"workspace/": "", "repositories/0001/bundle/000001": bundle, "repositories/0002/bundle/000001": bundle,
	}), nil)
	require.NoError(t, err)
	o := filesIn(t, reportOf(t, s, receipt.Key))
	require.Equal(t, []string{
		"github-pat repositories/0001/bundle 2 false", "github-pat repositories/0001/bundle 1 false",
		"github-pat repositories/0002/bundle 2 false", "github-pat repositories/0002/bundle 1 false",
	}, places(o))
	require.EqualValues(t, 602, o.Objects)
	require.Equal(t, o.List[0].Fingerprint, o.List[2].Fingerprint)
}

// What cannot be looked into may hold anything: it is told, and a policy that keeps
// secrets out keeps it out.
func TestScenario93AHistoryThatCannotBeReadIsTold(t *testing.T) {
	t.Parallel()
	whole := handMade("some text\n", pat(510), strings.Repeat("more text\n", 100))
	for name, row := range map[string]struct {
		files work
		found int // beside what could not be read
	}{
		"a bundle that is cut off":       {work{"repositories/0001/bundle/000001": whole[:len(whole)-40]}, 1},
		"a bundle that is none":          {work{"repositories/0001/bundle/000001": "something else\n" + pat(511) + "\n"}, 0},
		"a pack that is none":            {work{"repositories/0001/git/objects/pack/pack-0123456789012345678901234567890123456789.pack/000001": "this is no pack"}, 0},
		"a loose object that is none":    {work{"repositories/0001/git/objects/ab/01234567890123456789012345678901234567/000001": "this is no object"}, 0},
		"an object with something more":  {work{"repositories/0001/git/objects/ab/01234567890123456789012345678901234567/000001": deflated("blob 4\x00text") + "x"}, 0},
		"a pack of a bare one, cut off":  {work{"workspace/objects/": "", "workspace/objects/pack/": "", "workspace/objects/pack/tmp_pack_x": "PACK\x00\x00\x00\x02\x00\x00\x00\x09\xb0"}, 0},
		"an object of a bare one, short": {work{"workspace/objects/": "", "workspace/objects/ab/": "", "workspace/objects/ab/tmp_obj_x": deflated("blob 9\x00text")}, 0},
	} {
		for _, policy := range []box.SecretsPolicy{box.SecretsKeep, box.SecretsRedact, box.SecretsBlock} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				t.Parallel()
				files := work{"workspace/": ""}
				maps.Copy(files, row.files)
				b := newBucket()
				s := scanningStore(t, b)
				receipt, err := s.Export(t.Context(), withPolicy("a", policy), newBoxWithWork(t, files), nil)
				key := receipt.Key
				switch policy {
				case box.SecretsKeep:
					require.NoError(t, err)
					require.True(t, receipt.Archive.Held())
				case box.SecretsRedact:
					require.NoError(t, err)
					require.True(t, receipt.Archive.Withheld)
					require.Contains(t, receipt.Archive.None, "could not be looked into")
				case box.SecretsBlock:
					wantClass(t, err, box.ClassFailedPrecondition)
					require.ErrorContains(t, err, "could not be looked into")
					key = "exports/ws/0001/a/secrets.json"
				}
				o := filesIn(t, reportOf(t, s, key))
				require.Positive(t, o.Packed)
				require.Len(t, o.List, row.found+1)
				i := slices.IndexFunc(o.List, func(f exports.SecretFinding) bool { return f.Rule == exports.NotLookedInto })
				require.NotEmpty(t, o.List[i].Why)
				require.Empty(t, o.List[i].Fingerprint)
				require.Equal(t, row.found+1, o.Findings)
				if policy == box.SecretsKeep {
					again := request("b")
					again.Previous = receipt
					second, err := s.Export(t.Context(), again, newBoxWithWork(t, files), nil)
					require.NoError(t, err)
					sameFinds(t, o, filesIn(t, reportOf(t, s, second.Key)))
				}
			})
		}
	}
}

// Nothing of an object with a find goes into the store, though what lay before does.
func TestScenario93AnObjectWithASecretIsWithheld(t *testing.T) {
	t.Parallel()
	secret := "a text around it " + pat(520)
	before, after := noise(61, 6<<20), noise(62, 3<<20)
	object := deflated(secret)
	for name, bundle := range map[string]string{
		"between others": handMade(before, secret, after),
		"at the end":     handMade(before, secret),
		"in a large one": handMade(before, noise(63, 100<<10)+" "+pat(520)+" "+after),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket()
			s := scanningStore(t, b)
			receipt, err := s.Export(t.Context(), withPolicy("a", box.SecretsRedact), newBoxWithWork(t, work{"workspace/": "", "repositories/0001/bundle/000001": bundle}), nil)
			require.NoError(t, err)
			require.True(t, receipt.Archive.Withheld)
			kept := stored(t, b)
			require.NotEmpty(t, kept, "what lies before was let through, or this shows nothing")
			require.False(t, bytes.Contains(kept, []byte(object)))
			require.False(t, bytes.Contains(kept, []byte(pat(520))))
		})
	}
}

// A text in UTF-16 is looked through, with or without the mark, and the places are
// those in its bytes.
func TestScenario93SecretsInUTF16AreFound(t *testing.T) {
	t.Parallel()
	value := pat(530)
	files, want := work{"workspace/": ""}, map[string]int64{}
	put := func(name, text string, big, mark bool) {
		content := wide(text, big, mark)
		files["workspace/"+name] = content
		want["files/workspace/"+name] = int64(strings.Index(content, wide(value, big, false)))
	}
	long := strings.Repeat("words and more words\r\n", 30_000)
	for _, big := range []bool{false, true} {
		for _, mark := range []bool{false, true} {
			name := fmt.Sprintf("%v-%v-", big, mark)
			put(name+"short", "x\n"+value+"\n", big, mark)
			put(name+"long", long+"ünd "+value+"\n"+long, big, mark)
		}
	}
	put("at-once", value, true, true)
	// A mark says what follows; what follows is looked at all the same.
	files["workspace/a-lie"] = "\xff\xfe" + value
	want["files/workspace/a-lie"] = 2
	s := scanningStore(t, newBucket())
	receipt, err := s.Export(t.Context(), request("a"), newBoxWithWork(t, files), nil)
	require.NoError(t, err)
	got, prints := map[string]int64{}, map[string]bool{}
	o := filesIn(t, reportOf(t, s, receipt.Key))
	for _, f := range o.List {
		require.Equal(t, "github-pat", f.Rule)
		got[f.Entry] = f.Offset
		prints[f.Fingerprint] = true
		if strings.HasSuffix(f.Entry, "long") {
			require.EqualValues(t, 30_001, f.Line)
		}
	}
	require.Equal(t, want, got)
	require.Len(t, o.List, len(want))
	require.Len(t, prints, 1, "the value is the same in all of them")
}

// An address of a remote comes without a password. If it has one all the same, that
// is found.
func TestScenario93SecretsInTheManifestAreFound(t *testing.T) {
	t.Parallel()
	word := leaks(540)[2].value
	for name, row := range map[string]struct {
		change func(*box.ManifestRepository)
		rules  []string
	}{
		"nothing": {func(r *box.ManifestRepository) {
			r.Remotes = map[string]string{"origin": "https://example.com/a.git", "other": "git@example.com:a.git"}
		}, nil},
		"a password": {func(r *box.ManifestRepository) {
			r.Remotes = map[string]string{"origin": "https://me:" + word + "@example.com/a.git"}
		}, []string{"url-credentials"}},
		"a token": {func(r *box.ManifestRepository) {
			r.Remotes = map[string]string{"origin": "https://" + word + "@example.com/a.git"}
		}, []string{"url-credentials"}},
		"a token that is one": {func(r *box.ManifestRepository) { r.Branch = "main/" + pat(541) }, []string{"github-pat"}},
		"a stash":             {func(r *box.ManifestRepository) { r.Stashes = []box.ManifestStash{{Subject: "WIP " + pat(541)}} }, []string{"github-pat"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := work{"workspace/": "", "repositories/0001/bundle/000001": handMade("text")}
			src := newBoxWithWork(t, files)
			src.archive = files.pack(t, func(m *box.Manifest) { row.change(&m.Repositories[0]) })
			b := newBucket()
			s := scanningStore(t, b)
			receipt, err := s.Export(t.Context(), withPolicy("a", box.SecretsRedact), src, nil)
			require.NoError(t, err)
			var rules []string
			for _, f := range filesIn(t, reportOf(t, s, receipt.Key)).List {
				require.Equal(t, "manifest.json", f.Entry)
				rules = append(rules, f.Rule)
			}
			require.Equal(t, row.rules, rules)
			require.Equal(t, len(rules) > 0, receipt.Archive.Withheld)
			wantNone(t, append(everything(t, b), stored(t, b)...), []leak{{value: word, text: word}, {value: pat(541), text: pat(541)}})
		})
	}
}

// TestScenario94AHistoryIsStreamed is not parallel: it measures the heap.
func TestScenario94AHistoryIsStreamed(t *testing.T) { //nolint:paralleltest // see above
	var blobs []string
	for i := range 60 / race.Slowness {
		blobs = append(blobs, noise(700+i, 600_000))
	}
	src := newBoxWithWork(t, work{"workspace/": "", "repositories/0001/bundle/000001": handMade(blobs...)})
	s, _ := directoryStore(t)
	var receipt box.Receipt
	grown := peak(t, func() {
		var err error
		receipt, err = s.Export(t.Context(), request("a"), src, nil)
		require.NoError(t, err)
	})
	t.Logf("%d MB: the heap grew by %d KB", receipt.Archive.Bytes>>20, grown>>10)
	require.EqualValues(t, len(blobs), filesIn(t, reportOf(t, s, receipt.Key)).Objects)
	if grown > memoryBudget {
		t.Errorf("the heap grew by %d", grown)
	}
}
