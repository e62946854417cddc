package cli_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

func TestAdoptStartsAWorkspaceThatNeverCreates(t *testing.T) {
	t.Parallel()
	fake := newFake()
	args := []string{"box", "adopt", "local", "an-old-session", "--workspace", "mine", "--owner", "ann", "--idle", "1h", "-o", "json"}
	got := runWith(t, fake, args...)
	require.Equal(t, 0, got.code, got.stderr)
	spec := fake.facts["mine"].Spec
	require.Equal(t, "an-old-session", spec.Adopt)
	require.Equal(t, "ann", spec.Owner)
	require.Equal(t, box.Duration(time.Hour), spec.Policy.Idle)
	require.Equal(t, box.StepAdopt, box.Next(fake.facts["mine"], now).Kind)
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &out))
	require.Equal(t, "mine", out["workspace"])
	require.Equal(t, false, out["existed"])
	again := runWith(t, fake, args...)
	require.Equal(t, 0, again.code, again.stderr)
	require.Contains(t, again.stdout, `"existed": true`)
	require.Len(t, fake.started, 1)
	require.Empty(t, fake.updates, "the adoption is under way already")
	other := runWith(t, fake, "box", "create", "mine", "--owner", "ann", "--idle", "1h")
	require.Equal(t, 4, other.code)
	require.Contains(t, other.stderr, "exists with another adopt")
}

func TestAdoptGivesTheBoxToAWorkspaceThatLostIts(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateLost)
	got := runWith(t, fake, "box", "adopt", "local", "an-old-session", "--workspace", "mine", "--wait")
	require.Equal(t, 0, got.code, got.stderr)
	require.Len(t, fake.updates, 1)
	require.Equal(t, box.UpdateAdopt, fake.updates[0].UpdateName)
	require.Contains(t, got.stdout, "mine is suspended")
	require.Equal(t, 2, fake.facts["mine"].Epoch)
	busy := runWith(t, fake, "box", "adopt", "local", "another", "--workspace", "mine")
	require.Equal(t, 4, busy.code)
	require.Contains(t, busy.stderr, "adopt the other one under a workspace of its own")
	fake.add("far", box.StateLost).Spec.Provider = "elsewhere"
	far := runWith(t, fake, "box", "adopt", "local", "x", "--workspace", "far")
	require.Equal(t, 4, far.code)
	require.Contains(t, far.stderr, "at provider elsewhere")
	for want, args := range map[string][]string{
		"workspace: ": {"box", "adopt", "local", "x"},
		"adopt: ":     {"box", "adopt", "local", "a b", "--workspace", "mine"},
		"arguments: ": {"box", "adopt", "local", "--workspace", "mine"},
	} {
		bad := runWith(t, fake, args...)
		require.Equal(t, 2, bad.code, args)
		require.Contains(t, bad.stderr, want)
	}
}

func TestALostBoxIsRestoredOrReplaced(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("bare", box.StateLost)
	fake.add("full", box.StateLost).Receipt = box.Receipt{Workspace: "full", Epoch: 1, Key: "k", SHA256: "s", Conversations: 3, Events: 27, Digest: "d"}
	refused := runWith(t, fake, "box", "restore", "bare")
	require.Equal(t, 4, refused.code)
	require.Contains(t, refused.stderr, "replace gives an empty box")
	replaced := runWith(t, fake, "box", "replace", "bare")
	require.Equal(t, 0, replaced.code, replaced.stderr)
	require.Contains(t, replaced.stdout, "bare is creating")
	restored := runWith(t, fake, "box", "restore", "full", "-o", "json")
	require.Equal(t, 0, restored.code, restored.stderr)
	require.Contains(t, restored.stdout, "3 conversations, 27 events")
	require.Equal(t, 2, fake.facts["full"].Epoch)
	lacking := fake.facts["full"].Receipt
	lacking.Archive = box.ArchiveReceipt{Bytes: 1, Files: 2, Missing: 3}
	fake.add("lacking", box.StateLost).Receipt = lacking
	incomplete := runWith(t, fake, "box", "restore", "lacking")
	require.Equal(t, 4, incomplete.code)
	require.Contains(t, incomplete.stderr, "3 things in the workspace")
	accepted := runWith(t, fake, "box", "restore", "lacking", "--accept-incomplete")
	require.Equal(t, 0, accepted.code, accepted.stderr)
	require.Contains(t, accepted.stdout, "without 3 things")
	fake.add("runs", box.StateRunning)
	require.Equal(t, 4, runWith(t, fake, "box", "replace", "runs").code)
}

func TestAbandonNeedsAReasonAndIsSaidEverAfter(t *testing.T) {
	t.Parallel()
	fake := newFake()
	fake.add("mine", box.StateSuspended)
	require.Equal(t, 2, runWith(t, fake, "box", "abandon", "mine", "--force").code)
	within := runWith(t, fake, "box", "abandon", "mine", "--reason", "enough")
	require.Equal(t, 4, within.code)
	require.Contains(t, within.stderr, `"box delete" destroys it`)
	require.NotContains(t, within.stderr, "request-delete", "that is no command")
	got := runWith(t, fake, "box", "abandon", "mine", "--reason", "enough", "--force", "--by", "ops")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "mine is abandoned")
	require.Contains(t, got.stdout, "may still exist and cost money")
	fake.closed["mine"] = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
	for _, args := range [][]string{{"box", "resume", "mine"}, {"box", "create", "mine"}} {
		closed := runWith(t, fake, args...)
		require.Equal(t, 4, closed.code)
		require.Contains(t, closed.stderr, "was abandoned")
		require.NotContains(t, closed.stderr, "its box is gone")
	}
}

func TestWhatAnAbandonmentLeftIsReadFromItsTombstone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		last      box.LedgerAbandonment
		says, not string
	}{
		"no box was ever made": {box.LedgerAbandonment{Abandonment: box.Abandonment{Unmade: true}}, "there is no box", "may still exist"},
		"nobody knew of a box": {box.LedgerAbandonment{}, "if it has a box, that may still exist", "the box may"},
		"a box was left":       {box.LedgerAbandonment{Ref: box.Ref{Provider: "local", ID: "1", Epoch: 1}}, "the box may still exist and cost money", "there is no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			store, err := exports.Open(t.Context(), "file://"+filepath.Join(data, "exports"))
			require.NoError(t, err)
			tc.last.Abandonment.Reason = "misspelt"
			last, err := json.Marshal(tc.last)
			require.NoError(t, err)
			_, err = store.AppendLedger(t.Context(), "mine", exports.Entry{ID: "e1-abandoned", Kind: exports.KindAbandoned, Epoch: 1, At: now, Data: last})
			require.NoError(t, err)
			require.NoError(t, store.Close())
			for _, args := range [][]string{{"box", "history", "mine"}, {"box", "history", "mine", "-o", "json"}, {"fleet", "rebuild", "mine"}} {
				got := runIn(t, newFake(), data, "", args...)
				require.Equal(t, 0, got.code, got.stderr)
				require.Contains(t, got.stdout, tc.says, args)
				require.NotContains(t, got.stdout, tc.not, args)
			}
		})
	}
}

func TestAConfirmationSpeaksOfNoBoxThatNobodyKnows(t *testing.T) {
	t.Parallel()
	fake := newFake()
	f := fake.add("mine", box.StateCreating)
	f.Ref, f.AwakeSince, f.Scan = box.Ref{}, time.Time{}, nil
	asked := runWith(t, fake, "box", "delete", "mine")
	require.Equal(t, 0, asked.code, asked.stderr)
	require.Contains(t, asked.stdout, "no box of it is known")
	got := runWith(t, fake, "box", "confirm", "mine", "--token", f.Deletion.Token)
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "accepted: nobody knows of a box")
	require.NotContains(t, got.stdout, "the box is")
}

func TestHoldIsASignalAndIsShown(t *testing.T) {
	t.Parallel()
	fake := newFake()
	facts := fake.add("mine", box.StateRunning)
	fake.noWorker = true // the engine keeps it
	got := runWith(t, fake, "box", "hold", "mine", "--reason", "an incident", "--by", "ops")
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "an incident", facts.Hold.Reason)
	fake.noWorker = false
	facts.Former = []box.Former{{Ref: box.Ref{ID: "old", Epoch: 1}, Left: now, SeenAt: now, Phase: box.PhaseRunning}}
	shown := runWith(t, fake, "box", "show", "mine")
	require.Contains(t, shown.stdout, "by ops, because an incident: nothing is destroyed")
	require.Contains(t, shown.stdout, "The former box old of epoch 1 is there again")
	require.Contains(t, shown.stdout, "held, needs-attention")
	off := runWith(t, fake, "box", "hold", "mine", "--off", "-o", "json")
	require.Equal(t, 0, off.code, off.stderr)
	require.Contains(t, off.stdout, `"on": false`)
	require.Nil(t, facts.Hold)
}
