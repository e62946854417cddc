package reclaim_test

import (
	"flag"
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

var (
	benchFiles = flag.Int("reclaim.files", 60_000, "how many files the benchmark's trees have")
	benchDir   = flag.String("reclaim.dir", "/dev/shm", "where the benchmark's trees are made; in memory no other work on the disk is measured")
)

// packages fills a cache with about so many small files, ten in each directory, as
// installed packages have them.
func packages(b *testing.B, at string, files int) {
	b.Helper()
	content := make([]byte, 1100)
	for i := range files / 10 {
		dir := fmt.Sprintf("%s/package%03d/lib%d", at, i/10, i%10)
		require.NoError(b, os.MkdirAll(dir, 0o755))
		for k := range 10 {
			require.NoError(b, os.WriteFile(fmt.Sprintf("%s/%d.js", dir, k), content, 0o644))
		}
	}
	require.NoError(b, os.WriteFile(at+"/CACHEDIR.TAG", []byte("Signature: 8a477f597d28d172789f06886806bc55"), 0o644))
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

// remedy is one way to get rid of a tree.
type remedy struct {
	name string
	at   []string // trees, each with its part of the files
	// tenth makes the trees a tenth as large.
	tenth bool
	do    func() // nil means to apply a plan and wait for the answer alone
}

// BenchmarkReclaim deletes trees of the same size in several ways, one after the
// other in each round, and reports the shortest time of each: until all is gone,
// and for ours until the caller has an answer (foreground). That one is shown for
// a tree of a tenth of the size and for ten items as well: it must not grow with
// the files, and little with the items. Making a tree takes longer than deleting
// it, so the progress goes to the standard error.
func BenchmarkReclaim(b *testing.B) {
	root, err := os.MkdirTemp(*benchDir, "reclaim-") //nolint:usetesting // where it is asked for
	require.NoError(b, err)
	defer func() { require.NoError(b, os.RemoveAll(root)) }()
	r, err := reclaim.Open(root, reclaim.Options{Wait: time.Nanosecond})
	require.NoError(b, err)
	defer r.Close()
	r.Idle()
	cache, entry := filepath.Join(root, "home/.cache/tagged"), filepath.Join(root, ".trash/entry")
	ten := make([]string, 10)
	for i := range ten {
		ten[i] = fmt.Sprintf("%s-%d", cache, i)
	}
	ways := []remedy{
		{name: "rm", at: []string{cache}, do: func() { require.NoError(b, exec.CommandContext(b.Context(), "rm", "-rf", cache).Run()) }},
		{name: "RemoveAll", at: []string{cache}, do: func() { require.NoError(b, os.RemoveAll(cache)) }},
		{name: "one-worker", at: []string{entry}, do: func() { _, faults := r.Remove("entry", 1); require.Empty(b, faults) }},
		{name: "two-workers", at: []string{entry}, do: func() { _, faults := r.Remove("entry", 2); require.Empty(b, faults) }},
		{name: "foreground", at: []string{cache}},
		{name: "foreground-of-a-tenth", at: []string{cache}, tenth: true},
		{name: "foreground-of-10-items", at: ten},
	}
	wall, cpu := map[string]time.Duration{}, map[string]time.Duration{}
	began, round := time.Now(), 0
	for b.Loop() {
		round++
		for i := range ways {
			one := &ways[i]
			one.prepare(b, root)
			made := time.Since(began)
			took := one.run(b, r, wall, cpu)
			fmt.Fprintf(os.Stderr, "%7.1f s: round %d, %s: %s\n", made.Seconds(), round, one.name, took.Round(time.Microsecond))
		}
	}
	for i := range ways {
		one := &ways[i]
		b.ReportMetric(float64(wall[one.name].Microseconds())/1000, "ms/"+one.name)
		if one.do != nil {
			b.ReportMetric(float64(cpu[one.name].Microseconds())/1000, "cpu-ms/"+one.name)
		}
	}
	b.ReportMetric(float64(wall["foreground"])/float64(wall["rm"]), "foreground/rm")
	b.ReportMetric(float64(wall["foreground"])/float64(wall["foreground-of-a-tenth"]), "foreground/of-a-tenth")
}

// prepare makes the trees and has them written to the disk.
func (w *remedy) prepare(b *testing.B, root string) {
	b.Helper()
	files := *benchFiles
	if w.tenth {
		files /= 10
	}
	for _, at := range w.at {
		packages(b, at, files/len(w.at))
	}
	dir, err := os.Open(root)
	require.NoError(b, err)
	defer dir.Close()
	require.NoError(b, unix.Syncfs(int(dir.Fd())))
}

// run gets rid of the trees and notes how long that took.
func (w *remedy) run(b *testing.B, r *reclaim.Reclaimer, wall, cpu map[string]time.Duration) (took time.Duration) {
	b.Helper()
	var plan box.ReclaimReport
	if w.do == nil {
		var err error
		plan, err = r.Do(b.Context(), box.ReclaimRequest{DryRun: true})
		require.NoError(b, err)
		require.Len(b, taken(plan), len(w.at))
	}
	began, usedBefore := time.Now(), cpuTime(b)
	if w.do != nil {
		w.do()
	} else {
		report, err := r.Do(b.Context(), box.ReclaimRequest{PlanID: plan.PlanID})
		require.NoError(b, err)
		require.True(b, report.Pending)
	}
	took = time.Since(began)
	note(wall, w.name, took)
	note(cpu, w.name, cpuTime(b)-usedBefore)
	r.Idle()
	for _, at := range w.at {
		require.NoDirExists(b, at)
	}
	return took
}

func note(shortest map[string]time.Duration, name string, took time.Duration) {
	if have, ok := shortest[name]; !ok || took < have {
		shortest[name] = took
	}
}
