package workspace_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/box"
)

func export(t *testing.T, root string) ([]byte, box.Manifest) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, newWorkspace(t, root).Export(t.Context(), &out))
	manifest, err := agentserver.VerifyWorkspace(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	return out.Bytes(), manifest
}

// unpack writes an archive below a new directory, as tar does.
func unpack(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	zip, err := zstd.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	defer zip.Close()
	entries := tar.NewReader(zip)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		require.NoError(t, err)
		to := filepath.Join(dir, header.Name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		switch header.Typeflag {
		case tar.TypeDir:
			require.NoError(t, os.MkdirAll(to, 0o755))
		case tar.TypeSymlink:
			require.NoError(t, os.Symlink(header.Linkname, to))
		case tar.TypeLink:
			require.NoError(t, os.Link(filepath.Join(dir, header.Linkname), to))
		default:
			file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(header.Mode))
			require.NoError(t, err)
			_, err = io.Copy(file, entries)
			require.NoError(t, err)
			require.NoError(t, file.Close())
		}
	}
}

// names lists what an archive has below files/, in its order.
func names(t *testing.T, archive []byte) []string {
	t.Helper()
	zip, err := zstd.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	defer zip.Close()
	var out []string
	for entries := tar.NewReader(zip); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		if name, ok := strings.CutPrefix(header.Name, box.WorkspaceFiles); ok {
			out = append(out, strings.TrimSuffix(name, "/"))
		}
	}
}

// join puts the parts of a stream together.
func join(t *testing.T, dir string, part box.ManifestPart) []byte {
	t.Helper()
	var out []byte
	names, err := filepath.Glob(filepath.Join(dir, part.Name, "*"))
	require.NoError(t, err)
	require.Len(t, names, part.Parts)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		out = append(out, text...)
	}
	return out
}

// restore brings a repository back as the manifest's comment says.
func restore(t *testing.T, dir string, manifest box.Manifest, one box.ManifestRepository) string {
	t.Helper()
	bundle := one.Bundle
	for _, other := range manifest.Repositories {
		if one.BundleOf == other.Path {
			bundle = other.Bundle
		}
	}
	file := filepath.Join(t.TempDir(), "bundle")
	require.NoError(t, os.WriteFile(file, join(t, dir, bundle), 0o600))
	tree := filepath.Join(dir, "files", one.Path)
	gitDir := filepath.Join(tree, ".git")
	do(t, dir, "clone", "-q", "--mirror", file, gitDir)
	do(t, gitDir, "config", "core.bare", "false")
	do(t, gitDir, "config", "--unset", "remote.origin.mirror")
	do(t, gitDir, "fsck", "--full", "--strict")
	if one.Branch == "" {
		do(t, tree, "update-ref", "--no-deref", "HEAD", one.Head)
	} else {
		do(t, tree, "symbolic-ref", "HEAD", "refs/heads/"+one.Branch)
	}
	do(t, tree, "reset", "-q")
	if one.Staged.Parts > 0 {
		patch := filepath.Join(t.TempDir(), "staged")
		require.NoError(t, os.WriteFile(patch, join(t, dir, one.Staged), 0o600))
		do(t, tree, "apply", "--cached", patch)
	}
	return tree
}

func TestAnArchiveBringsAllWorkBack(t *testing.T) {
	t.Parallel()
	root, clone := newBox(t)
	first := do(t, clone, "rev-parse", "HEAD")
	second := commit(t, clone, "unpushed")
	do(t, clone, "branch", "side", first)
	lost := commit(t, clone, "lost")
	do(t, clone, "reset", "-q", "--hard", "HEAD~1")
	write(t, filepath.Join(clone, "a.txt"), "in the stash")
	do(t, clone, "stash")
	write(t, filepath.Join(clone, "a.txt"), "in an older stash, really")
	do(t, clone, "stash")
	write(t, filepath.Join(clone, "staged.bin"), "\x00\x01staged")
	do(t, clone, "add", "staged.bin")
	write(t, filepath.Join(clone, "a.txt"), "not committed")
	write(t, filepath.Join(clone, "untracked.txt"), "untracked")
	write(t, filepath.Join(clone, ".env"), "KEY=1")
	write(t, filepath.Join(clone, "node_modules/x/index.js"), "made again")
	write(t, filepath.Join(root, "workspace/notes.md"), "a plain file")
	linked := filepath.Join(root, "worktrees/x/project")
	do(t, clone, "worktree", "add", "-q", "--detach", linked)
	detached := commit(t, linked, "in the worktree")
	write(t, filepath.Join(linked, "more.txt"), "untracked there")

	archive, manifest := export(t, root)
	require.Empty(t, manifest.Incomplete)
	require.Len(t, manifest.Repositories, 2)
	dir := unpack(t, archive)
	require.NoFileExists(t, filepath.Join(dir, "files/workspace/project/node_modules/x/index.js"))
	require.FileExists(t, filepath.Join(dir, "files/workspace/notes.md"))

	tree := restore(t, dir, manifest, manifest.Repositories[0])
	require.Equal(t, second, do(t, tree, "rev-parse", "main"))
	require.Equal(t, first, do(t, tree, "rev-parse", "side"))
	for _, id := range []string{lost, detached, do(t, clone, "rev-parse", "stash@{0}"), do(t, clone, "rev-parse", "stash@{1}")} {
		require.Equal(t, "commit", do(t, tree, "cat-file", "-t", id))
	}
	require.Equal(t, do(t, clone, "stash", "show", "-p", "stash@{0}"), do(t, tree, "diff", "refs/stash^1", "refs/stash"))
	require.Equal(t, do(t, clone, "status", "--porcelain"), do(t, tree, "status", "--porcelain"))
	require.Equal(t, do(t, clone, "diff", "--binary"), do(t, tree, "diff", "--binary"))
	require.Equal(t, do(t, clone, "diff", "--binary", "--cached"), do(t, tree, "diff", "--binary", "--cached"))
	env, err := os.ReadFile(filepath.Join(tree, ".env"))
	require.NoError(t, err)
	require.Equal(t, "KEY=1", string(env))

	require.Equal(t, "workspace/project", manifest.Repositories[1].BundleOf)
	other := restore(t, dir, manifest, manifest.Repositories[1])
	require.Equal(t, detached, do(t, other, "rev-parse", "HEAD"))
	require.Equal(t, "?? more.txt", do(t, other, "status", "--porcelain"))
}

func TestSubmodulesAreBundledCheckedOutOrNot(t *testing.T) {
	t.Parallel()
	root, clone := newBox(t)
	origin := do(t, clone, "config", "remote.origin.url")
	var ids []string
	for _, name := range []string{"inner", "gone"} {
		do(t, clone, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", origin, name)
		ids = append(ids, commit(t, filepath.Join(clone, name), "work in "+name))
	}
	do(t, clone, "commit", "-q", "-m", "with submodules")
	do(t, clone, "submodule", "--quiet", "deinit", "-f", "gone")
	archive, manifest := export(t, root)
	require.Empty(t, manifest.Incomplete)
	require.Len(t, manifest.Repositories, 3)
	require.Equal(t, box.RepositorySubmodule, manifest.Repositories[1].Kind)
	require.Equal(t, "workspace/project/.git/modules/gone", manifest.Repositories[2].Path)
	dir := unpack(t, archive)
	for i, id := range ids {
		file, bare := filepath.Join(t.TempDir(), "bundle"), filepath.Join(t.TempDir(), "bare")
		require.NoError(t, os.WriteFile(file, join(t, dir, manifest.Repositories[i+1].Bundle), 0o600))
		do(t, dir, "clone", "-q", "--mirror", file, bare)
		require.Equal(t, "commit", do(t, bare, "cat-file", "-t", id))
	}
}

func TestWhatCanBeMadeAgainIsKeptWhenARepositoryLiesInIt(t *testing.T) {
	t.Parallel()
	root, clone := newBox(t)
	write(t, filepath.Join(clone, "pkg/node_modules/x"), "made again")
	do(t, clone, "clone", "-q", ".", "node_modules/dep")
	write(t, filepath.Join(clone, "node_modules/dep/a.txt"), "patched")
	archive, manifest := export(t, root)
	require.Len(t, manifest.Repositories, 2)
	dir := unpack(t, archive)
	require.FileExists(t, filepath.Join(dir, "files/workspace/project/node_modules/dep/a.txt"))
	require.NoFileExists(t, filepath.Join(dir, "files/workspace/project/pkg/node_modules/x"))
}

func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	root, clone := newBox(t)
	commit(t, clone, "more")
	write(t, filepath.Join(clone, "a.txt"), "changed")
	write(t, filepath.Join(clone, "node_modules/x"), "x")
	one, _ := export(t, root)
	// Neither looking nor the removal of what can be made again changes it.
	_ = unsaved(t, root)
	two, _ := export(t, root)
	require.True(t, bytes.Equal(one, two))
	require.NoError(t, os.Remove(filepath.Join(clone, "node_modules/x")))
	three, _ := export(t, root)
	require.True(t, bytes.Equal(one, three))
	write(t, filepath.Join(clone, "a.txt"), "Changed")
	four, _ := export(t, root)
	require.False(t, bytes.Equal(one, four))
}

func TestNamesOfEveryKindAreKept(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "box")
	work := filepath.Join(root, "workspace")
	for _, name := range []string{"new\nline", "tab\there", "\xff\xfe not utf-8", "..two dots", "ü", strings.Repeat("n", 250)} {
		write(t, filepath.Join(work, name, name), name)
	}
	write(t, filepath.Join(work, "hard/one"), "linked")
	require.NoError(t, os.Link(filepath.Join(work, "hard/one"), filepath.Join(work, "hard/two")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(work, "out")))
	require.NoError(t, os.Symlink(strings.Repeat("long/", 300), filepath.Join(work, "long")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(work, "pipe"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(work, "run.sh"), []byte("#!/bin/sh\n"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(work, "empty"), 0o755))
	sparse, err := os.Create(filepath.Join(work, "sparse"))
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("end"), 40<<20)
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("middle"), 20<<20)
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(50<<20))
	require.NoError(t, sparse.Close())

	archive, manifest := export(t, root)
	require.Less(t, len(archive), 1<<20, "holes take no room")
	require.Empty(t, manifest.Incomplete)
	require.EqualValues(t, 1, manifest.LeftOut, "the pipe")
	files := filepath.Join(unpack(t, archive), "files/workspace")
	var order []string
	require.NoError(t, filepath.WalkDir(work, func(at string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, at); rel != "workspace/pipe" {
			order = append(order, rel)
		}
		return err
	}))
	require.Equal(t, order, names(t, archive), "in the order of names, whatever the filesystem's")
	require.NoError(t, filepath.WalkDir(work, func(at string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		rel, err := filepath.Rel(work, at)
		require.NoError(t, err)
		to := filepath.Join(files, rel)
		switch {
		case rel == "pipe":
			require.NoFileExists(t, to)
		case entry.Type() == fs.ModeSymlink:
			want, err := os.Readlink(at)
			require.NoError(t, err)
			got, err := os.Readlink(to)
			require.NoError(t, err)
			require.Equal(t, want, got)
		case entry.Type().IsRegular():
			want, err := os.ReadFile(at)
			require.NoError(t, err)
			got, err := os.ReadFile(to)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), rel)
		default:
			require.DirExists(t, to)
		}
		return nil
	}))
	one, err := os.Stat(filepath.Join(files, "hard/one"))
	require.NoError(t, err)
	two, err := os.Stat(filepath.Join(files, "hard/two"))
	require.NoError(t, err)
	require.True(t, os.SameFile(one, two))
	info, err := os.Stat(filepath.Join(files, "run.sh"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), info.Mode().Perm())
}

// during calls fn once, when so many bytes were written.
type during struct {
	to    bytes.Buffer
	after int
	fn    func()
}

func (d *during) Write(p []byte) (int, error) {
	n, err := d.to.Write(p)
	if d.fn != nil && d.to.Len() >= d.after {
		d.fn()
		d.fn = nil
	}
	return n, err
}

func TestAFileThatShrinksWhileItIsReadIsFlagged(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "box")
	big := filepath.Join(root, "workspace/big")
	write(t, big, "")
	random := make([]byte, 8<<20)
	state := uint64(1)
	for i := range random {
		state = state*6364136223846793005 + 1442695040888963407
		random[i] = byte(state >> 56)
	}
	require.NoError(t, os.WriteFile(big, random, 0o600))
	out := &during{after: 2 << 20, fn: func() { require.NoError(t, os.Truncate(big, 100)) }}
	require.NoError(t, newWorkspace(t, root).Export(t.Context(), out))
	manifest, err := agentserver.VerifyWorkspace(bytes.NewReader(out.to.Bytes()))
	require.NoError(t, err, "the archive is whole all the same")
	require.EqualValues(t, 1, manifest.Changed)
	got, err := os.ReadFile(filepath.Join(unpack(t, out.to.Bytes()), "files/workspace/big"))
	require.NoError(t, err)
	require.Len(t, got, len(random))
	require.Equal(t, random[:1<<20], got[:1<<20])
}

// The walk goes on below the directory that it opened, whatever takes its place.
func TestADirectoryThatIsSwappedForALinkLeadsNowhere(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "box")
	work := filepath.Join(root, "workspace")
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, filepath.Join(secret, "key"), "do not export me")
	for _, name := range []string{"a", "b", "c"} {
		write(t, filepath.Join(work, name, "key"), "mine")
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(filepath.Join(work, "b"), filepath.Join(root, "aside"))
			_ = os.Symlink(secret, filepath.Join(work, "b"))
			runtime.Gosched()
			_ = os.Remove(filepath.Join(work, "b"))
			_ = os.Rename(filepath.Join(root, "aside"), filepath.Join(work, "b"))
		}
	}()
	w := newWorkspace(t, root)
	for range 300 {
		var out bytes.Buffer
		require.NoError(t, w.Export(t.Context(), &out))
		zip, err := zstd.NewReader(&out)
		require.NoError(t, err)
		text, err := io.ReadAll(zip)
		require.NoError(t, err)
		zip.Close()
		require.NotContains(t, string(text), "do not export me")
	}
	close(stop)
	<-ended
}

func TestARepositoryThatCannotBeBundledIsKeptAsFiles(t *testing.T) {
	t.Parallel()
	root, clone := newBox(t)
	id := commit(t, clone, "more")
	blob := do(t, clone, "rev-parse", "HEAD:a.txt")
	require.NoError(t, os.Chmod(filepath.Join(clone, ".git/objects", blob[:2], blob[2:]), 0o600))
	write(t, filepath.Join(clone, ".git/objects", blob[:2], blob[2:]), "damaged")
	archive, manifest := export(t, root)
	one := manifest.Repositories[0]
	require.NotEmpty(t, one.Unbundled)
	require.NotEmpty(t, manifest.Incomplete)
	require.Positive(t, one.GitFiles)
	dir := unpack(t, archive)
	require.FileExists(t, filepath.Join(dir, "repositories/0001/git/objects", id[:2], id[2:], "000001"))
	require.NoDirExists(t, filepath.Join(dir, "repositories/0001/git/config"), "it may hold credentials")
}

func TestAnArchiveNeedsNoRoomInTheBox(t *testing.T) {
	t.Parallel()
	root, clone := newBox(t)
	commit(t, clone, "more")
	write(t, filepath.Join(clone, "a.txt"), "changed")
	if os.Geteuid() != 0 {
		t.Skip("a small filesystem of its own needs root")
	}
	at := t.TempDir()
	if err := syscall.Mount("none", at, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("no filesystem can be mounted here:", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(at, syscall.MNT_DETACH)) })
	small := filepath.Join(at, "box")
	require.NoError(t, os.CopyFS(small, os.DirFS(root)))
	filler, err := os.Create(filepath.Join(at, "filler"))
	require.NoError(t, err)
	_, err = io.CopyN(filler, zero{}, 100<<20)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, filler.Close())
	_, manifest := export(t, small)
	require.Empty(t, manifest.Incomplete)
	require.NotEmpty(t, manifest.Repositories[0].Bundle.SHA256)
	require.NotEmpty(t, manifest.Repositories[0].Unstaged.SHA256)
	require.Equal(t, 1, unsaved(t, small).Repositories[0].UnpushedCommits)
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAMountInTheWorkspaceIsNotEntered(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a bind mount needs root")
	}
	root, clone := newBox(t)
	at := filepath.Join(clone, "mounted")
	elsewhere := t.TempDir() // of the same filesystem
	write(t, filepath.Join(elsewhere, "key"), "not the box's")
	require.NoError(t, os.Mkdir(at, 0o755))
	if err := syscall.Mount(elsewhere, at, "", syscall.MS_BIND, ""); err != nil {
		t.Skip("nothing can be mounted here:", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(at, syscall.MNT_DETACH)) })
	archive, manifest := export(t, root)
	require.NoFileExists(t, filepath.Join(unpack(t, archive), "files/workspace/project/mounted/key"))
	require.Len(t, manifest.Incomplete, 1)
	require.Contains(t, manifest.Incomplete[0], "mounted")
	require.NotEmpty(t, unsaved(t, root).Unknown)
}

// An archive that was changed or cut off anywhere is not taken.
func TestADamagedArchiveIsNotTaken(t *testing.T) {
	t.Parallel()
	root, clone := newBox(t)
	commit(t, clone, "more")
	whole, _ := export(t, root)
	for _, n := range []int{0, 1, len(whole) / 3, len(whole) / 2, len(whole) - 200, len(whole) - 1} {
		_, err := agentserver.VerifyWorkspace(bytes.NewReader(whole[:n]))
		require.Error(t, err, "cut at %d of %d", n, len(whole))
		require.Equal(t, box.ClassUnknown, box.ClassOf(err))
	}
	_, err := agentserver.VerifyWorkspace(io.MultiReader(bytes.NewReader(whole), strings.NewReader("more")))
	require.Error(t, err)

	zip, err := zstd.NewReader(bytes.NewReader(whole))
	require.NoError(t, err)
	defer zip.Close()
	plain, err := io.ReadAll(zip)
	require.NoError(t, err)
	type entry struct {
		header tar.Header
		body   []byte
	}
	var entries []entry
	for in := tar.NewReader(bytes.NewReader(plain)); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		body, err := io.ReadAll(in)
		require.NoError(t, err)
		entries = append(entries, entry{*header, body})
	}
	pack := func(change func(i int, e *entry) bool) error {
		var out bytes.Buffer
		zip, err := zstd.NewWriter(&out)
		require.NoError(t, err)
		to := tar.NewWriter(zip)
		for i, e := range entries {
			e.body = bytes.Clone(e.body)
			if !change(i, &e) {
				continue
			}
			e.header.Size = int64(len(e.body))
			require.NoError(t, to.WriteHeader(&e.header))
			_, err := to.Write(e.body)
			require.NoError(t, err)
		}
		require.NoError(t, errors.Join(to.Close(), zip.Close()))
		_, err = agentserver.VerifyWorkspace(&out)
		return err
	}
	require.NoError(t, pack(func(int, *entry) bool { return true }))
	for at, one := range entries {
		require.Error(t, pack(func(i int, _ *entry) bool { return i != at }), "without %s", one.header.Name)
		if len(one.body) > 0 && one.header.Name != box.WorkspaceManifest {
			require.Error(t, pack(func(i int, e *entry) bool {
				if i == at {
					e.body[len(e.body)/2] ^= 1
				}
				return true
			}), "with another %s", one.header.Name)
		}
	}
	require.Error(t, pack(func(_ int, e *entry) bool {
		e.header.Name = strings.Replace(e.header.Name, "files/workspace/project/a.txt", "files/../../a.txt", 1)
		return true
	}))
}

func TestAnExportEndsWithItsContext(t *testing.T) {
	t.Parallel()
	root, _ := newBox(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := newWorkspace(t, root).Export(ctx, io.Discard)
	require.Equal(t, box.ClassCanceled, box.ClassOf(err))
	_, err = newWorkspace(t, root).Unsaved(ctx)
	require.Equal(t, box.ClassCanceled, box.ClassOf(err))
}

// Not parallel, since it measures the memory of the process.
func TestMemoryDoesNotGrowWithTheWorkspace(t *testing.T) { //nolint:paralleltest // see above
	root := filepath.Join(t.TempDir(), "box")
	work := filepath.Join(root, "workspace")
	for i := range 12 {
		dir := filepath.Join(work, "d"+string(rune('a'+i%26))+string(rune('a'+i/26)))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		for j := range 500 {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "file-with-a-long-name-"+string(rune('a'+j%26))+strings.Repeat("x", j/26)), []byte("content"), 0o600))
		}
	}
	big, err := os.Create(filepath.Join(work, "big"))
	require.NoError(t, err)
	_, err = io.CopyN(big, zero{}, 80<<20)
	require.NoError(t, err)
	require.NoError(t, big.Close())

	w := workspace.New(workspace.Options{Root: root, Dirs: []string{"workspace"}})
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var peak uint64
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- w.Export(t.Context(), in); _ = in.Close() }()
	last := time.Now()
	_, err = agentserver.VerifyWorkspace(readerFunc(func(p []byte) (int, error) {
		if time.Since(last) > 5*time.Millisecond {
			last = time.Now()
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapInuse-min(now.HeapInuse, before.HeapInuse))
		}
		return out.Read(p)
	}))
	require.NoError(t, err)
	require.NoError(t, <-done)
	t.Logf("peak of writing and verifying together: %.1f MiB", float64(peak)/(1<<20))
	require.Less(t, peak, uint64(64<<20))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
