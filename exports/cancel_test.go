package exports_test

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// soon is how long the end of a cancelled export may take here. The promise is a
// second, on a machine that is not busy with something else; what it took is
// printed.
const soon = 10 * time.Second

// silentWhere answers until it is asked for what it is silent about; then it
// tells, and answers when nobody listens any more.
type silentWhere struct {
	exports.WorkspaceSource
	at    string
	asked chan struct{}
}

func (s silentWhere) Conversations(ctx context.Context) ([]box.ConversationMark, error) {
	if s.at == "list" {
		close(s.asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.WorkspaceSource.Conversations(ctx)
}

func (s silentWhere) Download(ctx context.Context, id string) (io.ReadCloser, int64, error) {
	if s.at == "download" {
		return s.silence(), -1, nil
	}
	return s.WorkspaceSource.Download(ctx, id)
}

func (s silentWhere) Workspace(ctx context.Context) (io.ReadCloser, error) {
	if s.at == "workspace" {
		return s.silence(), nil
	}
	return s.WorkspaceSource.Workspace(ctx)
}

func (s silentWhere) silence() io.ReadCloser {
	r, w := io.Pipe()
	return &silentBody{r, w, sync.OnceFunc(func() { close(s.asked) })}
}

// silentBody is a body that only ends when it is closed.
type silentBody struct {
	*io.PipeReader
	w     *io.PipeWriter
	asked func()
}

func (s *silentBody) Read(p []byte) (int, error) {
	s.asked()
	return s.PipeReader.Read(p)
}

// toCancel is a box with everything that an export has to do.
type toCancel struct {
	generatedWork
	zip []byte
}

func (c toCancel) Conversations(context.Context) ([]box.ConversationMark, error) {
	return []box.ConversationMark{{ID: hex32(1), Events: 2}, {ID: hex32(2), Events: c.events}}, nil
}

func (c toCancel) Download(ctx context.Context, id string) (io.ReadCloser, int64, error) {
	if id == hex32(1) {
		return body(c.zip)
	}
	return c.generatedWork.Download(ctx, id)
}

// TestACancelledExportEndsSoon cancels one wherever it may be, and where the
// other side is silent for ever. What it leaves is no export.
func TestACancelledExportEndsSoon(t *testing.T) {
	t.Parallel()
	megabytes := 4
	if atFullSize(t) {
		megabytes = 3 << 10
	}
	text := make([]byte, 512<<10)
	random := rand.NewChaCha8([32]byte{4})
	_, _ = random.Read(text) // never fails; documented
	for i, b := range text {
		text[i] = letters[b%64]
	}
	src := toCancel{
		generatedWork{generated{megabytes, 1 << 20}, megabytes, 1 << 20},
		zipped(t, func(w *zip.Writer) {
			for i, content := range []string{string(text), string(text) + " " + leaks(1)[0].text} {
				entry(t, w, &zip.FileHeader{Name: fmt.Sprintf("%s/events/event-%05d-x.json", hex32(1), i)}, content)
			}
		}),
	}
	at := func(stage exports.Stage, conversation string, least int64) func(exports.Progress) bool {
		return func(p exports.Progress) bool {
			return p.Stage == stage && p.Conversation == conversation && p.Bytes >= least
		}
	}
	half := int64(megabytes) << 19
	type row struct {
		name   string
		when   func(exports.Progress) bool
		silent string
		after  time.Duration
	}
	rows := []row{
		{name: "the list is not answered", silent: "list"},
		{name: "in the middle of a download", when: at(exports.StageDownload, hex32(2), half)},
		{name: "a download that is silent", silent: "download"},
		{name: "while a copy is checked", when: at(exports.StageCheck, hex32(2), half)},
		{name: "while a copy is looked through", when: at(exports.StageScan, hex32(2), half)},
		{name: "while secrets are masked", when: at(exports.StageMask, hex32(1), int64(len(text)))},
		{name: "in the middle of storing", when: at(exports.StageStore, hex32(2), half)},
		// The bytes are written and on their way to the disk.
		{name: "at the end of storing", when: at(exports.StageStore, hex32(2), 2*half), after: time.Millisecond},
		{name: "while a copy is read back", when: at(exports.StageReadBack, hex32(2), half)},
		{name: "in the middle of the workspace", when: at(exports.StageArchive, "", half)},
		{name: "a workspace that is silent", silent: "workspace"},
		{name: "while the workspace is read back", when: at(exports.StageReadBack, "", half)},
		{name: "before the manifest", when: at(exports.StageManifest, "", 0)},
	}
	took := map[string]time.Duration{}
	for _, r := range rows {
		s, dir := directoryStore(t)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var began time.Time
		stop := func() {
			mu.Lock()
			defer mu.Unlock()
			if began.IsZero() {
				began = time.Now()
			}
			cancel()
		}
		asked := make(chan struct{})
		go func() {
			select {
			case <-asked:
				stop()
			case <-ctx.Done():
			}
		}()
		req := request("a")
		req.Secrets = box.SecretsRedact
		due := false
		receipt, err := s.Export(ctx, req, silentWhere{src, r.silent, asked}, func(p exports.Progress) {
			if r.when == nil || due || !r.when(p) {
				return
			}
			due = true
			if r.after == 0 {
				stop()
			} else {
				time.AfterFunc(r.after, stop)
			}
		})
		mu.Lock()
		took[r.name] = time.Since(began)
		mu.Unlock()
		require.False(t, began.IsZero(), "%s: it was never there", r.name)
		cancel()
		require.True(t, receipt.IsZero(), r.name)
		require.Equal(t, box.ClassCanceled, box.ClassOf(err), "%s: %v", r.name, err)
		require.Less(t, took[r.name], soon, r.name)
		// Nothing is left on the disk that is not in the store.
		left, err := os.ReadDir(dir + "/.incoming")
		require.NoError(t, err)
		require.Empty(t, left, r.name)
		all, err := s.Histories(t.Context(), "ws")
		require.NoError(t, err)
		require.Empty(t, all, r.name)
		require.NoError(t, os.RemoveAll(dir))
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(took[b.name], took[a.name]) })
	var out bytes.Buffer
	for _, r := range rows {
		fmt.Fprintf(&out, "\n%8.1f ms  %s", took[r.name].Seconds()*1e3, r.name)
	}
	t.Logf("an export of %d MB was over after its cancellation in%s", 2*megabytes, out.String())
}

// TestACancelledProofEndsSoon cancels the verification of an export at a read in
// its middle.
func TestACancelledProofEndsSoon(t *testing.T) {
	t.Parallel()
	b := newBucket()
	s := b.store(exports.Options{SpoolDir: t.TempDir()})
	receipt, err := s.Export(t.Context(), request("a"), generatedWork{generated{2, 1 << 20}, 4, 1 << 20}, nil)
	require.NoError(t, err)
	for name, which := range map[string]string{"a conversation": ".zip", "a chunk of the workspace": "chunks/"} {
		ctx, cancel := context.WithCancel(t.Context())
		var began time.Time
		b.read = func(k string) error {
			if bytes.Contains([]byte(k), []byte(which)) && began.IsZero() {
				began = time.Now()
				cancel()
			}
			return nil
		}
		_, err := s.Verify(ctx, "ws", receipt)
		took := time.Since(began)
		cancel()
		require.False(t, began.IsZero(), name)
		require.Equal(t, box.ClassCanceled, box.ClassOf(err), "%s: %v", name, err)
		t.Logf("cancelled at %s, it was over after %s", name, took)
		require.Less(t, took, soon, name)
	}
}
