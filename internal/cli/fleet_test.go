package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// kept makes a data directory whose store holds the ledgers of workspaces that
// were suspended an hour ago, each in its second box.
func kept(t *testing.T, workspaces ...string) (data string, store *exports.Store) {
	t.Helper()
	data = t.TempDir()
	store, err := exports.Open(t.Context(), "file://"+filepath.Join(data, "exports"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	for _, workspace := range workspaces {
		spec := box.Spec{Version: box.WireVersion, Workspace: workspace, Provider: "local", Owner: "ann"}
		ref := box.Ref{Provider: "local", ID: "2", Name: "bk-0-" + workspace + "-2", Epoch: 2, Fingerprint: "here"}
		seen := box.Observation{Ref: ref, Phase: box.PhaseRunning, Evidence: "it runs"}
		claims := row()
		since := now.Add(-time.Hour)
		f := box.NewFacts(spec, claims, since)
		f.Epoch, f.Ref, f.State, f.Kept = 2, ref, box.StateSuspending, true
		f.Sequence = &box.Sequence{Purpose: box.PurposeIdle, Looked: true}
		note := func(kind exports.Kind, at time.Time, value any) {
			raw, err := json.Marshal(value)
			require.NoError(t, err)
			_, err = store.AppendLedger(t.Context(), workspace, exports.Entry{ID: string(kind), Kind: kind, Epoch: 2, At: at, Data: raw})
			require.NoError(t, err)
		}
		note(exports.KindCreateIntent, since.Add(-time.Hour), box.LedgerCreate{Spec: spec})
		note(exports.KindCreated, since.Add(-time.Hour), box.LedgerCreate{Spec: spec, Observation: seen, Capabilities: &claims})
		note(exports.KindSuspendIntent, since, box.LedgerIntent{Ref: ref, Marks: f.Marks(since)})
		seen.Phase, seen.Evidence = box.PhaseSuspended, "no process of it left"
		note(exports.KindSuspended, since, seen)
	}
	return data, store
}

func closeLedger(t *testing.T, store *exports.Store, workspace string) {
	t.Helper()
	_, err := store.AppendLedger(t.Context(), workspace, exports.Entry{ID: "t", Kind: exports.KindDeleted, Epoch: 2, At: now, Data: json.RawMessage(`{"evidence":"absent twice"}`)})
	require.NoError(t, err)
}

func answer[A any](t *testing.T, got outcome) A {
	t.Helper()
	var out A
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &out), got.stdout+got.stderr)
	return out
}

func TestShowAndWhyAnswerFromTheLedger(t *testing.T) {
	t.Parallel()
	for name, fake := range map[string]func() *fakeTemporal{
		"no engine": func() *fakeTemporal { return nil },
		"no worker": func() *fakeTemporal {
			f := newFake()
			f.add("mine", box.StateRunning)
			f.noWorker = true
			return f
		},
		"an engine that lost it": newFake,
		"a terminated workflow, for which a worker would answer": func() *fakeTemporal {
			f := newFake()
			f.add("mine", box.StateRunning)
			f.closed["mine"] = enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
			return f
		},
		"a worker that does not answer": func() *fakeTemporal {
			f := newFake()
			f.add("mine", box.StateRunning)
			f.fail["query"] = serviceerror.NewDeadlineExceeded("late")
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, _ := kept(t, "mine")
			got := runIn(t, fake(), data, "", "box", "show", "mine", "-o", "json")
			require.Equal(t, 8, got.code, got.stderr)
			status := answer[box.Status](t, got)
			assert.Equal(t, box.SourceLedger, status.Source)
			assert.Equal(t, box.StateSuspended, status.State)
			assert.Equal(t, 2, status.Epoch)
			assert.Equal(t, []string{"kept"}, status.Flags)
			assert.True(t, status.AsOf.Equal(now.Add(-time.Hour)), status.AsOf)
			assert.Contains(t, got.stderr, "From the ledger, as of 2026-05-01T11:00:00Z")

			why := answer[box.Why](t, runIn(t, fake(), data, "", "box", "why", "mine", "-o", "json"))
			assert.Equal(t, box.SourceLedger, why.Source)
			assert.Equal(t, "suspended: no process of it left", why.Because.Text)
			assert.Len(t, why.Transitions, 4)

			text := runIn(t, fake(), data, "", "box", "why", "mine")
			assert.Equal(t, 8, text.code)
			assert.True(t, strings.HasPrefix(text.stdout, "From the ledger, as of "), text.stdout)
			assert.Contains(t, text.stdout, "no workflow or no worker answers")
		})
	}
}

func TestTheEngineIsBelievedBeforeTheLedger(t *testing.T) {
	t.Parallel()
	data, _ := kept(t, "mine")
	fake := newFake()
	fake.add("mine", box.StateRunning)
	got := runIn(t, fake, data, "", "box", "show", "mine", "-o", "json")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, box.StateRunning, answer[box.Status](t, got).State)
	assert.NotContains(t, got.stdout, `"source"`)
}

func TestWhereTheLedgerSaysNothingTheEnginesErrorStands(t *testing.T) {
	t.Parallel()
	data, store := kept(t, "mine")
	assert.Equal(t, 5, runIn(t, nil, data, "", "box", "show", "other").code)
	assert.Equal(t, 3, runIn(t, newFake(), data, "", "box", "show", "other").code)
	assert.Equal(t, 5, runIn(t, nil, t.TempDir(), "", "box", "why", "mine").code)

	// A workspace that is closed is that for ever, whoever answers.
	closeLedger(t, store, "mine")
	got := runIn(t, newFake(), data, "", "box", "show", "mine", "-o", "json")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, box.StateBoxArchived, answer[box.Status](t, got).State)

	broken, _ := kept(t, "mine")
	require.NoError(t, os.Remove(filepath.Join(broken, "exports", "ledger", "mine", "00000002.json")))
	got = runIn(t, nil, broken, "", "box", "show", "mine")
	assert.Equal(t, 5, got.code)
	assert.Contains(t, got.stderr, "entry 2 of workspace mine is missing")
	assert.Empty(t, got.stdout)
}

type rebuilds struct {
	Workspaces []struct {
		Workspace, Result, Text string
		State                   box.State
		Epoch                   int
	}
}

func (r rebuilds) results() map[string]string {
	out := map[string]string{}
	for _, w := range r.Workspaces {
		out[w.Workspace] = w.Result
	}
	return out
}

func TestFleetRebuildBringsBackWhatIsLost(t *testing.T) {
	t.Parallel()
	data, store := kept(t, "closed", "damaged", "ended", "lost", "runs", "deleted-elsewhere")
	closeLedger(t, store, "closed")
	require.NoError(t, os.Truncate(filepath.Join(data, "exports", "ledger", "damaged", "00000003.json"), 40))
	fake := newFake()
	fake.add("runs", box.StateRunning)
	fake.add("ended", box.StateRunning)
	fake.closed["ended"] = enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
	fake.closed["deleted-elsewhere"] = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED

	dry := runIn(t, fake, data, "", "fleet", "rebuild", "--dry-run", "-o", "json")
	assert.NotEqual(t, 0, dry.code)
	assert.Equal(t, map[string]string{
		"closed": "closed", "damaged": "damaged", "ended": "would-rebuild", "lost": "would-rebuild", "runs": "watched", "deleted-elsewhere": "failed",
	}, answer[rebuilds](t, dry).results())
	assert.Empty(t, fake.started)

	got := runIn(t, fake, data, "", "fleet", "rebuild", "-o", "json")
	assert.Equal(t, 4, got.code)
	assert.Equal(t, map[string]string{
		"closed": "closed", "damaged": "damaged", "ended": "rebuilt", "lost": "rebuilt", "runs": "watched", "deleted-elsewhere": "failed",
	}, answer[rebuilds](t, got).results())
	assert.Contains(t, got.stderr, "2 workspaces not brought back: damaged, deleted-elsewhere")
	require.Len(t, fake.started, 2)
	for _, workspace := range []string{"ended", "lost"} {
		f := fake.facts[workspace]
		assert.Equal(t, box.StateUnknown, f.State)
		assert.Equal(t, 2, f.Epoch)
		assert.True(t, f.Kept)
		assert.True(t, f.SuspendedSince.Equal(now.Add(-time.Hour)))
		assert.Equal(t, box.StepObserve, box.Next(f, now).Kind)
	}

	again := runIn(t, fake, data, "", "fleet", "rebuild", "ended", "lost", "-o", "json")
	assert.Equal(t, 0, again.code, again.stderr)
	assert.Equal(t, map[string]string{"ended": "watched", "lost": "watched"}, answer[rebuilds](t, again).results())
	require.Len(t, fake.started, 2)
}

func TestFleetRebuildTwiceAtOnceStartsEachOnce(t *testing.T) {
	t.Parallel()
	data, _ := kept(t, "a", "b", "c")
	fake := newFake()
	var wait sync.WaitGroup
	results := make([]outcome, 2)
	for i := range results {
		wait.Go(func() { results[i] = runIn(t, fake, data, "", "fleet", "rebuild", "-o", "json") })
	}
	wait.Wait()
	done := 0
	for _, got := range results {
		require.Equal(t, 0, got.code, got.stderr)
		for _, result := range answer[rebuilds](t, got).results() {
			if result == "rebuilt" {
				done++
			} else {
				assert.Equal(t, "watched", result)
			}
		}
	}
	assert.Equal(t, 3, done)
	assert.Len(t, fake.started, 3)

	// One that is looked for and found missing, and started by another one before.
	data, _ = kept(t, "late")
	fake.before = func(workspace string) {
		facts := box.NewFacts(box.Spec{Workspace: workspace}, row(), now)
		fake.facts[workspace] = &facts
	}
	got := runIn(t, fake, data, "", "fleet", "rebuild", "-o", "json")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, map[string]string{"late": "watched"}, answer[rebuilds](t, got).results())
}

func TestFleetRebuildSaysWhatKeepsIt(t *testing.T) {
	t.Parallel()
	data, _ := kept(t, "mine")
	assert.Equal(t, 5, runIn(t, nil, data, "", "fleet", "rebuild").code)
	assert.Equal(t, 2, runIn(t, newFake(), data, "", "fleet", "rebuild", "Not_One").code)
	assert.Equal(t, 3, runIn(t, newFake(), t.TempDir(), "", "fleet", "rebuild").code)
	fake := newFake()
	fake.fail["start"] = serviceerror.NewUnavailable("down")
	got := runIn(t, fake, data, "", "fleet", "rebuild")
	assert.Equal(t, 5, got.code)
	assert.Contains(t, got.stdout, "failed")
	fake = newFake()
	fake.noWorker = true
	got = runIn(t, fake, data, "", "fleet", "rebuild")
	assert.Equal(t, 0, got.code)
	assert.Contains(t, got.stderr, "when a worker is up")
	assert.Contains(t, got.stdout, "rebuilt")
}
