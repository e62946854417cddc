//go:build !race

// Without the race detector: what runs here is another program and processes of
// our own, which it does not see.

package server_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// realBox is what lies in a box before its agent-server starts.
type realBox struct {
	root   string
	ids    []string
	said   map[string][]string // the texts of the events, by conversation
	files  map[string]string   // sums of what is in the workspace, by name
	bytes  int64               // of the workspace
	keys   []string            // that were planted
	events int
}

// layRealBox writes conversations and a workspace where the agent-server will
// find them.
func layRealBox(t *testing.T, conversations, events, megabytes int) *realBox {
	t.Helper()
	b := &realBox{root: t.TempDir(), said: map[string][]string{}, files: map[string]string{}}
	random := rand.New(rand.NewPCG(5, 5))
	some := func(n int) string {
		out := make([]byte, n)
		for i := range out {
			out[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[random.IntN(62)]
		}
		return string(out)
	}
	dir := filepath.Join(b.root, "conversations")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	for i := range conversations {
		c := agentservertest.Conversation{ID: fmt.Sprintf("%032x", 0xc0ffee00+i), Title: fmt.Sprintf("conversation %d", i)}
		for n := range events {
			text := fmt.Sprintf("message %d of %d: %s", n, i, strings.Repeat(some(20)+" ", 1+random.IntN(60)))
			if n == events/2 {
				// Made here, so that no file of this repository holds one.
				secret := "ghp" + "_" + some(36)
				b.keys, text = append(b.keys, secret), text+" use "+secret+" for it"
			}
			c.Events = append(c.Events, agentservertest.Event{ID: fmt.Sprintf("00000000-%04x-4000-8000-%012x", i, n), Text: text})
			b.said[c.ID] = append(b.said[c.ID], text)
		}
		_, err := agentservertest.WriteConversation(dir, c)
		require.NoError(t, err)
		b.ids, b.events = append(b.ids, c.ID), b.events+events
	}
	block := make([]byte, 1<<20)
	noise := rand.NewChaCha8([32]byte{8})
	lay := func(name string, blocks, size int) {
		place := filepath.Join(b.root, "workspace", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(place), 0o700))
		f, err := os.Create(place)
		require.NoError(t, err)
		sum := sha256.New()
		for range blocks {
			_, _ = noise.Read(block[:size]) // never fails; documented
			_, err := io.MultiWriter(f, sum).Write(block[:size])
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		b.files[name], b.bytes = hex.EncodeToString(sum.Sum(nil)), b.bytes+int64(blocks*size)
	}
	for i := range megabytes / 8 {
		lay(fmt.Sprintf("data/%04d.bin", i), 8, 1<<20)
	}
	for i := range 20 * min(conversations, 50) {
		lay(fmt.Sprintf("src/%02d/file-%d.go", i%10, i), 1, 100+random.IntN(5_000))
	}
	for name := range oddNames {
		lay("odd/"+name, 1, 10)
	}
	require.NoError(t, os.Symlink("../data/0000.bin", filepath.Join(b.root, "workspace/src/link")))
	require.NoError(t, os.Link(filepath.Join(b.root, "workspace/data/0000.bin"), filepath.Join(b.root, "workspace/src/hard")))
	return b
}

// holds proves an export against what was laid.
func (b *realBox) holds(t *testing.T, store *exports.Store, receipt box.Receipt) {
	t.Helper()
	report, err := store.Verify(t.Context(), "ws", receipt)
	require.NoError(t, err)
	require.Equal(t, b.events, receipt.Events)
	require.Len(t, report.Conversations, len(b.ids))
	for _, id := range b.ids {
		n := 0
		for e, err := range store.Events(t.Context(), "ws", id) {
			require.NoError(t, err)
			require.Less(t, n, len(b.said[id]), id)
			require.Contains(t, string(e.Raw), b.said[id][n], id)
			n++
		}
		require.Len(t, b.said[id], n, id)
	}
	if report.Archive == nil {
		return
	}
	w, err := store.Workspace(t.Context(), "ws", receipt)
	require.NoError(t, err)
	seen := map[string]string{}
	kinds := map[string]int{}
	for e, err := range w.Entries(t.Context()) {
		require.NoError(t, err)
		kinds[e.Type]++
		if name, in := strings.CutPrefix(e.Name, "files/workspace/"); in && e.Type == "file" {
			seen[name] = e.SHA256
		}
	}
	// The first of two names of one file is the file, whichever that is.
	if sum, ok := seen["src/hard"]; ok {
		seen["data/0000.bin"] = sum
		delete(seen, "src/hard")
	}
	require.Equal(t, b.files, seen)
	require.Equal(t, 1, kinds["link"])
	require.Equal(t, 1, kinds["hardlink"])
	require.Zero(t, receipt.Archive.Missing)
}

// reported proves that the report of secrets names the planted ones, and not
// their values.
func (b *realBox) reported(t *testing.T, dir string) {
	t.Helper()
	found := 0
	require.NoError(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "secrets.json" {
			return err
		}
		text, err := os.ReadFile(name)
		found += bytes.Count(text, []byte(`"github-pat"`))
		for _, secret := range b.keys {
			require.False(t, bytes.Contains(text, []byte(secret)), "the report holds a secret")
		}
		return err
	}))
	require.GreaterOrEqual(t, found, len(b.keys))
}

// hammer downloads conversations, each of them twice at once, and counts what it
// gets that is whole and what is not: an agent-server alone breaks downloads of
// one conversation that overlap, and may never answer one.
func (b *realBox) hammer(ctx context.Context, base string) (whole, broken *atomic.Int64, wait func()) {
	whole, broken = new(atomic.Int64), new(atomic.Int64)
	var all sync.WaitGroup
	for worker := range 2 {
		all.Go(func() {
			for i := worker; ctx.Err() == nil && i < 2*len(b.ids); i += 2 {
				switch err := downloadZip(ctx, base+"/api/file/download-trajectory/"+b.ids[i/2]); {
				case err == nil:
					whole.Add(1)
				case ctx.Err() == nil:
					broken.Add(1)
				}
			}
		})
	}
	return whole, broken, all.Wait
}

func downloadZip(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.Header.Set("X-Session-API-Key", key)
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	_, err = zip.NewReader(bytes.NewReader(text), int64(len(text)))
	return err
}

// TestScenario95ARealBoxIsExportedWhole exports a box of the real agent-server
// that holds many conversations and a large workspace: from the agent-server
// alone, through boxd while others download the same, over a network that cuts and
// slows its connections, and across the death of the box in the middle. No
// receipt is false, and in the end there is one for all of it.
func TestScenario95ARealBoxIsExportedWhole(t *testing.T) { //nolint:paralleltest // a large program, and much of the disk
	needReal(t)
	program := os.Getenv("BOXKEEPER_TEST_TOXIPROXY")
	if program == "" {
		t.Skip("BOXKEEPER_TEST_TOXIPROXY names no toxiproxy; CONTRIBUTING.md says how to build it")
	}
	conversations, events, megabytes, tries := 8, 25, 16, 6
	if os.Getenv("BOXKEEPER_TEST_FULL") != "" {
		conversations, events, megabytes, tries = 50, 400, 2_000, 5
	} else {
		t.Log("scaled down: BOXKEEPER_TEST_FULL=1 asks for 50 conversations, 20,000 events and 2 GB, which takes many minutes")
	}
	b := layRealBox(t, conversations, events, megabytes)
	began := time.Now()
	r := startRealIn(t, b.root)
	t.Logf("%d conversations, %d events, %d files of %.1f MB: the agent-server was ready after %.1f s", conversations, b.events, len(b.files), float64(b.bytes)/1e6, time.Since(began).Seconds())

	open := func(dir string) *exports.Store {
		s, err := exports.OpenWith(t.Context(), "file://"+dir, exports.Options{SpoolDir: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	export := func(s *exports.Store, address string, progress func(exports.Progress)) (box.Receipt, error) {
		receipt, err := s.Export(t.Context(), exports.Request{Workspace: "ws", Epoch: 1, Attempt: "a"}, agentserver.History{Client: connect(t, address)}, progress)
		if err != nil {
			require.True(t, receipt.IsZero())
			all, err := s.Histories(t.Context(), "ws")
			require.NoError(t, err)
			require.Empty(t, all)
		}
		return receipt, err
	}
	timed := func(what string, f func()) {
		began := time.Now()
		f()
		t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
	}

	var digest string
	timed("from the agent-server alone", func() {
		s := open(t.TempDir())
		receipt, err := export(s, r.direct, nil)
		require.NoError(t, err)
		require.NotEmpty(t, receipt.Archive.None, "an agent-server alone gives no workspace")
		b.holds(t, s, receipt)
		digest = receipt.Digest
	})
	// An agent-server alone answers 500 for a conversation with a file whose name is
	// no UTF-8; boxd packs it.
	giveOddNames(t, filepath.Join(b.root, "conversations", b.ids[0]))
	timed("through boxd, while others download the same", func() {
		s := open(t.TempDir())
		whole, broken, wait := b.hammer(t.Context(), r.url)
		receipt, err := export(s, r.url, nil)
		require.NoError(t, err)
		wait()
		require.Equal(t, digest, receipt.Digest)
		require.Zero(t, broken.Load(), "boxd serves one download of a conversation after the other")
		t.Logf("the others got %d whole ones", whole.Load())
	})

	behind, err := url.Parse(r.url)
	require.NoError(t, err)
	network, err := agentservertest.StartToxiproxy(t.Context(), program, behind.Host)
	require.NoError(t, err)
	t.Cleanup(network.Close)
	random := rand.New(rand.NewPCG(95, 95))
	timed("through boxd over a bad network", func() {
		s, whole := open(t.TempDir()), 0
		for try := range tries {
			bad := agentservertest.Toxic{Type: "limit_data", Toxicity: 0.5, Attributes: map[string]int{"bytes": random.IntN(megabytes << 20)}}
			switch try {
			case 0:
				bad.Attributes["bytes"] = random.IntN(100_000)
				bad.Toxicity = 1
			case tries - 2:
				bad = agentservertest.Toxic{Type: "bandwidth", Toxicity: 1, Attributes: map[string]int{"rate": 4_000 + 20*megabytes}}
			case tries - 1:
				bad = agentservertest.Toxic{} // well again
			}
			if bad.Type == "" {
				require.NoError(t, network.Set(t.Context()))
			} else {
				require.NoError(t, network.Set(t.Context(), bad))
			}
			receipt, err := export(s, network.URL, nil)
			t.Logf("%s %v: %v", bad.Type, bad.Attributes, err)
			if err != nil {
				require.Less(t, try, tries-2, "neither slowness nor nothing keeps an export from its end: %v", err)
				continue
			}
			require.Equal(t, digest, receipt.Digest)
			if whole++; whole == 1 || try == tries-1 {
				b.holds(t, s, receipt)
			}
			if try < tries-2 {
				s = open(t.TempDir()) // what is there needs no network
			}
		}
	})

	dir := t.TempDir()
	s := open(dir)
	fetched := map[string]bool{}
	timed("a box that dies in the middle", func() {
		_, err := export(s, r.url, func(p exports.Progress) {
			if p.Stage == exports.StageDownload && p.Bytes == 0 {
				fetched[p.Conversation] = true
			}
			if p.Done == conversations/2 && p.Stage == exports.StageStore && r.Process != nil && p.Bytes == 0 {
				require.NoError(t, r.Process.Kill())
				<-r.ended
				r.ended <- nil
			}
		})
		require.Error(t, err)
		t.Logf("after %d of %d conversations: %v", len(fetched), conversations, err)
	})
	require.Less(t, len(fetched), conversations)
	r = startRealIn(t, b.root)
	timed("the same attempt when it is back", func() {
		again := map[string]bool{}
		receipt, err := export(s, r.url, func(p exports.Progress) {
			if p.Stage == exports.StageDownload && p.Conversation != "" {
				again[p.Conversation] = true
			}
		})
		require.NoError(t, err)
		require.Equal(t, digest, receipt.Digest)
		require.LessOrEqual(t, len(again), conversations-conversations/2, "what was there already is not fetched again")
		b.holds(t, s, receipt)
		b.reported(t, dir)
		t.Logf("%d were fetched again; %.1f MB of zips, %.1f MB of workspace", len(again), float64(receipt.Bytes)/1e6, float64(receipt.Archive.Bytes)/1e6)
	})
}
