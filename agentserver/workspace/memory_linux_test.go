//go:build !race

// Without the race detector, which changes nothing of git's memory.

package workspace_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
)

// memoryOf reads a line of a process's status, in KiB; 0 when it is gone.
func memoryOf(pid, name string) (kib int) {
	text, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == name+":" {
			kib, _ = strconv.Atoi(string(fields[1]))
		}
	}
	return kib
}

// below lists the processes that a process has started, and those that they have.
func below(pid string) (out []string) {
	tasks, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for child := range strings.FieldsSeq(string(text)) {
			out = append(append(out, child), below(child)...)
		}
	}
	return out
}

// watched does work and returns the most that the programs that it starts have
// together, as it was seen, of memory that nobody can take back from them, and the
// most that this process has, in MiB.
func watched(t *testing.T, work func()) (programs, own int) {
	t.Helper()
	self := strconv.Itoa(os.Getpid())
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)) // the kernel forgets its peak
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			now := 0
			for _, child := range below(self) {
				// Before it becomes git it is this process, and shares its memory.
				if name, _ := os.ReadFile("/proc/" + child + "/comm"); strings.HasPrefix(string(name), "git") {
					now += memoryOf(child, "RssAnon")
				}
			}
			programs = max(programs, now)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	work()
	close(stop)
	<-done
	return programs >> 10, memoryOf(self, "VmHWM") >> 10
}

// imported makes a repository of what is written for git fast-import.
func imported(t *testing.T, write func(io.Writer)) (root, clone string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "box")
	clone = filepath.Join(root, "workspace/project")
	require.NoError(t, os.MkdirAll(clone, 0o755))
	agentservertest.Git(t, clone, "init", "-q", "-b", "main")
	cmd := exec.CommandContext(t.Context(), "git", "-c", "core.compression=0", "fast-import", "--quiet", "--depth=2000")
	cmd.Dir = clone
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	out := bufio.NewWriterSize(in, 1<<20)
	write(out)
	require.NoError(t, out.Flush())
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	agentservertest.Git(t, clone, "reset", "-q", "--hard")
	return root, clone
}

func commit(w io.Writer, n int) {
	fmt.Fprintf(w, "commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 1\nx\n", 1_600_000_000+n)
}

// TestGitTakesLittleMemory: not what git holds of a file, and of a history
// some 400 bytes for each object and reference. It is not parallel, since it watches
// all programs that this process starts.
func TestGitTakesLittleMemory(t *testing.T) { //nolint:paralleltest // see above
	size := 50
	if os.Getenv("BOXKEEPER_TEST_FULL") != "" {
		size = 1
	}
	source := rand.NewChaCha8([32]byte{3})
	random := rand.New(source)
	history := 125_000 / size
	names := 95_000 / size
	blobs := 400 / size
	for name, row := range map[string]struct { //nolint:paralleltest // see above
		objects int
		make    func() (root, clone string)
	}{
		"a long history": {4 * history, func() (string, string) {
			return imported(t, func(w io.Writer) {
				texts := make([][]string, 1_000)
				for i := range history {
					n := i % len(texts)
					for len(texts[n]) < 60 {
						texts[n] = append(texts[n], fmt.Sprintf("line %d of some text of file %d\n", len(texts[n]), n))
					}
					texts[n][random.IntN(60)] = fmt.Sprintf("changed %d in %d\n", i, n)
					text := strings.Join(texts[n], "")
					commit(w, i)
					fmt.Fprintf(w, "M 100644 inline a%02d/f%03d.txt\ndata %d\n%s\n", n/40, n, len(text), text)
				}
			})
		}},
		"many references": {2 * names, func() (string, string) {
			return imported(t, func(w io.Writer) {
				for i := range names {
					commit(w, i)
					fmt.Fprintf(w, "reset refs/tags/build-%07d-of-some-pipeline\nfrom refs/heads/main\n\n", i)
				}
			})
		}},
		"large files": {3 * blobs, func() (string, string) {
			block := make([]byte, 5<<20/min(size, 5))
			return imported(t, func(w io.Writer) {
				for i := range blobs {
					for at := 0; at < len(block); at += 8 {
						block[at] = byte(random.Uint64()) // a delta of one to another takes all the same
					}
					commit(w, i)
					fmt.Fprintf(w, "M 100644 inline f%d\ndata %d\n%s\n", i%10, len(block), block)
				}
			})
		}},
		"a large file that was changed": {0, func() (string, string) {
			root, clone := agentservertest.ClonedBox(t)
			at := filepath.Join(clone, "model.bin")
			content := make([]byte, max(300/size, 24)<<20)
			_, _ = source.Read(content) // which nothing makes smaller
			require.NoError(t, os.WriteFile(at, content, 0o600))
			agentservertest.Git(t, clone, "-c", "core.compression=0", "add", "model.bin")
			agentservertest.Git(t, clone, "commit", "-q", "-m", "a model")
			content[len(content)/2]++
			require.NoError(t, os.WriteFile(at, content, 0o600))
			return root, clone
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root, clone := row.make()
			w := newWorkspace(t, root)
			git, own := watched(t, func() { require.NoError(t, w.Export(t.Context(), io.Discard)) })
			plain, _ := watched(t, func() {
				cmd := exec.CommandContext(t.Context(), "git", "bundle", "create", "--quiet", "-", "--all")
				cmd.Dir, cmd.Stdout = clone, io.Discard
				require.NoError(t, cmd.Run())
			})
			t.Logf("git at most %d MiB, and %d for a bundle by itself as it is set; this process %d MiB", git, plain, own)
			require.LessOrEqual(t, git, 64+row.objects*400>>20)
		})
	}
}
