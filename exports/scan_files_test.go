package exports_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/race"
)

// leakyWork has leaks in a small file, across the borders of a large one, in a
// name, in a patch across its parts, in a bundle, and in what lies among the objects
// of a git directory.
func leakyWork(all []leak) work {
	w := smallWork()
	maps.Copy(w, work{
		"workspace/.env":                               "# mine\n" + all[2].text + "\n",
		"workspace/a/" + all[0].value + ".txt":         "nothing",
		"workspace/a/keys.json":                        `{"api_key": "hunter2hunter2", "note": "no agent-server wrote this"}`,
		"workspace/large.txt":                          strings.Repeat("a line of words\n", 70_000) + all[1].text + "\n" + strings.Repeat("and more\n", 9_000),
		"repositories/0001/bundle/000001":              handMade("a text", all[3].text),
		"repositories/0001/unstaged.patch/000001":      "+++ b/id_rsa\n" + all[3].text[:60],
		"repositories/0001/unstaged.patch/000002":      all[3].text[60:] + "\n",
		"repositories/0002/git/objects/ab/cdef/000001": all[0].text,
		"repositories/0002/git/logs/HEAD/000001":       "commit: " + all[0].text + "\n",
	})
	return w
}

// filesIn is what a report says of the workspace.
func filesIn(t testing.TB, r exports.SecretsReport) exports.ScannedObject {
	t.Helper()
	i := slices.IndexFunc(r.Objects, func(o exports.ScannedObject) bool { return strings.HasSuffix(o.Key, ".json.zst") })
	if i < 0 {
		t.Fatalf("the report says nothing of the files: %+v", r)
	}
	return r.Objects[i]
}

func places(o exports.ScannedObject) (out []string) {
	for _, f := range o.List {
		out = append(out, fmt.Sprintf("%s %s %d %v", f.Rule, f.Entry, f.Line, f.InName))
	}
	return out
}

func scanningStore(t testing.TB, b *bucket) *exports.Store {
	t.Helper()
	return b.store(exports.Options{Now: clock, Tool: "test", SpoolDir: t.TempDir(), FingerprintKey: []byte("key")})
}

func TestScenario93SecretsInFilesAreReportedWithoutTheirValues(t *testing.T) {
	t.Parallel()
	all := leaks(11)
	b := newBucket()
	s := scanningStore(t, b)
	src := newBoxWithWork(t, leakyWork(all), 2)
	receipt, err := s.Export(t.Context(), request("a"), src, nil)
	require.NoError(t, err)
	require.Equal(t, box.SecretsReceipt{Scanned: true, Found: 7}, receipt.Secrets)
	require.True(t, receipt.Archive.Held())
	r := reportOf(t, s, receipt.Key)
	o := filesIn(t, r)
	require.Equal(t, []string{
		"generic-api-key files/workspace/.env 2 false",
		"github-pat files/workspace/a/masked.txt 1 true",
		"aws-access-token files/workspace/large.txt 70001 false",
		"private-key repositories/0001/bundle 1 false",
		"private-key repositories/0001/unstaged.patch 2 false",
		"github-pat repositories/0002/git/logs/HEAD 1 false",
		"github-pat repositories/0002/git/objects/ab/cdef 1 false",
	}, places(o))
	require.Equal(t, 7, r.Findings)
	require.Zero(t, r.Masked)
	require.Zero(t, o.Packed)
	require.EqualValues(t, 2, o.Objects)
	require.Equal(t, o.List[1].Fingerprint, o.List[5].Fingerprint)
	require.Equal(t, o.List[1].Fingerprint, o.List[6].Fingerprint)

	// The files are as they were.
	reader, err := s.Workspace(t.Context(), "ws", receipt)
	require.NoError(t, err)
	got, err := io.ReadAll(reader.Tar(t.Context()))
	require.NoError(t, err)
	require.True(t, bytes.Equal(untar(t, src.archive), got))
	_, err = s.Verify(t.Context(), "ws", receipt)
	require.NoError(t, err)
	older := receipt
	older.Secrets = box.SecretsReceipt{}
	_, err = s.Verify(t.Context(), "ws", older)
	require.NoError(t, err, "a receipt that an earlier program passed on")

	// The one place where they may stand: the pieces of the archive, and the names.
	for _, key := range append(chunkKeys(b.keys()), o.Key) {
		b.change(key, func([]byte) []byte { return nil })
	}
	wantNone(t, append(everything(t, b), fmt.Sprintf("%+v %+v", receipt, r)...), all)
}

// A secret is found wherever it lies in a file, also where what is read at once
// ends.
func TestASecretIsFoundAtEachPlaceOfAFile(t *testing.T) {
	t.Parallel()
	pat := leaks(12)[0].text
	const window = 113 << 10 // what the scanner holds
	for _, at := range []int{0, 1, 64<<10 - 20, 64 << 10, window - 20, window - 1, window, window + 1, 2*window - 20, 600_001} {
		w := work{"workspace/": "", "workspace/f": strings.Repeat("x\n", at/2) + " "[:at%2] + pat + strings.Repeat("\ny", 20_000)}
		s := scanningStore(t, newBucket())
		receipt, err := s.Export(t.Context(), request("a"), newBoxWithWork(t, w), nil)
		require.NoError(t, err)
		o := filesIn(t, reportOf(t, s, receipt.Key))
		require.Len(t, o.List, 1, "at %d", at)
		require.EqualValues(t, at, o.List[0].Offset)
	}
}

// The report of an export that found most files as they were is that of one that
// looked at everything.
func TestUnchangedFilesAreReportedAgain(t *testing.T) {
	t.Parallel()
	all, others := leaks(13), leaks(14)
	files := leakyWork(all)
	files["workspace/gone.env"] = all[1].text
	files["workspace/same-length"] = "AAAA " + all[0].text
	files["workspace/was-clean"] = strings.Repeat("-", len(others[0].text))
	src := newBoxWithWork(t, files, 2)
	b := newBucket()
	first, err := scanningStore(t, b).Export(t.Context(), request("a"), src, nil)
	require.NoError(t, err)

	delete(files, "workspace/gone.env")
	files["workspace/new.env"] = others[2].text
	files["workspace/same-length"] = "BBBB " + others[0].text
	files["workspace/was-clean"] = others[0].text
	files["workspace/large.txt"] = "longer\n" + files["workspace/large.txt"]
	src.archive = files.pack(t)
	again := request("b")
	again.Previous = first
	second, err := scanningStore(t, b).Export(t.Context(), again, src, nil)
	require.NoError(t, err)

	whole := newBucket()
	fresh, err := scanningStore(t, whole).Export(t.Context(), request("b"), src, nil)
	require.NoError(t, err)
	want, got := filesIn(t, reportOf(t, scanningStore(t, whole), fresh.Key)), filesIn(t, reportOf(t, scanningStore(t, b), second.Key))
	require.Equal(t, want, got)
	require.Equal(t, 10, got.Findings)

	// With another key new finds have other fingerprints, and only those: the rest
	// was not looked for again.
	other := b.store(exports.Options{Now: clock, SpoolDir: t.TempDir(), FingerprintKey: []byte("another")})
	again = request("c")
	again.Previous = second
	files["workspace/.env"] = others[2].text + "\n"
	src.archive = files.pack(t)
	third, err := other.Export(t.Context(), again, src, nil)
	require.NoError(t, err)
	same := 0
	for _, f := range filesIn(t, reportOf(t, other, third.Key)).List {
		i := slices.IndexFunc(got.List, func(o exports.SecretFinding) bool { return o.Entry == f.Entry })
		require.GreaterOrEqual(t, i, 0, f.Entry)
		switch {
		case f.Entry == "files/workspace/.env", f.InName, !strings.HasPrefix(f.Entry, "files/"):
			require.NotEqual(t, got.List[i].Fingerprint, f.Fingerprint, f.Entry)
		default:
			require.Equal(t, got.List[i], f)
			same++
		}
	}
	require.Equal(t, 4, same)
}

// stored is all that chunks hold, unpacked.
func stored(t testing.TB, b *bucket) (out []byte) {
	t.Helper()
	for _, key := range chunkKeys(b.keys()) {
		out = append(out, untar(t, b.objects[key])...)
	}
	return out
}

// Nothing is masked in a file, so a policy that keeps secrets out of the store
// keeps the files out. The conversations are exported all the same.
func TestScenario93FilesWithSecretsAreWithheldWhereSecretsAreMasked(t *testing.T) {
	t.Parallel()
	all := leaks(15)
	for name, files := range map[string]work{
		"in a small workspace":  leakyWork(all),
		"behind other files":    {"workspace/": "", "workspace/a": noise(21, 9<<20), "workspace/z.env": all[2].text},
		"before other files":    {"workspace/": "", "workspace/a.env": all[2].text, "workspace/z": noise(22, (9<<20)/min(race.Slowness, 4))},
		"at the end of a large": {"workspace/": "", "workspace/a": noise(23, (6<<20)/min(race.Slowness, 4)) + "\n" + all[1].text + "\n"},
		"in a name":             {"workspace/": "", "workspace/" + all[0].value: ""},
	} {
		for _, policy := range []box.SecretsPolicy{box.SecretsRedact, box.SecretsBlock} {
			t.Run(name+", "+string(policy), func(t *testing.T) {
				t.Parallel()
				b := newBucket()
				s := scanningStore(t, b)
				src := newBoxWithWork(t, files, 2)
				src.server = leaky(all)
				receipt, err := s.Export(t.Context(), withPolicy("a", policy), src, nil)
				wantNone(t, append(everything(t, b, err), stored(t, b)...), all)
				if policy == box.SecretsBlock {
					wantClass(t, err, box.ClassFailedPrecondition)
					require.ErrorContains(t, err, "exports/ws/0001/a/secrets.json")
					noManifest(t, b)
					r, err := s.Secrets(t.Context(), "exports/ws/0001/a/secrets.json")
					require.NoError(t, err)
					require.True(t, filesIn(t, r).Withheld)
					require.Equal(t, 7, r.Findings-filesIn(t, r).Findings, "the report is whole")
					require.Empty(t, chunkKeys(b.keys()))
					return
				}
				require.NoError(t, err)
				require.True(t, receipt.Archive.Withheld)
				require.False(t, receipt.Archive.Held())
				require.Contains(t, receipt.Archive.None, "export_secrets is redact")
				require.Equal(t, 7, receipt.Events)
				_, err = s.Verify(t.Context(), "ws", receipt)
				require.NoError(t, err)
				r := reportOf(t, s, receipt.Key)
				o := filesIn(t, r)
				require.True(t, o.Withheld)
				require.Positive(t, o.Findings)
				require.Equal(t, o.Findings, r.Findings-r.Masked)
				if strings.HasPrefix(name, "behind") {
					require.NotEmpty(t, chunkKeys(b.keys()), "what lies before was let through, or this test shows nothing")
				}
				_, err = s.Workspace(t.Context(), "ws", receipt)
				wantClass(t, err, box.ClassNotFound)

				// Without the secrets the files are taken again.
				src.archive = work{"workspace/": "", "workspace/a": "clean"}.pack(t)
				clean := withPolicy("b", policy)
				clean.Previous = receipt
				receipt, err = s.Export(t.Context(), clean, src, nil)
				require.NoError(t, err)
				require.True(t, receipt.Archive.Held())
			})
		}
	}
}

// A policy that blocks does so for the files alone, too, and takes clean ones.
func TestScenario93FilesAloneBlockAnExport(t *testing.T) {
	t.Parallel()
	all := leaks(16)
	b := newBucket()
	s := scanningStore(t, b)
	src := newBoxWithWork(t, work{"workspace/": "", "workspace/.env": all[2].text}, 2)
	_, err := s.Export(t.Context(), withPolicy("a", box.SecretsBlock), src, nil)
	wantClass(t, err, box.ClassFailedPrecondition)
	require.ErrorContains(t, err, "1 possible secrets")
	noManifest(t, b)
	src.archive = smallWork().pack(t)
	receipt, err := s.Export(t.Context(), withPolicy("b", box.SecretsBlock), src, nil)
	require.NoError(t, err)
	proven(t, s, receipt, src.server)
	require.True(t, receipt.Archive.Held())
}

// An export that broke off and was repeated tells what one in one go tells.
func TestAnInterruptedLookThroughFiles(t *testing.T) {
	t.Parallel()
	all := leaks(17)
	var want map[string][]byte
	for fail := range 7 {
		b := newBucket()
		b.afterWrite = func(n int, _ string) error {
			if n == fail {
				return errFailing
			}
			return nil
		}
		s := scanningStore(t, b)
		src := newBoxWithWork(t, leakyWork(all), 1)
		_, err := s.Export(t.Context(), request("a"), src, nil)
		require.Equal(t, fail == 0 || fail > 5, err == nil, "write %d: %v", fail, err)
		_, err = s.Export(t.Context(), request("a"), src, nil)
		require.NoError(t, err)
		if fail == 0 {
			want = b.objects
		}
		require.Equal(t, slices.Sorted(maps.Keys(want)), b.keys())
		for key, data := range want {
			require.True(t, bytes.Equal(data, b.objects[key]), "write %d failed: %s is not as in one go", fail, key)
		}
	}
}

func TestManySecretsInFilesAreCountedAndNotAllListed(t *testing.T) {
	t.Parallel()
	const lines = 2_600
	files := work{"workspace/": ""}
	for _, name := range []string{"a", "b"} {
		var text strings.Builder
		for i := range lines {
			text.WriteString(leaks(uint64(5000 + i))[0].text + "\n")
		}
		files["workspace/"+name] = text.String()
	}
	b := newBucket()
	s := scanningStore(t, b)
	src := newBoxWithWork(t, files)
	first, err := s.Export(t.Context(), request("a"), src, nil)
	require.NoError(t, err)
	r := reportOf(t, s, first.Key)
	o := filesIn(t, r)
	require.Equal(t, 2*lines, o.Findings)
	require.Len(t, o.List, 5_000)
	require.Equal(t, 2*lines-5_000, r.Unlisted)
	require.EqualValues(t, lines, o.List[lines-1].Line)
	require.EqualValues(t, 1, o.List[lines].Line)

	// What is not listed is not known to the next export, which looks again.
	again := request("b")
	again.Previous = first
	second, err := s.Export(t.Context(), again, src, nil)
	require.NoError(t, err)
	require.Equal(t, places(o), places(filesIn(t, reportOf(t, s, second.Key))))
	require.Equal(t, 2*lines, second.Secrets.Found)
}

func TestAReportByItsKeyIsOfThatKey(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := scanningStore(t, b)
	_, err := s.Export(t.Context(), request("a"), newServer(1), nil)
	require.NoError(t, err)
	const key, moved = "exports/ws/0001/a/secrets.json", "exports/ws/0001/b/secrets.json"
	_, err = s.Secrets(t.Context(), key)
	require.NoError(t, err)
	b.change(moved, func([]byte) []byte { return b.objects[key] })
	_, err = s.Secrets(t.Context(), moved)
	wantClass(t, err, box.ClassUnknown)
	_, err = s.Secrets(t.Context(), "exports/ws/0001/c/secrets.json")
	wantClass(t, err, box.ClassNotFound)
}

// The end of a patch is looked at only when something follows it: nothing of what
// comes between may pass.
func TestScenario93ASecretAtTheEndOfAPatchIsWithheld(t *testing.T) {
	t.Parallel()
	all := leaks(18)
	files := work{"workspace/": "", "repositories/0001/unstaged.patch/000001": noise(24, 3<<20) + "\n" + all[0].text}
	b := newBucket()
	s := scanningStore(t, b)
	src := newBoxWithWork(t, files)
	src.archive = files.pack(t, func(m *box.Manifest) { m.Incomplete = []string{strings.Repeat("a long text ", 6<<20/12)} })
	receipt, err := s.Export(t.Context(), withPolicy("a", box.SecretsRedact), src, nil)
	require.NoError(t, err)
	require.True(t, receipt.Archive.Withheld)
	wantNone(t, stored(t, b), all)
}
