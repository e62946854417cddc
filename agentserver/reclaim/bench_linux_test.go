package reclaim_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// packages fills a directory with 60,000 small files in 6,600 directories, as
// installed packages have them.
func packages(b *testing.B, at string) {
	b.Helper()
	content := make([]byte, 1100)
	for i := range 600 {
		for j := range 10 {
			dir := fmt.Sprintf("%s/package%03d/lib%d", at, i, j)
			require.NoError(b, os.MkdirAll(dir, 0o755))
			for k := range 10 {
				require.NoError(b, os.WriteFile(fmt.Sprintf("%s/%d.js", dir, k), content, 0o644))
			}
		}
	}
}

// cpuTime is the processor time of this process and of those it waited for.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	sum := time.Duration(0)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(who, &u))
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// BenchmarkReclaim deletes the same tree in several ways, one after the other in
// each round, and reports the shortest time of each: until the caller has an
// answer (foreground), and until all is gone.
func BenchmarkReclaim(b *testing.B) {
	root := b.TempDir()
	r, err := reclaim.Open(root, reclaim.Options{Wait: time.Nanosecond})
	require.NoError(b, err)
	defer r.Close()
	r.Idle()
	cache, entry := filepath.Join(root, "home/.cache/tagged"), filepath.Join(root, ".trash/entry")
	ways := []struct {
		name, at string
		do       func()
	}{
		{"rm", cache, func() { require.NoError(b, exec.CommandContext(b.Context(), "rm", "-rf", cache).Run()) }},
		{"RemoveAll", cache, func() { require.NoError(b, os.RemoveAll(cache)) }},
		{"one-worker", entry, func() { _, faults := r.Remove("entry", 1); require.Empty(b, faults) }},
		{"two-workers", entry, func() { _, faults := r.Remove("entry", 2); require.Empty(b, faults) }},
		{"foreground", cache, nil},
	}
	wall, cpu := map[string]time.Duration{}, map[string]time.Duration{}
	for b.Loop() {
		for _, way := range ways {
			packages(b, way.at)
			require.NoError(b, os.WriteFile(way.at+"/CACHEDIR.TAG", []byte("Signature: 8a477f597d28d172789f06886806bc55"), 0o644))
			dir, err := os.Open(root)
			require.NoError(b, err)
			require.NoError(b, unix.Syncfs(int(dir.Fd())))
			dir.Close()
			var plan box.ReclaimReport
			if way.do == nil {
				plan, err = r.Do(b.Context(), box.ReclaimRequest{DryRun: true})
				require.NoError(b, err)
			}
			began, usedBefore := time.Now(), cpuTime(b)
			if way.do != nil {
				way.do()
			} else {
				report, err := r.Do(b.Context(), box.ReclaimRequest{PlanID: plan.PlanID})
				require.NoError(b, err)
				require.True(b, report.Pending)
			}
			note(wall, way.name, time.Since(began))
			note(cpu, way.name, cpuTime(b)-usedBefore)
			r.Idle()
			require.NoDirExists(b, way.at)
		}
	}
	for _, way := range ways {
		b.ReportMetric(float64(wall[way.name].Microseconds())/1000, "ms/"+way.name)
		if way.do != nil {
			b.ReportMetric(float64(cpu[way.name].Microseconds())/1000, "cpu-ms/"+way.name)
		}
	}
}

func note(shortest map[string]time.Duration, name string, took time.Duration) {
	if have, ok := shortest[name]; !ok || took < have {
		shortest[name] = took
	}
}
