package exports_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	boxd "github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// BenchmarkAgainst measures exports beside what one would do by hand, over the
// same connection to the same box in the same run: curl of the zips to files, tar
// with zstd of the workspace, and sha256sum of what is stored. An export does more
// than they do: it checks every entry, looks for secrets, syncs, and reads back.
// BOXKEEPER_TEST_FULL=1 takes ten times as much.
func BenchmarkAgainst(b *testing.B) {
	for _, program := range []string{"curl", "zstd", "tar", "sha256sum", "sync"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skipf("%s is not installed, and this compares with it: %v", program, err)
		}
	}
	events, megabytes := 500, 64
	if os.Getenv(fullVariable) != "" {
		events, megabytes = 5_000, 640
	}
	root, ids := b.TempDir(), []string{}
	dir, work := filepath.Join(root, "conversations"), filepath.Join(root, "workspace")
	require.NoError(b, os.MkdirAll(dir, 0o700))
	for i := range 4 {
		c := agentservertest.Conversation{ID: hex32(i + 1)}
		for n := range events {
			c.Events = append(c.Events, agentservertest.Event{Text: prose(uint64(i*events+n), 4_000)})
		}
		_, err := agentservertest.WriteConversation(dir, c)
		require.NoError(b, err)
		ids = append(ids, c.ID)
	}
	block, random := make([]byte, 1<<20), rand.NewChaCha8([32]byte{6})
	for i := range megabytes {
		name := filepath.Join(work, fmt.Sprintf("%02d/%03d", i%7, i))
		require.NoError(b, os.MkdirAll(filepath.Dir(name), 0o700))
		_, _ = random.Read(block) // never fails; documented
		content := block
		if i%2 == 0 {
			content = []byte(prose(uint64(i), 1<<20))
		}
		require.NoError(b, os.WriteFile(name, content, 0o600))
	}
	reclaimer, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(b, err)
	defer reclaimer.Close()
	git, err := repo.New(repo.Options{})
	require.NoError(b, err)
	web := httptest.NewServer(boxd.New(boxd.Options{Root: root, Reclaim: reclaimer, Git: git}))
	defer web.Close()
	client, err := agentserver.New(agentserver.Options{URL: web.URL})
	require.NoError(b, err)
	defer client.Close()
	history := agentserver.History{Client: client}

	var zips int64
	curl := []string{"-sSf"}
	to := b.TempDir()
	for _, id := range ids {
		body, _, err := history.Download(b.Context(), id)
		require.NoError(b, err)
		n, err := io.Copy(io.Discard, body)
		require.NoError(b, err)
		require.NoError(b, body.Close())
		zips += n
		curl = append(curl, "-o", filepath.Join(to, id), web.URL+"/api/file/download-trajectory/"+id)
	}
	tarball := filepath.Join(to, "workspace.tar.zst")
	b.Run("history/export", func(b *testing.B) { exportAgain(b, zips, conversationsOnly{history}) })
	b.Run("history/curl", func(b *testing.B) { byHand(b, zips, "curl", curl...) })
	b.Run("workspace/export", func(b *testing.B) { exportAgain(b, int64(megabytes)<<20, workspaceOnly{history}) })
	b.Run("workspace/tar", func(b *testing.B) {
		byHand(b, int64(megabytes)<<20, "tar", "--zstd", "-cf", tarball, "-C", root, "workspace")
	})
	s, store := directoryStore(b)
	receipt, err := s.Export(b.Context(), request("a"), history, nil)
	require.NoError(b, err)
	var stored int64
	var objects []string
	for _, name := range filesBelow(b, store) {
		info, err := os.Stat(filepath.Join(store, name))
		require.NoError(b, err)
		stored += info.Size()
		objects = append(objects, filepath.Join(store, name))
	}
	again := 0 // goes on from one count to the next
	b.Run("workspace/export-again", func(b *testing.B) {
		b.SetBytes(int64(megabytes) << 20)
		for b.Loop() {
			again++ // the same attempt would be answered with what it stored
			if _, err := s.Export(b.Context(), request(fmt.Sprintf("b%d", again)), workspaceOnly{history}, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stored/verify", func(b *testing.B) {
		b.SetBytes(stored)
		for b.Loop() {
			if _, err := s.Verify(b.Context(), "ws", receipt); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stored/sha256sum", func(b *testing.B) { byHand(b, stored, "sha256sum", objects...) })
}

// workspaceOnly is a box without conversations.
type workspaceOnly struct{ agentserver.History }

func (workspaceOnly) Conversations(context.Context) ([]box.ConversationMark, error) { return nil, nil }

// exportAgain exports into a new store each time.
func exportAgain(b *testing.B, size int64, src exports.Source) {
	b.Helper()
	b.SetBytes(size)
	for b.Loop() {
		dir := b.TempDir()
		s, err := exports.OpenWith(b.Context(), "file://"+dir, exports.Options{SpoolDir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Export(b.Context(), request("a"), src, nil); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = s.Close()
		_ = os.RemoveAll(dir)
		b.StartTimer()
	}
}

// byHand runs a program. What it writes is synced too, since an export is.
func byHand(b *testing.B, size int64, program string, args ...string) {
	b.Helper()
	b.SetBytes(size)
	for b.Loop() {
		cmd := exec.CommandContext(b.Context(), program, args...)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			b.Fatalf("%s: %v: %s", program, err, said.String())
		}
		for i, arg := range args {
			if i > 0 && (args[i-1] == "-o" || args[i-1] == "-cf") {
				if err := exec.CommandContext(b.Context(), "sync", arg).Run(); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

// prose is text that packs about as well as what people and programs write.
func prose(seed uint64, size int) string {
	words := []string{
		"the", "file", "of", "to", "and", "error:", "func", "return", "in", "line", "a", "is", "not", "test", "ok", "import", "for", "err", "nil", "value",
		"workspace/src/main.go", "0.012s", "expected", "string", "{", "}", "(", ")", "=", "commit", "branch", "=>", "\n", "\n\t", "const", "def", "self", "None",
	}
	r := rand.New(rand.NewPCG(seed, 11))
	var out bytes.Buffer
	for out.Len() < size {
		if r.IntN(12) == 0 {
			fmt.Fprintf(&out, "%x ", r.IntN(1<<20))
		}
		out.WriteString(words[r.IntN(len(words))])
		out.WriteByte(' ')
	}
	return out.String()[:size]
}
