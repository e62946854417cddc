package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/daemon"
	"github.com/openhands/boxkeeper/internal/engine"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
	"github.com/openhands/boxkeeper/workers"
)

// runDemo runs the demo in this process, and shows what it printed when the
// test fails.
func runDemo(t *testing.T, o daemon.DemoOptions) (daemon.DemoResult, error) {
	t.Helper()
	var out bytes.Buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
		}
	})
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "data")
	}
	root := &cobra.Command{Use: "boxkeeperd"}
	shared := cli.Adopt(root, cli.Env{Stdout: &out, Stderr: &out})
	return daemon.RunDemo(t.Context(), shared, &out, o)
}

// TestDemo runs the demo as people do, in a process of its own: progress goes to
// standard error, and the last line of standard output is the result.
func TestDemo(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "demo", "-o", "json", "--data", filepath.Join(t.TempDir(), "data"))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s", &stderr)
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	var result daemon.DemoResult
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &result), "%s", &stdout)
	for _, told := range []string{"running", "draining", "suspended", "resuming", "notice to", "awaiting-confirmation", "undo-window", "exporting", "deleting", "box-archived"} {
		require.Contains(t, stderr.String(), told)
	}
	for _, field := range []string{"state", "bytes_reclaimed", "conversations", "events", "sha256", "history", "web_ui", "seconds"} {
		require.Contains(t, lines[len(lines)-1], `"`+field+`":`)
	}
	require.Equal(t, box.StateBoxArchived, result.State)
	require.Positive(t, result.BytesReclaimed)
	require.Len(t, result.SHA256, 64)
	require.GreaterOrEqual(t, result.Conversations, 3)
	require.Contains(t, result.WebUI, "/workflows/box%2F")
	require.Contains(t, result.History, result.Workspace)
	page, err := url.Parse(result.WebUI) // the demo has ended: what serves its page again must do so at this address
	require.NoError(t, err)
	require.Contains(t, stderr.String(), "(again with: boxkeeperd --no-demo --ui-port "+page.Port()+" --data "+result.Data+")")

	e := startEngine(t, engine.Options{DataDir: result.Data, NoUI: true})
	golden(t, e.Address(), result.Workspace, "whole-life")
	kinds := map[enumspb.EventType]int{}
	for _, event := range historyOf(t, e.Address(), result.Workspace).GetEvents() {
		kinds[event.GetEventType()]++
	}
	e.Stop()

	// What a life costs in the engine: a change that makes it dearer is a
	// decision, to be taken here and in docs/benchmarks.md. Its steps, writes and
	// requests are always as many. The demo's idle timer of seconds may fire once
	// more than it must, hence the upper bounds for the rest.
	require.Equal(t, []int{14, 13, 1, 3, 3}, []int{
		kinds[enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED], kinds[enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES], kinds[enumspb.EVENT_TYPE_MARKER_RECORDED],
		kinds[enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED], kinds[enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED],
	}, "activities, writes of search attributes, versions, updates, signals")
	t.Logf("life: %d events, %d actions; cycle: %d events, %d actions", result.HistoryEvents, result.Actions, result.CycleEvents, result.CycleActions)
	require.LessOrEqual(t, result.HistoryEvents, 178)
	require.LessOrEqual(t, result.Actions, 44)
	require.LessOrEqual(t, result.CycleEvents, 60)
	require.LessOrEqual(t, result.CycleActions, 15)
}

// TestSabotagedDemo breaks one part each: the demo must fail over that part, and
// the box must still be there with what was done in it.
func TestSabotagedDemo(t *testing.T) {
	t.Parallel()
	causes := map[string]string{
		"a truncated zip":                      "it was cut off",
		"a lying event count":                  "fewer events than the server counts",
		"a box that never answers again":       "its agent-server does not answer",
		"an export store that loses an object": "the export store lost or altered",
	}
	for name, sabotage := range map[string]func(*testing.T, *daemon.DemoOptions){
		"a truncated zip": func(_ *testing.T, o *daemon.DemoOptions) {
			o.Change = tampering(func(r *http.Response, body []byte) []byte {
				if strings.Contains(r.Request.URL.Path, "download-trajectory") {
					return body[:len(body)*7/10]
				}
				return body
			}, nil)
		},
		"a lying event count": func(_ *testing.T, o *daemon.DemoOptions) {
			count := regexp.MustCompile(`"events":\s*(\d+)`)
			o.Change = tampering(func(r *http.Response, body []byte) []byte {
				if !strings.Contains(r.Request.URL.Path, "/api/storage") {
					return body
				}
				return count.ReplaceAllFunc(body, func(found []byte) []byte {
					n, err := strconv.Atoi(string(count.FindSubmatch(found)[1]))
					if err != nil {
						return found
					}
					return []byte(`"events":` + strconv.Itoa(n+1))
				})
			}, nil)
		},
		"a box that never answers again": func(_ *testing.T, o *daemon.DemoOptions) {
			var deaf atomic.Bool
			o.Change = tampering(nil, &deaf)
			o.Saw = func(seen box.Transition) {
				if seen.To == box.StateRunning {
					time.AfterFunc(2*time.Second, func() { deaf.Store(true) })
				}
			}
			o.Patience = 30 * time.Second
		},
		"an export store that loses an object": func(t *testing.T, o *daemon.DemoOptions) {
			done := make(chan struct{})
			t.Cleanup(func() { close(done) })
			go loseObjects(filepath.Join(o.Dir, "exports"), done)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := daemon.DemoOptions{Dir: filepath.Join(t.TempDir(), "data"), NoUI: true}
			t.Cleanup((&installation{t: t, dir: o.Dir}).killBoxes) // they are kept, which is the point
			sabotage(t, &o)
			_, err := runDemo(t, o)
			require.ErrorContains(t, err, causes[name])
			require.NotEmpty(t, causes[name])
			left, globErr := filepath.Glob(filepath.Join(o.Dir, "boxes", "local", "boxes", "bk-*", "workspace", "result.txt"))
			require.NoError(t, globErr)
			require.Len(t, left, 1, "the box is gone")
		})
	}
}

// loseObjects deletes every exported conversation as soon as it is complete.
func loseObjects(dir string, done <-chan struct{}) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		manifests, _ := filepath.Glob(filepath.Join(dir, "exports", "*", "*", "*", "manifest.json"))
		for _, m := range manifests {
			objects, _ := filepath.Glob(filepath.Join(filepath.Dir(m), "conversations", "*.zip"))
			for _, o := range objects {
				_ = os.Remove(o)
			}
		}
	}
}

// tampering puts a proxy between the workers and each box: it changes answers,
// and once deaf is set nothing is answered any more.
func tampering(change func(*http.Response, []byte) []byte, deaf *atomic.Bool) daemon.Change {
	return func(parts *cli.Parts, cfg config.Config, o *workers.Options) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		d, err := local.New(parts.Installation.ID, local.Options{Dir: cfg.Providers[0].Dir, Command: []string{self, "boxd"}})
		if err != nil {
			return err
		}
		keys, err := providers.NewKeySource(parts.Installation.Secret)
		if err != nil {
			return err
		}
		p, err := providers.New(cfg.Providers[0].Name, &tampered{Driver: d, change: change, deaf: deaf}, &providers.Options{Installation: parts.Installation.ID, Keys: keys})
		o.Providers = []*providers.Provider{p}
		return err
	}
}

type tampered struct {
	*local.Driver
	change func(*http.Response, []byte) []byte
	deaf   *atomic.Bool
}

func (d *tampered) Capabilities() box.Capabilities {
	row := d.Driver.Capabilities()
	row.ResumeWait = box.Span(5 * time.Second)
	return row
}

func (d *tampered) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	at, err := d.Driver.Endpoint(ctx, ref)
	if err != nil {
		return at, err
	}
	if d.deaf != nil {
		if d.deaf.Load() {
			at.URL = "http://127.0.0.1:1"
		}
		return at, nil
	}
	target, err := url.Parse(at.URL)
	if err != nil {
		return at, err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Header.Del("Accept-Encoding") },
		ModifyResponse: func(r *http.Response) error {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			body = d.change(r, body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.ContentLength = int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return nil
		},
	}
	at.URL = httptest.NewServer(proxy).URL
	return at, nil
}
