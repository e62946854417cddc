package retention_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/box"
)

const writeVariable = "RETENTION_TEST_WRITE"

func TestMain(m *testing.M) {
	if root := os.Getenv(writeVariable); root != "" {
		rules := retention.NewRules(root, storagetest.Writer(root))
		for n := 1; ; n = n%9 + 1 {
			if rules.Set(id, box.Retention{Mode: box.RetentionDays, Days: float64(n)}) != nil {
				os.Exit(3)
			}
		}
	}
	os.Exit(m.Run())
}

func TestARuleIsKeptAndReplacedAndDropped(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "run"), 0o700))
	rules := retention.NewRules(root, storagetest.Writer(root))
	check := func(want box.Retention, kept bool) {
		t.Helper()
		rule, set, err := retention.NewRules(root, storagetest.Writer(root)).Of(id)
		require.NoError(t, err)
		require.Equal(t, want, rule)
		require.Equal(t, kept, set)
	}
	check(box.Retention{Mode: box.RetentionDefault}, false)
	for _, rule := range []box.Retention{{Mode: box.RetentionDays, Days: 0.25}, {Mode: box.RetentionOnStop}, {Mode: box.RetentionDays, Days: 36500}} {
		for range 2 {
			require.NoError(t, rules.Set(id, rule))
			check(rule, true)
		}
	}
	for range 2 {
		require.NoError(t, rules.Set(id, box.Retention{Mode: box.RetentionDefault}))
		check(box.Retention{Mode: box.RetentionDefault}, false)
	}
	require.Equal(t, box.ClassInvalid, box.ClassOf(rules.Set("../x", box.Retention{Mode: box.RetentionOnStop})))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "run/retention")))
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(root, "run/retention")))
	require.Error(t, rules.Set(id, box.Retention{Mode: box.RetentionOnStop}), "not through a link")
}

func TestARuleThatMeansNothingIsRefused(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]box.Retention{
		"Scenario 34: zero days":                    {Mode: box.RetentionDays},
		"Scenario 34: days before now":              {Mode: box.RetentionDays, Days: -1},
		"Scenario 34: no number of days":            {Mode: box.RetentionDays, Days: math.NaN()},
		"Scenario 34: days without end":             {Mode: box.RetentionDays, Days: math.Inf(1)},
		"Scenario 34: more than a hundred years":    {Mode: box.RetentionDays, Days: 36501},
		"Scenario 34: days that go with no mode":    {Days: 30},
		"Scenario 34: days with the default":        {Mode: box.RetentionDefault, Days: 30},
		"Scenario 34: days with on_stop":            {Mode: box.RetentionOnStop, Days: 30},
		"Scenario 34: a mode that there is none of": {Mode: "never"},
		"Scenario 34: nothing":                      {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(root, "run"), 0o700))
			rules := retention.NewRules(root, storagetest.Writer(root))
			kept := box.Retention{Mode: box.RetentionDays, Days: 7}
			require.NoError(t, rules.Set(id, kept))
			err := rules.Set(id, rule)
			require.Equal(t, box.ClassInvalid, box.ClassOf(err))
			said, ok := errors.AsType[*box.Error](err)
			require.True(t, ok)
			require.Contains(t, []string{"mode", "days"}, said.Field)
			found, _, err := rules.Of(id)
			require.NoError(t, err)
			require.Equal(t, kept, found, "nothing changed")
		})
	}
}

func TestAFullDiskKeepsTheOldRule(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "run"), 0o700))
	require.NoError(t, retention.NewRules(root, storagetest.Writer(root)).Set(id, box.Retention{Mode: box.RetentionDays, Days: 7}))
	full := retention.NewRules(root, func(string, []byte) error {
		return fmt.Errorf("write: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	})
	err := full.Set(id, box.Retention{Mode: box.RetentionOnStop})
	require.Equal(t, box.ClassExhausted, box.ClassOf(err))
	require.Contains(t, err.Error(), "free room first")
	rule, _, err := full.Of(id)
	require.NoError(t, err)
	require.Equal(t, box.Retention{Mode: box.RetentionDays, Days: 7}, rule)
}

func TestARuleIsWholeWheneverItsWriterIsKilled(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "run"), 0o700))
	rules := retention.NewRules(root, storagetest.Writer(root))
	require.NoError(t, rules.Set(id, box.Retention{Mode: box.RetentionDays, Days: 9}))
	self, err := os.Executable()
	require.NoError(t, err)
	for i := range 10 {
		before, _, err := rules.Of(id)
		require.NoError(t, err)
		child := exec.CommandContext(t.Context(), self)
		child.Env = append(os.Environ(), writeVariable+"="+root)
		require.NoError(t, child.Start())
		for n, deadline := 0, time.Now().Add(30*time.Second); n <= i; {
			require.True(t, time.Now().Before(deadline), "nothing is written")
			rule, set, err := rules.Of(id)
			require.NoError(t, err)
			require.True(t, set)
			if rule != before {
				before, n = rule, n+1
			}
		}
		require.NoError(t, child.Process.Kill())
		require.Error(t, child.Wait())
		_, set, err := rules.Of(id)
		require.NoError(t, err)
		require.True(t, set)
	}
}

func TestTheRuleThatTakesEffect(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "run"), 0o700))
	rules := retention.NewRules(root, storagetest.Writer(root))
	of := func(opts retention.Options) *box.Retention { return retention.New(root, rules, opts).Effective(id) }
	require.Equal(t, &box.Retention{Mode: box.RetentionDefault}, of(retention.Options{}))
	require.Equal(t, &box.Retention{Mode: box.RetentionDays, Days: 30}, of(retention.Options{DefaultDays: 30}))
	require.NoError(t, rules.Set(id, box.Retention{Mode: box.RetentionOnStop}))
	require.Equal(t, &box.Retention{Mode: box.RetentionOnStop}, of(retention.Options{DefaultDays: 30}))
	require.Equal(t, &box.Retention{Mode: box.RetentionDefault}, of(retention.Options{DefaultDays: 30, Off: "suspended"}))
	require.NoError(t, os.WriteFile(filepath.Join(root, "run/retention", id+".json"), []byte("{"), 0o600))
	require.Nil(t, of(retention.Options{}))
}
