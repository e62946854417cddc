package secretscan_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/openhands/boxkeeper/exports/secretscan"
)

// history makes events like those of an agent at work: messages, commands and
// what they print, with ids and sums and words such as key and token in them, and
// without a secret.
func history(events int) [][]byte {
	r := rand.New(rand.NewPCG(8, 8))
	uuid := func() string {
		h := some(r, 32, hexes)
		return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	}
	prints := []func() string{
		func() string {
			out := "total 48\n"
			for range 30 {
				out += fmt.Sprintf("-rw-r--r-- 1 user staff %6d Nov 29 10:%02d %s.%s\n", r.IntN(100_000), r.IntN(60), some(r, 8, lower), []string{"py", "ts", "md", "json"}[r.IntN(4)])
			}
			return out
		},
		func() string {
			out := ""
			for range 20 {
				out += fmt.Sprintf("%s %s (origin/main) fix: the %s of %s\n", some(r, 40, hexes), []string{"commit", "Merge"}[r.IntN(2)], some(r, 7, lower), some(r, 5, lower))
			}
			return out
		},
		func() string {
			out := "import os\nfrom typing import Any\n\n\nclass Client:\n"
			for range 12 {
				name := some(r, 9, lower)
				out += fmt.Sprintf("    def %s(self, key: str, token: str | None = None) -> dict[str, Any]:\n        headers = {\"Authorization\": f\"Bearer {self.api_key}\"}\n        secret = os.environ[\"%s_SECRET\"]\n        return self.session.get(f\"{self.base_url}/%s/{key}\", headers=headers).json()\n\n", name, name, name)
			}
			return out
		},
		func() string {
			out := `{"lockfileVersion":3,"packages":{`
			for range 12 {
				out += fmt.Sprintf(`"node_modules/%s":{"version":"%d.%d.%d","resolved":"https://registry.example/%s.tgz","integrity":"sha512-%s=="},`, some(r, 8, lower), r.IntN(20), r.IntN(20), r.IntN(20), some(r, 8, lower), some(r, 86, alnum+"+/"))
			}
			return out + "}}"
		},
		func() string {
			out := ""
			for range 15 {
				out += fmt.Sprintf("2026-11-29T10:%02d:%02dZ INFO request_id=%s path=/api/v1/%s status=200 took=%dms trace=%s\n", r.IntN(60), r.IntN(60), uuid(), some(r, 6, lower), r.IntN(900), some(r, 32, hexes))
			}
			return out
		},
		func() string {
			return "I looked at the tokens that the tokenizer makes. The key idea is to access the cache by its key first; authentication goes through the gateway, and the password reset has a test of its own. Next I will run the tests."
		},
	}
	var out [][]byte
	for i := range events {
		inner, _ := json.Marshal(map[string]any{"command": "cd /workspace/project && " + prints[r.IntN(len(prints))](), "is_input": false, "security_risk": "LOW"})
		event := map[string]any{
			"id": uuid(), "timestamp": "2026-11-29T10:00:00.123456", "source": "agent", "kind": "ActionEvent",
			"tool_name": "terminal", "tool_call_id": "call_" + some(r, 24, alnum), "llm_response_id": "chatcmpl-" + uuid(),
			"tool_call": map[string]any{"id": "call_" + some(r, 24, alnum), "name": "terminal", "arguments": string(inner), "origin": "completion"},
		}
		if i%2 == 1 {
			event = map[string]any{
				"id": uuid(), "timestamp": "2026-11-29T10:00:01.123456", "source": "environment", "kind": "ObservationEvent",
				"action_id": uuid(), "tool_call_id": "call_" + some(r, 24, alnum),
				"observation": map[string]any{"content": []any{map[string]any{"type": "text", "text": prints[r.IntN(len(prints))]()}}, "exit_code": 0},
			}
		}
		data, _ := json.Marshal(event)
		out = append(out, data)
	}
	return out
}

// TestANormalHistoryShowsFewSecrets prints how often something is taken for a
// secret that is none.
func TestANormalHistoryShowsFewSecrets(t *testing.T) {
	t.Parallel()
	const events = 600
	rules, size, hit := map[string]int{}, 0, 0
	for _, e := range history(events) {
		size += len(e)
		all := found(t, "events/event-00000-x.json", e, len(e))
		for _, f := range all {
			rules[f.Rule]++
		}
		if len(all) > 0 {
			hit++
		}
	}
	t.Logf("%d events of %d bytes, without a secret: %d taken for one that has some (%.2f%%): %v", events, size, hit, 100*float64(hit)/events, rules)
	if hit > events/100 {
		t.Errorf("%d of %d events are taken for ones with secrets", hit, events)
	}
}

func BenchmarkScan(b *testing.B) {
	s := theScanner(b)
	events := history(2000)
	texts := map[string][]byte{"events": bytes.Join(events, []byte("\n"))}
	if name := os.Getenv("BOXKEEPER_SCAN_FILE"); name != "" {
		data, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		texts["file"] = data
	}
	random := make([]byte, 8<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(random)
	texts["binary"] = random
	for name, text := range texts {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				stream := s.Stream(key, "x.json", nil, func(secretscan.Found) {})
				if _, err := io.Copy(stream, bytes.NewReader(text)); err != nil {
					b.Fatal(err)
				}
				if err := stream.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("sha256 of the events", func(b *testing.B) {
		b.SetBytes(int64(len(texts["events"])))
		for b.Loop() {
			sha256.Sum256(texts["events"])
		}
	})
}

func BenchmarkRules(b *testing.B) {
	var before, after runtime.MemStats
	var keep *secretscan.Scanner
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		s, err := secretscan.New()
		if err != nil {
			b.Fatal(err)
		}
		keep = s
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc)/(1<<20)-float64(before.HeapAlloc)/(1<<20), "MB-kept")
	runtime.KeepAlive(keep)
}
