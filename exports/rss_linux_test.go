//go:build !race

// Without the race detector, whose own memory is many times that of an export.

package exports_test

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// TestScenario94ALargeExportTakesLittleMemory exports a large box over a
// connection, in a process of its own whose memory is watched. The first two
// downloads of the largest conversation are cut off, and the first of the
// workspace: it is tried again, one at a time, and each time it is streamed.
func TestScenario94ALargeExportTakesLittleMemory(t *testing.T) {
	t.Parallel()
	b := &bigBox{
		cut:  map[string]int{hex32(1): 2, "workspace": 1},
		work: generatedWork{files: 10, bytes: 8 << 20},
		conversations: []bigConversation{
			{events: 48, eventBytes: 1 << 20},
			{events: 2, eventBytes: 3 << 20, text: true},
			{events: 3, eventBytes: 100, text: true},
		},
	}
	if atFullSize(t) {
		b.cut["workspace"] = 0
		b.work = generatedWork{files: 900, bytes: 8 << 20}
		b.conversations = []bigConversation{{events: 2048, eventBytes: 1 << 20}}
		for range 10 {
			b.conversations = append(b.conversations, bigConversation{events: 6_000, eventBytes: 9_000, text: true})
		}
	}
	web := httptest.NewServer(b)
	t.Cleanup(web.Close)
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), self)
	child.Dir = t.TempDir()
	child.Env = append(os.Environ(), "EXPORTS_TEST_CHILD="+web.URL)
	var said bytes.Buffer
	child.Stderr = &said
	text, err := child.Output()
	require.NoError(t, err, "%s", said.String())

	type phase struct {
		PeakKB    int    `json:"peak_kb"`
		SampledKB int    `json:"sampled_kb"`
		At        string `json:"at"`
		Samples   int    `json:"samples"`
		MS        int64  `json:"ms"`
	}
	var report struct {
		IdleKB         int `json:"idle_kb"`
		Export, Verify phase
		Receipt        box.Receipt
		Heard          int   `json:"heard"`
		SilenceMS      int64 `json:"silence_ms"`
	}
	require.NoError(t, json.Unmarshal(text, &report))
	total := report.Receipt.Bytes + report.Receipt.Archive.Bytes
	t.Logf("%.2f GB, idle at %.1f MiB; %d reports of progress, at most %d ms apart", float64(total)/1e9, float64(report.IdleKB)/1024, report.Heard, report.SilenceMS)
	for what, p := range map[string]phase{"export": report.Export, "verify": report.Verify} {
		most := max(p.PeakKB, p.SampledKB)
		t.Logf("%s: %.1f MiB above idle at the peak (%.1f in %d samples, at %q), %.1f s, %.1f MB/s", what,
			float64(most-report.IdleKB)/1024, float64(p.SampledKB-report.IdleKB)/1024, p.Samples, p.At, float64(p.MS)/1e3, float64(total)/1e3/float64(p.MS))
		require.Less(t, most-report.IdleKB, memoryBudget>>10, what)
	}
	require.GreaterOrEqual(t, report.Receipt.Bytes, b.zipBytes())
	require.GreaterOrEqual(t, report.Receipt.Archive.Bytes, int64(b.work.files)*b.work.bytes)
	require.Equal(t, len(b.conversations), report.Receipt.Conversations)
	require.Equal(t, 3, b.downloads[hex32(1)])
	require.Equal(t, 1+b.cut["workspace"], b.downloads["workspace"])
	require.Equal(t, 1, b.most, "downloads at a time")
	require.Less(t, time.Duration(report.SilenceMS)*time.Millisecond, time.Minute)
}
