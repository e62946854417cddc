package scan_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/scan"
)

var (
	benchFiles = flag.Int("scan.files", 20_000, "how many files the benchmarks' trees have")
	benchDir   = flag.String("scan.dir", "", "where the benchmarks' trees are made and kept; empty means a new directory each time")
	benchCold  = flag.Bool("scan.cold", false, "also measure with cold caches, which needs root and drops those of the whole system")
)

// forest makes a tree like a node_modules directory: packages with a few
// directories each, and files of about a kilobyte.
func forest(b *testing.B, files int) string {
	b.Helper()
	root := filepath.Join(benchRoot(b), fmt.Sprintf("plain-%d", files))
	if _, err := os.Stat(filepath.Join(root, "done")); err == nil {
		return root
	}
	random := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 1<<20)
	for made := 0; made < files; {
		pack := filepath.Join(root, "tree", fmt.Sprintf("package-%05d", made))
		for _, dir := range []string{"", "lib", "lib/internal", "dist/esm", "types"} {
			dir = filepath.Join(pack, dir)
			require.NoError(b, os.MkdirAll(dir, 0o755))
			for i := 0; i < 10+random.IntN(3) && made < files; i++ {
				size := min(int(1100*math.Exp(1.5*random.NormFloat64())), len(content))
				require.NoError(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("module-%d.js", i)), content[:size], 0o600))
				made++
			}
		}
	}
	require.NoError(b, os.WriteFile(filepath.Join(root, "done"), nil, 0o600))
	return root
}

// linked makes a cache of files, and two environments whose files are links to it.
func linked(b *testing.B, files int) string {
	b.Helper()
	root := filepath.Join(benchRoot(b), fmt.Sprintf("linked-%d", files))
	if _, err := os.Stat(filepath.Join(root, "done")); err == nil {
		return root
	}
	for i := range files / 3 {
		place := fmt.Sprintf("package-%04d/module-%d.py", i/10, i)
		for tree, name := range []string{"cache", "venv-1", "venv-2"} {
			name = filepath.Join(root, "tree", name, place)
			require.NoError(b, os.MkdirAll(filepath.Dir(name), 0o755))
			if tree == 0 {
				require.NoError(b, os.WriteFile(name, make([]byte, 100+i%5000), 0o600))
			} else {
				require.NoError(b, os.Link(filepath.Join(root, "tree/cache", place), name))
			}
		}
	}
	require.NoError(b, os.WriteFile(filepath.Join(root, "done"), nil, 0o600))
	return root
}

func benchRoot(b *testing.B) string {
	b.Helper()
	if *benchDir != "" {
		return *benchDir
	}
	return b.TempDir()
}

// later is a clock by which everything has been left alone for long.
func later() time.Time { return time.Now().Add(time.Hour) }

// benchTrees are what the benchmarks measure.
var benchTrees = []struct {
	name string
	make func(*testing.B, int) string
}{{"plain", forest}, {"linked", linked}}

func BenchmarkFirst(b *testing.B) {
	for _, tree := range benchTrees {
		b.Run(tree.name, func(b *testing.B) {
			s := scan.New(tree.make(b, *benchFiles), scan.Options{})
			b.ReportAllocs()
			for b.Loop() {
				_, err := s.Walk(b.Context(), []scan.Place{{Path: "tree"}})
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkRepeat(b *testing.B) {
	for _, tree := range benchTrees {
		b.Run(tree.name, func(b *testing.B) {
			s := scan.New(tree.make(b, *benchFiles), scan.Options{Now: later})
			places := []scan.Place{{Path: "tree", Estimate: true}}
			_, err := s.Walk(b.Context(), places)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				_, err := s.Walk(b.Context(), places)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkMemory reports the most memory that the process ever had, so it is run
// alone, with -benchtime 1x and one tree at a time.
func BenchmarkMemory(b *testing.B) {
	for _, tree := range benchTrees {
		b.Run(tree.name, func(b *testing.B) {
			root := tree.make(b, *benchFiles)
			for b.Loop() {
				s := scan.New(root, scan.Options{Now: later})
				for range 3 {
					_, err := s.Walk(b.Context(), []scan.Place{{Path: "tree", Estimate: true}})
					require.NoError(b, err)
				}
			}
			status, err := os.ReadFile("/proc/self/status")
			require.NoError(b, err)
			for _, field := range []string{"VmHWM", "VmRSS"} {
				var kB float64
				_, rest, _ := strings.Cut(string(status), field+":")
				_, err := fmt.Sscan(rest, &kB)
				require.NoError(b, err)
				b.ReportMetric(kB/1024, field+"-MiB")
			}
		})
	}
}

// BenchmarkAgainst runs us and the tools that people use on the same tree, in
// turns, and reports the least time of each.
func BenchmarkAgainst(b *testing.B) {
	for _, tree := range benchTrees {
		root := tree.make(b, *benchFiles)
		place := filepath.Join(root, "tree")
		again := scan.New(root, scan.Options{Now: later})
		places := []scan.Place{{Path: "tree", Estimate: true}}
		_, err := again.Walk(b.Context(), places)
		require.NoError(b, err)
		walk := func(s *scan.Scanner, places []scan.Place) {
			_, err := s.Walk(b.Context(), places)
			require.NoError(b, err)
		}
		runs := []struct {
			name string
			run  func()
		}{
			{"first", func() {
				walk(scan.New(root, scan.Options{}), places)
			}},
			{"repeat", func() { walk(again, places) }},
			{"floor-names", func() { names(b, place) }},
			{"floor-dirs", func() { dirsOnly(b, place) }},
		}
		for _, tool := range [][]string{{"du", "-s", place}, {"gdu", "-nps", place}} {
			if _, err := exec.LookPath(tool[0]); err != nil {
				b.Logf("%s is not compared: %v", tool[0], err)
				continue
			}
			runs = append(runs, struct {
				name string
				run  func()
			}{tool[0], func() { require.NoError(b, exec.CommandContext(b.Context(), tool[0], tool[1:]...).Run()) }})
		}
		for _, cold := range []bool{false, true} {
			if cold && !*benchCold {
				continue
			}
			b.Run(fmt.Sprintf("%s/cold=%v", tree.name, cold), func(b *testing.B) {
				least := map[string]time.Duration{}
				for b.Loop() {
					for _, one := range runs {
						if cold {
							unix.Sync()
							require.NoError(b, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
						}
						runtime.GC()
						began := time.Now()
						one.run()
						if took := time.Since(began); least[one.name] == 0 || took < least[one.name] {
							least[one.name] = took
						}
					}
				}
				b.ReportMetric(0, "ns/op")
				for name, took := range least {
					b.ReportMetric(float64(took.Microseconds())/1000, name+"-ms")
				}
			})
		}
	}
}

// names reads all names and looks at nothing: less cannot be done to find what
// is there.
func names(b *testing.B, dir string) {
	b.Helper()
	block := make([]byte, 64<<10)
	var below func(at int, name string)
	below = func(at int, name string) {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		require.NoError(b, err)
		defer unix.Close(fd)
		var dirs []string
		for {
			n, err := unix.Getdents(fd, block)
			require.NoError(b, err)
			if n == 0 {
				break
			}
			for rest := block[:n]; len(rest) > 0; {
				length := int(rest[16]) | int(rest[17])<<8
				if rest[18] == unix.DT_DIR {
					if name := unix.ByteSliceToString(rest[19:length]); name != "." && name != ".." {
						dirs = append(dirs, name)
					}
				}
				rest = rest[length:]
			}
		}
		for _, name := range dirs {
			below(fd, name)
		}
	}
	below(unix.AT_FDCWD, dir)
}

// dirsOnly looks once at each directory whose path is known: less cannot be done
// to find that nothing changed.
var knownDirs = map[string][]string{}

func dirsOnly(b *testing.B, dir string) {
	b.Helper()
	if knownDirs[dir] == nil {
		require.NoError(b, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				knownDirs[dir] = append(knownDirs[dir], path)
			}
			return err
		}))
	}
	var st unix.Stat_t
	for _, path := range knownDirs[dir] {
		require.NoError(b, unix.Lstat(path, &st))
	}
}
