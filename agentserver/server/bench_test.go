package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
)

// BenchmarkProxy asks the same server directly and through boxd: small requests
// for what boxd adds to each, large bodies for what passes through it.
func BenchmarkProxy(b *testing.B) {
	const large = 64 << 20
	root := b.TempDir()
	require.NoError(b, os.Mkdir(filepath.Join(root, "conversations"), 0o700))
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(b, err)
	defer r.Close()
	behindIt := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/down":
			_, _ = io.CopyN(w, zeros{}, large)
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"success":true}`)
		}
	}))
	defer behindIt.Close()
	up := &behind{}
	up.base, err = url.Parse(behindIt.URL)
	require.NoError(b, err)
	front := httptest.NewServer(server.New(server.Options{Root: root, Reclaim: r, Upstream: up}))
	defer front.Close()
	for name, base := range map[string]string{"direct": behindIt.URL, "boxd": front.URL} {
		b.Run("small/"+name, func(b *testing.B) {
			for b.Loop() {
				once(b, http.MethodGet, base+"/x", nil)
			}
		})
		b.Run("many/"+name, func(b *testing.B) {
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					once(b, http.MethodPost, base+"/x", strings.NewReader("{}"))
				}
			})
		})
		b.Run("download/"+name, func(b *testing.B) {
			b.SetBytes(large)
			for b.Loop() {
				once(b, http.MethodGet, base+"/down", nil)
			}
		})
		b.Run("upload/"+name, func(b *testing.B) {
			b.SetBytes(large)
			for b.Loop() {
				once(b, http.MethodPost, base+"/up", io.LimitReader(zeros{}, large))
			}
		})
	}
}

// once sends one request and reads its answer; it returns how much that was.
func once(b *testing.B, method, address string, body io.Reader) int64 {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), method, address, body)
	require.NoError(b, err)
	response, err := http.DefaultTransport.RoundTrip(request)
	require.NoError(b, err)
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, response.Body)
	require.NoError(b, err)
	return n
}

// packWithPython calls the agent-server's own function as often as is asked.
const packWithPython = `
import json, resource, sys, time
from pathlib import Path
from openhands.agent_server.file_router import _create_zip_from_directory
source, out, n = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
cpu, began = time.process_time(), time.perf_counter()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(n):
    _create_zip_from_directory(source, out)
print(json.dumps({"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu,
  "bytes": out.stat().st_size, "grew": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}))
`

// BenchmarkTrajectory packs one history of 2,000 events and 20 MB: boxd through
// its endpoint, and the agent-server by the function behind its endpoint.
func BenchmarkTrajectory(b *testing.B) {
	root := b.TempDir()
	id := strings.Repeat("a", 32)
	dir := filepath.Join(root, "conversations", id)
	require.NoError(b, os.MkdirAll(filepath.Join(dir, "events"), 0o700))
	words := strings.Fields("the agent ran go test and read a file of the module which says what it found in line after line until it was done")
	var size int64
	for i := range 2000 {
		var text strings.Builder
		for w := range 1500 + i%500 {
			fmt.Fprintf(&text, "%s %d ", words[(w*w+i)%len(words)], w*i%977)
		}
		event, err := json.Marshal(map[string]any{"id": fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i), "kind": "ObservationEvent", "text": text.String(), "llm": map[string]string{"api_key": "sk-1"}})
		require.NoError(b, err)
		size += int64(len(event))
		require.NoError(b, os.WriteFile(filepath.Join(dir, "events", fmt.Sprintf("event-%05d-%08x-0000-4000-8000-%012x.json", i, i, i)), event, 0o600))
	}
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(b, err)
	defer r.Close()
	front := httptest.NewServer(server.New(server.Options{Root: root, Reclaim: r}))
	defer front.Close()
	b.Run("boxd", func(b *testing.B) {
		b.SetBytes(size)
		var before, after syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
		n := int64(0)
		var most runtime.MemStats
		for b.Loop() {
			n = once(b, http.MethodGet, front.URL+"/api/file/download-trajectory/"+id, nil)
		}
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
		runtime.ReadMemStats(&most)
		b.ReportMetric(float64(cpuOf(after)-cpuOf(before))/1e6/float64(b.N), "cpu-ms/op")
		b.ReportMetric(float64(n), "zip-bytes")
		b.ReportMetric(float64(most.HeapSys)/(1<<20), "heap-MiB")
	})
	b.Run("agent-server", func(b *testing.B) {
		program := os.Getenv(agentServerVariable)
		if program == "" {
			b.Skip("needs the real agent-server, which needs Python 3.12 or newer: run scripts/agent-server.sh and name what it prints in " + agentServerVariable)
		}
		b.SetBytes(size)
		command := exec.CommandContext(b.Context(), filepath.Join(filepath.Dir(program), "python"), "-c", packWithPython, dir, filepath.Join(root, "out.zip"), fmt.Sprint(b.N))
		command.Env = append(os.Environ(), "LITELLM_LOCAL_MODEL_COST_MAP=True", "OPENHANDS_SUPPRESS_BANNER=1", "HOME="+root)
		command.Dir = root
		command.Stderr = io.Discard
		text, err := command.Output()
		require.NoError(b, err)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		var said struct{ Seconds, CPU, Bytes, Grew float64 }
		require.NoError(b, json.Unmarshal([]byte(lines[len(lines)-1]), &said))
		b.ReportMetric(said.Seconds*1e9/float64(b.N), "ns/op")
		b.ReportMetric(said.CPU*1e3/float64(b.N), "cpu-ms/op")
		b.ReportMetric(said.Bytes, "zip-bytes")
		b.ReportMetric(said.Grew/(1<<20), "grew-MiB")
		b.SetBytes(0)
	})
}

func cpuOf(r syscall.Rusage) time.Duration {
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
