package activities_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// marked are the marks of a workspace in some state.
func marked(state box.State, change func(*box.Marks)) *box.Marks {
	at := time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)
	f := box.NewFacts(spec(), box.Capabilities{}, at)
	f.State = state
	m := f.Marks(at)
	if change != nil {
		change(m)
	}
	return m
}

// said reads the workspace out of its ledger.
func (r *rig) said() box.Facts {
	r.t.Helper()
	entries, err := r.store.Ledger(r.t.Context(), workspace)
	if err != nil {
		r.t.Fatal(err)
	}
	f, _, err := box.Rebuild(workspace, entries)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// What the activities write is what the rules rebuild a workspace from.
func TestTheLedgerSaysHowTheWorkspaceIs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in := creating("e1-s1")
	in.Marks = marked(box.StateCreating, nil)
	ref := do(r, r.boxes.Create, in).Observation.Ref
	said := r.said()
	if said.State != box.StateStarting || said.Ref != ref || said.Spec.Owner != "ana" || said.Capabilities.Driver != r.boxes.Provider.Capabilities().Driver {
		t.Errorf("after the create: %s %+v %+v", said.State, said.Ref, said.Capabilities)
	}
	r.write(agentservertest.Conversation{Events: events(3)})
	target := activities.Target{Workspace: workspace, Ref: ref, Step: "e1-s2"}
	receipt := do(r, r.boxes.Export, activities.ExportInput{Target: target}).Receipt
	target.Step = "e1-s3"
	target.Marks = marked(box.StateSuspending, func(m *box.Marks) {
		m.Ref, m.Receipt, m.Kept = ref, receipt, true
		m.Scan = &box.Scan{Digest: receipt.Digest}
		m.Sequence = &box.Sequence{Purpose: box.PurposeIdle, Looked: true, Exported: true}
	})
	do(r, r.boxes.Suspend, target)
	said = r.said()
	if said.State != box.StateSuspended || said.SuspendedSince.IsZero() || said.Receipt != receipt || !said.Kept || !said.StatusAt(said.SuspendedSince).ExportCovers {
		t.Errorf("after the suspend: %+v", said)
	}
	due := said.SuspendedSince.Add(30 * 24 * time.Hour)
	target.Step, target.Marks = "e1-s4", said.Marks(said.SuspendedSince)
	do(r, r.boxes.SendNotice, activities.NoticeInput{Posting: box.Posting{Workspace: workspace}, Due: due, Ledger: &target})
	if said = r.said(); !said.NoticedFor.Equal(due) {
		t.Errorf("people were told of %s, the ledger says %s", due, said.NoticedFor)
	}
	target.Step, target.Marks = "e1-s5", said.Marks(said.SuspendedSince)
	target.Marks.Kept, target.Marks.Frozen = false, true
	for range 2 {
		do(r, r.boxes.Record, target)
	}
	if said = r.said(); said.Kept || !said.Frozen {
		t.Errorf("after the record: kept %v, frozen %v", said.Kept, said.Frozen)
	}
	if got := r.ledger(); !slices.Equal(got[len(got)-2:], []string{"noticed/e1-s4-noticed", "marks/e1-s5-marks"}) {
		t.Errorf("the ledger holds %v", got)
	}
}

// A reminder is no fact that a rebuild needs, and what people are told does not
// carry what the ledger is told.
func TestNoticesCarryNoMarks(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	heard := &heard{}
	r.boxes.Notify = heard
	do(r, r.boxes.SendNotice, activities.NoticeInput{Posting: box.Posting{Workspace: workspace}})
	target := activities.Target{Workspace: workspace, Step: "s", Marks: marked(box.StateSuspended, nil)}
	do(r, r.boxes.SendNotice, activities.NoticeInput{Posting: box.Posting{Workspace: workspace}, Due: time.Now(), Ledger: &target})
	if len(heard.all) != 2 {
		t.Errorf("people heard %+v", heard.all)
	}
	if got := r.ledger(); !slices.Equal(got, []string{"noticed/s-noticed"}) {
		t.Errorf("the ledger holds %v", got)
	}
	heard.err = box.Errorf(box.ClassUnavailable, "nobody listens")
	target.Step = "s2"
	fails(r, box.ClassUnavailable, r.boxes.SendNotice, activities.NoticeInput{Posting: box.Posting{Workspace: workspace}, Due: time.Now(), Ledger: &target})
	if got := r.ledger(); len(got) != 1 {
		t.Errorf("people were not told, and the ledger holds %v", got)
	}
}

type heard struct {
	all []box.Posting
	err error
}

func (*heard) Listeners() []box.Listener { return nil }

func (h *heard) Deliver(_ context.Context, p box.Posting) ([]box.Delivery, error) {
	h.all = append(h.all, p)
	return nil, h.err
}

// A ledger refuses what looks like a secret. That must not keep a box from being
// suspended, whatever somebody wrote as their name.
func TestWordsThatLookLikeASecretAreLeftOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	target := r.made("e1-s2")
	const planted = "sk-abcdefghijklmnopqrstuvwxyz"
	target.Marks = marked(box.StateSuspending, func(m *box.Marks) {
		m.Because.Text, m.Sequence = "it said "+planted, &box.Sequence{Purpose: box.PurposeIdle, Skips: []string{planted}}
		m.Deletion, m.Kept = &box.Deletion{By: planted, ConfirmedBy: planted, Token: "t"}, true
	})
	do(r, r.boxes.Suspend, target)
	entries, err := r.store.Ledger(t.Context(), workspace)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(entries)
	if strings.Contains(string(text), planted) {
		t.Errorf("the ledger holds it: %s", text)
	}
	if said := r.said(); !said.Kept || said.State != box.StateSuspended || said.Deletion == nil || said.Deletion.Token != "t" {
		t.Errorf("the rest was left out too: %+v", said)
	}
}

// Rule 32: epochs never go back, and a workspace that was closed while its
// create was on its way gets no box.
func TestScenario76CreateAsksTheLedgerRightBeforeTheProvider(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		entry exports.Entry
		says  string
	}{
		"closed meanwhile": {exports.Entry{ID: "t", Kind: exports.KindDeleted, Epoch: 1}, "stays closed"},
		"a later box":      {exports.Entry{ID: "x", Kind: exports.KindCreated, Epoch: 2}, "fleet rebuild"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			in := creating("e1-s1")
			intent := exports.Entry{ID: in.Step + "-create-intent", Kind: exports.KindCreateIntent, Epoch: 1}
			for _, e := range []exports.Entry{intent, row.entry} { // the intent of a first try, which repeats as success
				if _, err := r.store.AppendLedger(t.Context(), workspace, e); err != nil {
					t.Fatal(err)
				}
			}
			failure := fails(r, box.ClassFailedPrecondition, r.boxes.Create, in)
			if !strings.Contains(failure.Message, row.says) || failure.NotBegun || r.calls(fakebox.OpCreate) != 0 {
				t.Errorf("it says %q, not begun %v; the provider was asked %d times", failure.Message, failure.NotBegun, r.calls(fakebox.OpCreate))
			}
		})
	}
}

// The tombstone was written and the answer was lost: the next try is success,
// though a closed ledger takes no new intent.
func TestADeleteWhoseAnswerWasLostEndsWithItsTombstone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	in, _ := r.exported()
	first := do(r, r.boxes.Delete, in)
	calls := r.calls(fakebox.OpDelete)
	in.Step = "e1-s9"
	again := do(r, r.boxes.Delete, in)
	if again.Observation.Phase != box.PhaseGone || again.Observation.Evidence != first.Observation.Evidence || r.calls(fakebox.OpDelete) != calls {
		t.Errorf("the answer is %+v after %d calls", again.Observation, r.calls(fakebox.OpDelete))
	}
	fails(r, box.ClassFailedPrecondition, r.boxes.Record, activities.Target{Workspace: workspace, Ref: in.Ref, Step: "e1-s10", Marks: marked(box.StateRunning, nil)})
}

// A workflow that was started anew after the loss of the engine, and whose create
// failed, must not close the workspace over the box of the one before.
func TestABoxOfALostWorkflowIsNotTakenForOneThatNobodySaw(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	do(r, r.boxes.Create, creating("e1-s1-0ld0ld00"))
	in := activities.DeleteInput{Target: activities.Target{Workspace: workspace, Step: "e1-s2-new0new0"}, Spec: spec(), Epoch: 1, NeverReady: true, By: "ana"}
	failure := fails(r, box.ClassFailedPrecondition, r.boxes.Delete, in)
	if !strings.Contains(failure.Message, "fleet rebuild demo") || r.calls(fakebox.OpDelete) != 0 || r.phase() != box.PhaseRunning {
		t.Errorf("it says %q; the provider says %s", failure.Message, r.phase())
	}
	in.Step = "e1-s2-0ld0ld00" // its own, which never answered
	do(r, r.boxes.Delete, in)
	if r.phase() != box.PhaseGone {
		t.Errorf("the provider says %s", r.phase())
	}

	r = newRig(t, nil)
	do(r, r.boxes.Create, creating("e1-s1-0ld0ld00"))
	if _, err := r.store.AppendLedger(t.Context(), workspace, exports.Entry{ID: "e2-s4-0ld0ld00-created", Kind: exports.KindCreated, Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	in.WithoutHistory = true // an accepted loss is one of this box, not of the next
	fails(r, box.ClassFailedPrecondition, r.boxes.Delete, in)
}

// The engine forgot who had the id: the ledger did not, and neither the create
// nor the delete of somebody else reaches the box that is there.
func TestAnIdOfAnotherOwnerIsNotTakenOver(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*box.Spec){
		"another owner":    func(s *box.Spec) { s.Owner = "eve" },
		"nobody in person": func(s *box.Spec) { s.Owner = "" },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			do(r, r.boxes.Create, creating("e1-s1-aaaaaaaa"))
			r.write(agentservertest.Conversation{Events: events(3)})
			in := creating("e1-s1-bbbbbbbb")
			change(&in.Spec)
			before := r.calls(fakebox.OpCreate)
			failure := fails(r, box.ClassFailedPrecondition, r.boxes.Create, in)
			for _, entry := range r.ledger() {
				if strings.Contains(entry, "bbbbbbbb") {
					t.Errorf("the ledger of the first owner records %s", entry)
				}
			}
			if !strings.Contains(failure.Message, "another owner's") || r.calls(fakebox.OpCreate) != before {
				t.Errorf("it says %q after %d calls", failure.Message, r.calls(fakebox.OpCreate)-before)
			}
			fails(r, box.ClassFailedPrecondition, r.boxes.Delete, activities.DeleteInput{
				Target: activities.Target{Workspace: workspace, Step: "e1-s2-bbbbbbbb"}, Spec: in.Spec, Epoch: 1, NeverReady: true, By: "eve",
			})
			if r.phase() != box.PhaseRunning || r.calls(fakebox.OpDelete) != 0 {
				t.Errorf("the first owner's box is %s", r.phase())
			}
		})
	}
}
