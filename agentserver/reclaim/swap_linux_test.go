package reclaim_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// arena is a box, and outside of it what must survive, on one filesystem.
type arena struct{ base, box, outside, swap string }

const canaries = 40

// newArena lies in memory, where a pass is quick and the race is tight.
func newArena(t *testing.T) arena {
	t.Helper()
	base := inMemory(t)
	a := arena{base, filepath.Join(base, "box"), filepath.Join(base, "outside"), filepath.Join(base, "swap")}
	require.NoError(t, os.MkdirAll(a.box, 0o700))
	require.NoError(t, os.MkdirAll(a.swap, 0o700))
	// Outside looks like caches, so that nothing but the way there protects it,
	// and "work" does not, so that what is moved by name must be looked at.
	for i := range canaries {
		dir := []string{"home/.npm/_cacache/content-v2/sha512", "npm/_cacache/content-v2/sha512", "shaped/content-v2/sha512", "work/_cacache"}[i%4]
		put(t, a.outside, fmt.Sprintf("%s/%02d", dir, i), fmt.Sprintf("precious %02d", i))
	}
	for _, dir := range []string{"home/.npm/_cacache", "npm/_cacache", "shaped"} {
		put(t, a.outside, dir+"/index-v5/entry", "x")
	}
	return a
}

// survivors counts the canaries that are somewhere, byte for byte.
func (a arena) survivors(t *testing.T) int {
	t.Helper()
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(a.base, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		var n int
		if _, bad := fmt.Sscanf(string(content), "precious %02d", &n); bad == nil && len(content) == len("precious 00") {
			found[string(content)] = true
		}
		return err
	}))
	return len(found)
}

// way is what a swapper exchanges: the path in the box, and what takes its
// place, a link to somewhere or a directory from outside.
type way struct{ path, link, dir string }

func (a arena) ways() map[string]way {
	out := func(name string) string { return filepath.Join(a.outside, name) }
	return map[string]way{
		"the cache for a link":                   {"home/.npm/_cacache", out("shaped"), ""},
		"the directory above for a link":         {"home/.npm", out("npm"), ""},
		"the home for a link":                    {"home", out("home"), ""},
		"the cache for another directory":        {"home/.npm/_cacache", "", out("work")},
		"what is above for another directory":    {"home/.npm", "", out("work")},
		"a directory inside for a link":          {"home/.npm/_cacache/content-v2/sha512", out("work"), ""},
		"a link that stays inside the box":       {"home/.npm/_cacache/content-v2", "../../../keep", ""},
		"a directory in the trash for a link":    {".trash/*/content-v2/sha512", out("work"), ""},
		"a directory in the trash, at its start": {".trash/*/content-v2", out("shaped"), ""},
		"the trash for a link":                   {".trash", out("shaped"), ""},
		"the trash for another directory":        {".trash", "", out("work")},
		"a file inside for a link to a file":     {"home/.npm/_cacache/index-v5/00/entry", out("shaped/index-v5/entry"), ""},
	}
}

var links atomic.Uint64

// swapWhile exchanges as fast as it can while action runs, puts things back,
// and returns how often it did.
func (a arena) swapWhile(t *testing.T, w way, action func()) int {
	t.Helper()
	other := w.dir
	if other == "" {
		// What is swapped out may stay there, so each has a name of its own.
		other = filepath.Join(a.swap, strconv.FormatUint(links.Add(1), 10))
		require.NoError(t, os.Symlink(w.link, other))
	}
	var stop atomic.Bool
	swaps := make(chan int)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		place, done := filepath.Join(a.box, w.path), 0
		at := place
		for !stop.Load() || done%2 == 1 {
			if done%2 == 0 { // a swap back goes to where the last one was
				if found, _ := filepath.Glob(place); len(found) > 0 {
					at = found[0]
				}
			}
			// Asked before: what was on its way back into its place during the call is
			// there by the time that the action is over.
			stopped := stop.Load()
			err := unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
			if err == nil {
				done++
			} else if stopped {
				break // what it was exchanged with was taken meanwhile
			}
		}
		swaps <- done
	}()
	action()
	stop.Store(true)
	return <-swaps
}

// Scenario 100 too: whatever is swapped on the way, nothing else goes.
func TestSwapRacesLoseNothing(t *testing.T) {
	t.Parallel()
	if !apart(t, surroundings{mounts: os.Getuid() == 0}) { // alone, a look at all processes is short
		return
	}
	most, atLeast := 15*time.Second, 10_000
	if testing.Short() {
		most, atLeast = 4*time.Second, 1_000
	}
	a := newArena(t)
	put(t, a.box, "keep/precious", "stays")
	r, err := reclaim.Open(a.box, reclaim.Options{})
	require.NoError(t, err)
	swaps, rounds, taken, left := 0, 0, map[string]int{}, map[string]int{}
	const sure = "the directory above for a link"
	undecided := func() bool { return swaps < atLeast || taken[sure] == 0 || left[sure] == 0 }
	for began := time.Now(); time.Since(began) < most && rounds < 60*len(a.ways()) || undecided() && time.Since(began) < time.Minute; {
		for name, w := range a.ways() {
			rounds++
			_ = os.RemoveAll(filepath.Join(a.box, "home"))
			npm(t, a.box, 4)
			swaps += a.swapWhile(t, w, func() {
				report, err := r.Do(t.Context(), box.ReclaimRequest{})
				if err != nil {
					return // the trash is another directory just now
				}
				for _, entry := range report.Items {
					if entry.Skipped == "" {
						taken[name]++
					} else {
						left[name]++
					}
				}
			})
		}
	}
	r.Close()
	again, err := reclaim.Open(a.box, reclaim.Options{}) // empties what is left in the trash
	require.NoError(t, err)
	again.Close()
	t.Logf("%d swaps in %d rounds; taken %v, left %v", swaps, rounds, taken, left)
	require.Equal(t, canaries, a.survivors(t), "files outside were lost")
	require.FileExists(t, filepath.Join(a.box, "keep/precious"))
	require.GreaterOrEqual(t, swaps, atLeast, "too few races for a verdict")
	require.Positive(t, taken[sure], "the mover never won")
	require.Positive(t, left[sure], "the swapper never won")
}

// The same harness must be able to find an escape.
func TestSwapRacesAreLostByRemoveAll(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	w := a.ways()["the directory above for a link"]
	for round := 0; a.survivors(t) == canaries; round++ {
		require.Less(t, round, 20_000, "os.RemoveAll never escaped, so the race proves nothing")
		_ = os.RemoveAll(filepath.Join(a.box, "home"))
		npm(t, a.box, 4)
		a.swapWhile(t, w, func() { _ = os.RemoveAll(filepath.Join(a.box, w.path, "_cacache")) })
	}
}
