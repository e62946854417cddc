package reclaim_test

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/box"
)

// The child of the tests below is this program again, told by its environment
// what to do and when to be killed.
const (
	killRoot  = "RECLAIM_TEST_KILL_ROOT"
	killTier  = "RECLAIM_TEST_KILL_TIER"
	killAt    = "RECLAIM_TEST_KILL_AT"    // the number of a step; none means to tell the steps
	killAfter = "RECLAIM_TEST_KILL_AFTER" // a delay behind it
)

// onDisk is a layout whose marks are files, as that of a box is.
type onDisk struct{ root string }

func (l onDisk) mark(id string) string {
	return filepath.Join(l.root, "persistence/runtime-control", id+".archived.json")
}

func (l onDisk) Places(context.Context) (out []reclaim.Place, err error) {
	for i := range 2 {
		id := conversationID(i)
		runtime := filepath.Join(l.root, runtimes, id)
		place := reclaim.Place{Conversation: id, LastActive: used(i), LastActiveFrom: "test"}
		if _, err := os.Lstat(runtime); err == nil {
			place.Home, place.Workspaces, place.Runtime = runtime+"/persistence", []string{runtime + "/workspace"}, runtime
		}
		_, err := os.Lstat(l.mark(id))
		place.Archived = err == nil
		out = append(out, place)
	}
	return out, nil
}

func (onDisk) Hold(context.Context, string) (func(), string, error) { return func() {}, "", nil }

func (l onDisk) Archive(_ context.Context, id string) error {
	return os.WriteFile(l.mark(id), []byte("{}"), 0o600)
}

func killOptions(root string) reclaim.Options {
	return reclaim.Options{Layouts: []reclaim.Layout{onDisk{root}}, Repos: &repos{}, Unsaved: saved}
}

// killed is the child: it plans, tells the plan's id, and applies it, until it
// is killed.
func killed(root string) int {
	at, err := strconv.Atoi(os.Getenv(killAt))
	if err != nil {
		at = -1
	}
	after, _ := time.ParseDuration(os.Getenv(killAfter))
	steps := make(chan string)
	count := 0
	opts := reclaim.WithFault(killOptions(root), func(step string) {
		steps <- step
		<-steps
	})
	go func() {
		for step := range steps {
			if count == at {
				if after > 0 {
					time.AfterFunc(after, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
				} else {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
					select {}
				}
			}
			if at < 0 {
				fmt.Println("step", step)
			}
			count++
			steps <- ""
		}
	}()
	r, err := reclaim.Open(root, opts)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	tier := box.Tier(os.Getenv(killTier))
	ctx := context.Background() //nolint:forbidigo // a process of the test's own
	plan, err := r.Do(ctx, box.ReclaimRequest{DryRun: true, Tiers: []box.Tier{tier}, ConversationIDs: []string{conversationID(0)}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("plan", plan.PlanID)
	if _, err := r.Do(ctx, box.ReclaimRequest{PlanID: plan.PlanID}); err != nil {
		fmt.Println(err)
		return 1
	}
	if after > 0 {
		select {} // the kill is on its way
	}
	return 0
}

// runKilled runs the child; at < 0 lets it live and returns the steps.
func runKilled(t *testing.T, root string, tier box.Tier, at int, after time.Duration) (plan string, steps []string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), self)
	command.Env = append(os.Environ(), killRoot+"="+root, killTier+"="+string(tier))
	if at >= 0 {
		command.Env = append(command.Env, killAt+"="+strconv.Itoa(at), killAfter+"="+after.String())
	}
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "plan":
			plan = rest
		case "step":
			steps = append(steps, rest)
		default:
			t.Errorf("the child says %q", lines.Text())
		}
	}
	err = command.Wait()
	if at < 0 {
		require.NoError(t, err)
		return plan, steps
	}
	status, ok := command.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGKILL, status.Signal(), "it was to be killed: %v", err)
	return plan, nil
}

// killBox fills a box for the child.
func killBox(t *testing.T) (root string, files map[string]int) {
	t.Helper()
	// In memory, where nothing waits for a disk.
	root, err := os.MkdirTemp("/dev/shm", "boxkeeper-kill-") //nolint:usetesting // see above
	if err != nil {
		root = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	conversations(t, root, 2)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "persistence/runtime-control"), 0o755))
	for i := range 300 {
		put(t, root, fmt.Sprintf("%s/b/%d/index.js", nodeModules(0), i), "x")
	}
	return root, map[string]int{
		cacheOf(0): count(t, root, cacheOf(0)), mypyOf(0): count(t, root, mypyOf(0)), nodeModules(0): count(t, root, nodeModules(0)),
		filepath.Join(runtimes, conversationID(0)): count(t, root, filepath.Join(runtimes, conversationID(0))),
	}
}

// count is how many entries a directory holds, 0 when it is not there.
func count(t *testing.T, root, dir string) int {
	t.Helper()
	n := 0
	require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(_ string, _ fs.DirEntry, err error) error {
		if err == nil {
			n++
		}
		return nil
	}))
	return n
}

func TestAKillAtAnyStepLeavesAnItemWholeOrInTheTrash(t *testing.T) {
	t.Parallel()
	for tier, items := range map[box.Tier][]string{
		box.TierDependencies: {cacheOf(0), mypyOf(0), nodeModules(0)},
		box.TierRuntime:      {filepath.Join(runtimes, conversationID(0))},
	} {
		root, _ := killBox(t)
		_, steps := runKilled(t, root, tier, -1, 0)
		for _, want := range []string{"journaled", "held", "moved", "released", "proving", "deleting", "deleted", "reporting"} {
			require.Contains(t, steps, want)
		}
		if tier == box.TierRuntime {
			require.Contains(t, steps, "marked")
		}
		for at, step := range steps {
			t.Run(fmt.Sprintf("tier %s, killed at step %d, %s", tier, at, step), func(t *testing.T) {
				t.Parallel()
				afterKill(t, tier, items, at, 0)
			})
		}
	}
}

func TestAKillInTheMiddleOfADeletionIsMadeGood(t *testing.T) {
	t.Parallel()
	root, _ := killBox(t)
	_, steps := runKilled(t, root, box.TierDependencies, -1, 0)
	at := len(steps) - 3 // the last "deleting"
	require.Equal(t, "deleting", steps[at])
	for _, after := range []time.Duration{50 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond} {
		t.Run(after.String()+" after it began", func(t *testing.T) {
			t.Parallel()
			afterKill(t, box.TierDependencies, []string{cacheOf(0), mypyOf(0), nodeModules(0)}, at, after)
		})
	}
}

// What was deleted before a kill, and after it by the next process, counts, whoever
// looks when: less than a MiB of it may be lost, and the report says so.
func TestAReportCountsWhatWasDeletedBeforeAKill(t *testing.T) {
	t.Parallel()
	root, _ := bigKillBox(t)
	_, steps := runKilled(t, root, box.TierDependencies, -1, 0)
	for at, step := range steps {
		if !slices.Contains([]string{"proving", "deleting", "deleted", "reporting"}, step) {
			continue
		}
		for _, swept := range []bool{true, false} {
			t.Run(fmt.Sprintf("killed at step %d, %s, swept first %v", at, step, swept), func(t *testing.T) {
				t.Parallel()
				root, planned := bigKillBox(t)
				plan, _ := runKilled(t, root, box.TierDependencies, at, 0)
				r, err := reclaim.Open(root, killOptions(root))
				require.NoError(t, err)
				defer r.Close()
				if swept {
					r.Idle()
				}
				report := do(t, r, box.ReclaimRequest{PlanID: plan})
				require.Len(t, taken(report), 3, "%+v", report)
				require.True(t, report.RemovedLowerBound)
				require.LessOrEqual(t, report.RemovedBytes, report.PlannedBytes)
				require.Greater(t, report.RemovedBytes, report.PlannedBytes-1<<20)
				require.Greater(t, report.RemovedBytes, planned)
				sum := int64(0)
				for _, entry := range report.Items {
					sum += entry.RemovedBytes
				}
				require.Equal(t, report.RemovedBytes, sum, "told by item")
				require.Equal(t, report, do(t, r, box.ReclaimRequest{PlanID: plan}))
				r.Close()
				again, err := reclaim.Open(root, killOptions(root))
				require.NoError(t, err)
				defer again.Close()
				require.Equal(t, report, do(t, again, box.ReclaimRequest{PlanID: plan}))
			})
		}
	}
}

// bigKillBox is killBox with a file of some MiB in each of what goes.
func bigKillBox(t *testing.T) (root string, planned int64) {
	t.Helper()
	root, _ = killBox(t)
	for i, place := range []string{cacheOf(0) + "/content-v2", mypyOf(0), nodeModules(0) + "/b"} {
		put(t, root, place+"/big", strings.Repeat("x", (i+2)<<20))
	}
	return root, 8 << 20
}

// afterKill kills a child and looks at what it left, at once, after the start of
// another process, and after the plan was applied again.
func afterKill(t *testing.T, tier box.Tier, items []string, at int, after time.Duration) {
	t.Helper()
	for _, asked := range []bool{true, false} {
		root, files := killBox(t)
		plan, _ := runKilled(t, root, tier, at, after)
		whole := func(when string) (left int) {
			for _, place := range items {
				if got := count(t, root, place); got != 0 {
					require.Equal(t, files[place], got, "%s: %s is there in part", when, place)
					left++
				}
			}
			require.FileExists(t, filepath.Join(root, nodeModules(1), ".package-lock.json"))
			_, err := os.Lstat(filepath.Join(root, runtimes, conversationID(0)))
			if tier == box.TierRuntime && err != nil {
				require.FileExists(t, onDisk{root}.mark(conversationID(0)), "the mark comes first")
			} else {
				require.FileExists(t, filepath.Join(root, runtimes, conversationID(0), "workspace/repo/main.js"))
			}
			return left
		}
		moved := len(items) - whole("after the kill")
		r, err := reclaim.Open(root, killOptions(root))
		require.NoError(t, err)
		if asked {
			first := do(t, r, box.ReclaimRequest{PlanID: plan})
			require.Len(t, taken(first), len(items), "%+v", first)
			require.Zero(t, whole("after it was applied again"))
			require.Equal(t, first, do(t, r, box.ReclaimRequest{PlanID: plan}))
		}
		r.Idle()
		if !asked {
			require.Equal(t, moved, len(items)-whole("after a start"), "nobody asked for more")
		}
		trash, err := os.ReadDir(filepath.Join(root, ".trash"))
		require.NoError(t, err)
		require.Empty(t, trash)
		_, marked := os.Lstat(onDisk{root}.mark(conversationID(0)))
		require.NoError(t, r.Pass(t.Context()))
		if marked == nil {
			require.NoDirExists(t, filepath.Join(root, runtimes, conversationID(0)), "a pass finishes what was marked")
		} else {
			require.DirExists(t, filepath.Join(root, runtimes, conversationID(0)))
		}
		r.Close()
	}
}
