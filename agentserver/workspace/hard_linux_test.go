package workspace_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/workspace"
	"github.com/openhands/boxkeeper/box"
)

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
	root, clone := agentservertest.ClonedBox(t)
	id := agentservertest.Commit(t, clone, "more")
	blob := agentservertest.Git(t, clone, "rev-parse", "HEAD:a.txt")
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
	root, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "more")
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
	root, clone := agentservertest.ClonedBox(t)
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
	root, clone := agentservertest.ClonedBox(t)
	agentservertest.Commit(t, clone, "more")
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
	all := entries
	entries = slices.Insert(slices.Clone(all), len(all)-1, entry{tar.Header{Name: "repositories/0009/bundle/000001", Typeflag: tar.TypeReg}, []byte("x")})
	require.Error(t, pack(func(int, *entry) bool { return true }), "with a stream that nobody names")
	entries = all
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
	root, _ := agentservertest.ClonedBox(t)
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
