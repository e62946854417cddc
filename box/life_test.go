package box_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// noon is a fixed time in a zone whose date differs from UTC's for half the day.
func noon() time.Time {
	return time.Date(2026, 3, 1, 23, 30, 0, 0, time.FixedZone("east", 5*3600+1800)).UTC()
}

func row() box.Capabilities {
	return box.Capabilities{
		Driver: "test", Suspend: box.Yes, MemoryKept: box.No, SameIdentity: box.Yes, URLStable: box.Yes, KeyStable: box.Yes,
		LookingIsUse: box.No, List: box.Yes, Watch: box.Yes, ExportNeedsRunning: box.Yes, Fence: box.Yes, NativeIdle: box.No, NativeAdjust: box.No, Deepen: box.No, Adopt: box.Yes,
		Lead: box.LeadOurs, SuspendProof: "seen", DeleteProof: "seen",
	}
}

func spec() box.Spec {
	return box.Spec{Version: box.WireVersion, Workspace: "demo", Owner: "ana", Provider: "test"}
}

// failer is what tests and properties have in common.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world plays the provider and the agent-server for the rules: it answers each
// step as a box would, and can be told to fail.
type world struct {
	t     failer
	now   time.Time
	facts *box.Facts
	log   []box.StepKind
	turns int

	phase    box.Phase
	phaseAt  time.Time // since when; zero when the provider does not say
	native   box.Native
	nativeAt time.Time
	// nativeFixed is what the provider makes of every timer that it is told.
	nativeFixed box.Native
	exists      bool
	deep        bool // suspended without its memory, where that is kept at first
	events      int
	lastUse     time.Time
	running     int
	shut        time.Time          // until when the door is closed to new work
	deaf        bool               // the agent-server never answers
	plain       bool               // it does not tell what its history is
	badStore    bool               // exports do not verify
	archive     box.ArchiveReceipt // what an export holds of the files
	listeners   []box.Listener
	fail        map[box.StepKind]box.Class
	away        bool // no worker of the instance is up
	between     func(box.Step)
	stored      map[string]bool // digests the store holds

	made      int       // epoch of the box that is there
	stray     box.Phase // of the box with the id "stray", which nobody marked
	strayAge  time.Duration
	took      int // epoch that the stray box got
	lastEpoch int
	ledger    []box.LedgerEntry // as activities that never fail would write it
	crash     crashPoint        // where the workflow is lost in its next step
	unread    bool              // it was rebuilt and the box not read since
}

func newWorld(t failer, s box.Spec) *world {
	t.Helper()
	return newWorldAt(t, s, row())
}

// newWorldAt is newWorld at another kind of provider.
func newWorldAt(t failer, s box.Spec, c box.Capabilities) *world {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, now: noon(), fail: map[box.StepKind]box.Class{}, stored: map[string]bool{}}
	f := box.NewFacts(s, c, w.now)
	w.facts = &f
	return w
}

func (w *world) digest() string {
	return box.HistoryDigest([]box.ConversationMark{{ID: "c", Events: w.events}})
}

func (w *world) use() *box.Use {
	if w.plain {
		return &box.Use{IdleFor: box.Span(w.now.Sub(w.lastUse)), Running: w.running, Conversations: 1}
	}
	return &box.Use{IdleFor: box.Span(w.now.Sub(w.lastUse)), Running: w.running, Digest: w.digest(), Conversations: 1, Events: w.events}
}

func (w *world) seen() box.Observation {
	ref := box.Ref{Provider: "test", ID: fmt.Sprint("id-", max(w.made, 1)), Name: "n", Epoch: max(w.made, 1), Fingerprint: "here"}
	if !w.exists {
		return box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "absent twice"}
	}
	seen := box.Observation{Ref: ref, Phase: w.phase, Evidence: "the provider says " + string(w.phase)}
	if !w.phaseAt.IsZero() {
		seen.Age = box.Span(w.now.Sub(w.phaseAt))
	}
	if w.phase == box.PhaseSuspended {
		seen.MemoryKept = box.No
		if w.facts.Capabilities.MemoryKept == box.Yes && !w.deep {
			seen.MemoryKept = box.Yes
		}
	}
	if w.facts.Capabilities.NativeIdle == box.Yes {
		native := w.native
		seen.Native = &native
	}
	return seen
}

// outcome is what the activity of a step would answer, and who listens.
func (w *world) outcome(step box.Step) box.Outcome {
	out := w.answer(step)
	if out.Failed != nil {
		out.Failed.Listeners = w.listeners
	} else {
		out.Listeners = w.listeners
	}
	return out
}

func (w *world) answer(step box.Step) box.Outcome {
	if w.away && !step.AnyWorker {
		return box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, Message: "no worker serves test", NotBegun: true, Unserved: true}}
	}
	if class, bad := w.fail[step.Kind]; bad {
		return box.Outcome{Failed: &box.StepFailure{Class: class, Message: "as told"}}
	}
	failed := func(class box.Class, text string) box.Outcome {
		return box.Outcome{Failed: &box.StepFailure{Class: class, Message: text}}
	}
	inside := func() bool { return w.exists && w.phase == box.PhaseRunning && !w.deaf }
	switch step.Kind {
	case box.StepCreate:
		if w.made != w.facts.Epoch && w.facts.Epoch > 1 {
			w.events, w.running, w.shut = 0, 0, time.Time{} // a new one is empty
		}
		w.made = w.facts.Epoch
		w.exists, w.phase, w.lastUse, w.deep = true, box.PhaseRunning, w.now, false
		w.tell(w.facts.NativeWanted())
		return box.Outcome{Observation: w.seen(), Ready: !w.deaf}
	case box.StepAdopt:
		return w.adopted()
	case box.StepAbandon:
		return box.Outcome{}
	case box.StepObserve:
		seen := w.seen()
		if ref := w.facts.Ref; !ref.IsZero() && seen.Ref.Epoch != ref.Epoch { // another box of the workspace is there
			seen = box.Observation{Ref: ref, Phase: box.PhaseGone, Evidence: "absent twice"}
		}
		return box.Outcome{Observation: seen}
	case box.StepAdjust:
		w.tell(w.facts.NativeWanted())
		return box.Outcome{Observation: w.seen()}
	case box.StepAwaitReady:
		if !inside() {
			return failed(box.ClassUnavailable, "does not answer")
		}
		return box.Outcome{Observation: w.seen(), Ready: true}
	case box.StepResume:
		if !w.exists {
			return failed(box.ClassNotFound, "gone")
		}
		w.phase, w.shut, w.deep = box.PhaseRunning, time.Time{}, false
		if w.deaf {
			return failed(box.ClassUnavailable, "does not answer")
		}
		return box.Outcome{Observation: w.seen(), Ready: true}
	case box.StepSuspend:
		if !w.exists {
			return failed(box.ClassNotFound, "gone")
		}
		w.phase = box.PhaseSuspended
		return box.Outcome{Observation: w.seen()}
	case box.StepDeepen:
		switch {
		case !w.exists:
			return failed(box.ClassNotFound, "gone")
		case w.phase != box.PhaseSuspended:
			return failed(box.ClassFailedPrecondition, "it is "+string(w.phase))
		}
		w.deep = true
		return box.Outcome{Observation: w.seen()}
	case box.StepDelete:
		if !w.facts.Deletion.WithoutHistory && !w.facts.NeverReady() && w.changed() {
			return failed(box.ClassFailedPrecondition, "the history has changed")
		}
		w.exists = false
		return box.Outcome{Observation: w.seen()}
	case box.StepVerifyExport:
		if w.badStore {
			return box.Outcome{Problem: "an object is missing"}
		}
		if w.changed() {
			return box.Outcome{Problem: "the history has changed"}
		}
		return box.Outcome{}
	case box.StepNotify, box.StepRecord:
		return box.Outcome{}
	case box.StepQuiesce, box.StepScan, box.StepUndrain, box.StepReclaim, box.StepExport, box.StepRestore:
	case box.StepWait, box.StepFinish:
		w.t.Fatalf("%s has no activity", step.Kind)
	}
	if !inside() {
		return failed(box.ClassUnavailable, "does not answer")
	}
	switch {
	case step.Kind == box.StepUndrain:
		w.shut = time.Time{}
	case step.Ask == nil && (step.Kind == box.StepReclaim || step.Kind == box.StepExport):
		w.shut = w.now.Add(3 * time.Minute)
	}
	switch step.Kind {
	case box.StepQuiesce:
		if step.Purpose == box.PurposeIdle && (w.running > 0 || w.now.Sub(w.lastUse) < w.facts.Policy.Idle.Std()) {
			w.shut = time.Time{}
			return box.Outcome{Use: w.use(), Busy: "in use"}
		}
		w.running, w.shut = 0, w.now.Add(3*time.Minute)
		return box.Outcome{Use: w.use()}
	case box.StepScan:
		return box.Outcome{Use: w.use()}
	case box.StepRestore:
		w.events = w.facts.Restoring.Receipt.Events
		return box.Outcome{Use: w.use()}
	case box.StepReclaim:
		return box.Outcome{Reclaim: box.ReclaimReport{PlanID: fmt.Sprint("p", w.facts.Steps), FreedBytes: 1 << 20, RemovedBytes: 1 << 20}}
	case box.StepExport:
		w.stored[w.digest()] = true
		return box.Outcome{Receipt: box.Receipt{Workspace: "demo", Epoch: w.facts.Epoch, Key: "k", SHA256: "s", Conversations: 1, Events: w.events, Digest: w.digest(), Archive: w.archive}}
	}
	return box.Outcome{}
}

// adopted is what an adoption answers: of the lost box that is there again, of
// one that nobody marked, of one that is another's.
func (w *world) adopted() box.Outcome {
	refused := func(class box.Class, text string) box.Outcome {
		return box.Outcome{Failed: &box.StepFailure{Class: class, Message: text}}
	}
	ad := w.facts.Adopt
	switch {
	case ad.ID == "foreign":
		return refused(box.ClassFailedPrecondition, "it is marked as another workspace's")
	case ad.ID == "stray" && w.stray != "":
		w.exists, w.phase, w.made, w.events, w.lastUse, w.deep = true, w.stray, ad.Epoch, 7, w.now, false
		w.stray, w.took = "", ad.Epoch
	case ad.ID == "stray" && w.exists && w.made == w.took: // an earlier answer was lost
	case w.exists && ad.ID == w.seen().Ref.ID:
	default:
		return refused(box.ClassNotFound, "no box has this id")
	}
	out := box.Outcome{Observation: w.seen(), Ready: w.phase == box.PhaseRunning && !w.deaf}
	out.Observation.Age = box.Span(w.strayAge)
	return out
}

// tell sets the provider's own timers.
func (w *world) tell(n box.Native) {
	w.native, w.nativeAt = n, w.now
	if !w.nativeFixed.IsZero() {
		w.native = w.nativeFixed
	}
}

// changed is what the activities see right before a destruction: a box that is
// awake is shut and read once more.
func (w *world) changed() bool {
	if w.exists && w.facts.AwakeAtExport() && (w.phase == box.PhaseSuspended || w.phase == box.PhaseFailed) {
		return true
	}
	if !w.exists || w.phase != box.PhaseRunning {
		return false
	}
	w.shut = w.now.Add(3 * time.Minute)
	return w.digest() != w.facts.Receipt.Digest
}

// work is what an agent does in the box, where it can; told says whether we
// hear of it.
func (w *world) work(told bool) {
	if !w.exists || w.phase != box.PhaseRunning || w.deaf || w.now.Before(w.shut) {
		return
	}
	w.events++
	w.lastUse = w.now
	if told {
		w.facts.ReportActivity(box.ActivitySignal{Begun: []string{"op"}}, w.now)
	}
}

// settle runs steps until the box waits, and returns the wait.
func (w *world) settle() box.Step {
	w.t.Helper()
	for range 200 {
		step := w.turn()
		if step.Kind == box.StepWait || step.Kind == box.StepFinish {
			return step
		}
	}
	w.t.Fatalf("no rest after 200 steps in state %s: %v", w.facts.State, w.log[len(w.log)-20:])
	return box.Step{}
}

// turn makes one turn of the loop and checks what must hold in every turn.
func (w *world) turn() box.Step {
	w.t.Helper()
	w.facts.Advance(w.now)
	step := box.Next(w.facts, w.now)
	w.check(step)
	if step.Kind == box.StepWait || step.Kind == box.StepFinish {
		return step
	}
	w.log = append(w.log, step.Kind)
	w.facts.Begin(step, w.now)
	if w.lost(step, beforeIntent) {
		return step
	}
	w.intent(step)
	if w.lost(step, afterIntent) {
		return step
	}
	existed := w.exists
	out := w.outcome(step)
	if d := w.facts.Deletion; existed && !w.exists && !d.WithoutHistory && !w.facts.NeverReady() && !w.stored[w.digest()] {
		w.t.Fatalf("it is deleted and its newest history is nowhere%s", w.told())
	}
	if w.lost(step, afterProvider) {
		return step
	}
	w.entry(step, out)
	if w.lost(step, afterEntry) {
		return step
	}
	if w.between != nil { // signals and updates are taken while an activity runs
		w.between(step)
		if box.Interrupts(w.facts, step) {
			return step // the activity was cancelled
		}
	}
	w.facts.Apply(step, out, w.now)
	return step
}

func (w *world) check(step box.Step) {
	w.t.Helper()
	f := w.facts
	switch {
	case step.Kind == box.StepWait && !step.At.IsZero() && !step.At.After(w.now):
		w.t.Fatalf("in %s: a wait until %s is over at %s (%s)", f.State, step.At, w.now, step.Reason.Text)
	case step.Reason.Code == "" || step.Reason.Text == "":
		w.t.Fatalf("in %s: step %s has no reason", f.State, step.Kind)
	case step.Kind == box.StepWait && step.StoppedBy == "" && step.Reason.Code != box.ReasonFailed:
		w.t.Fatalf("in %s: nobody is named who can stop the wait %q", f.State, step.Reason.Text)
	}
	if d := f.Deletion; d != nil && d.Committed && step.Kind != box.StepDelete && step.Kind != box.StepFinish && step.Upcoming() != box.StepAbandon && step.Then != box.StepDelete &&
		(!d.Unclear || step.Upcoming() != box.StepObserve) && step.Upcoming() != box.StepRecord { // a reading ends the doubt, and changes nothing
		w.t.Fatalf("in %s: %s after the provider was told to destroy the box%s", f.State, step.Kind, w.told())
	}
	w.checkEpoch()
	if destroys := step.Kind == box.StepDelete || step.Kind == box.StepReclaim && (step.Ask == nil || !step.Ask.Reclaim.DryRun); f.Hold != nil && destroys {
		w.t.Fatalf("in %s: %s while a hold is on%s", f.State, step.Kind, w.told())
	}
	if step.Kind == box.StepDeepen && (f.Hold != nil || f.Frozen || f.ResumeWanted != nil || len(f.Holders) > 0) {
		w.t.Fatalf("in %s: the memory is given up of a box that is held, frozen or needed%s", f.State, w.told())
	}
	w.checkTime(step)
	if step.Kind == box.StepDelete && f.State != box.StateDeleting {
		d := f.Deletion
		covered := f.Scan != nil && f.Receipt.Covers(f.Epoch, f.Scan.Digest) && d.Verified
		if d == nil || !d.Confirmed || (!covered && !d.WithoutHistory && !f.NeverReady()) {
			w.t.Fatalf("a deletion without consent or without a verified export: %+v", d)
		}
		if lacks := lacking(f.Receipt.Archive); lacks != "" && covered && f.Receipt.Epoch == f.Epoch && !d.WithoutHistory && (d.ByPolicy || d.Unheld != lacks) {
			w.t.Fatalf("what no export holds of the workspace was not shown: %s, %+v%s", lacks, d, w.told())
		}
	}
	if w.exists && w.phase == box.PhaseSuspended {
		switch step.Kind {
		case box.StepScan, box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepAwaitReady:
			if f.State == box.StateSuspended || f.State == box.StateAwaitingConfirm || f.State == box.StateUndoWindow {
				w.t.Fatalf("%s would look into a suspended box", step.Kind)
			}
		}
	}
	if w.turns++; w.turns%4 != 1 { // the slowest of the checks
		return
	}
	data, err := json.Marshal(f)
	if err != nil {
		w.t.Fatal(err)
	}
	var back box.Facts
	if err := json.Unmarshal(data, &back); err != nil {
		w.t.Fatalf("facts do not survive JSON: %v in %s", err, data)
	}
	if again := box.Next(&back, w.now); !reflect.DeepEqual(again, step) {
		w.t.Fatalf("the next step changes across JSON:\n%+v\n%+v", step, again)
	}
}

// checkEpoch checks that an epoch never goes back and that nothing of another
// one is left.
func (w *world) checkEpoch() {
	w.t.Helper()
	f := w.facts
	if f.Epoch < w.lastEpoch || f.Epochs != 0 && f.Epochs < f.Epoch {
		w.t.Fatalf("the epoch went from %d to %d (%d given out)%s", w.lastEpoch, f.Epoch, f.Epochs, w.told())
	}
	w.lastEpoch = f.Epoch
	for _, h := range f.Holders {
		if h.Epoch != f.Epoch {
			w.t.Fatalf("a hold of epoch %d is alive in %d", h.Epoch, f.Epoch)
		}
	}
	if d := f.Deletion; d != nil && d.Epoch != f.Epoch {
		w.t.Fatalf("a deletion of epoch %d is alive in %d", d.Epoch, f.Epoch)
	}
	if !f.Ref.IsZero() && f.Ref.Epoch != f.Epoch {
		w.t.Fatalf("the box is of epoch %d in %d", f.Ref.Epoch, f.Epoch)
	}
	if f.Spec.Adopt != "" && f.Epoch == 1 && w.did(box.StepCreate) > 0 {
		w.t.Fatalf("a start that adopts created a box%s", w.told())
	}
}

// checkTime checks that a deadline does not come closer by itself, and that
// what people read is what is armed.
func (w *world) checkTime(step box.Step) {
	w.t.Helper()
	status, why := w.facts.StatusAt(w.now), w.facts.WhyAt(w.now)
	due := step.At
	step = w.facts.Armed(step)
	if late := step.At.Sub(due); late != 0 && (late < 0 || late > 20*time.Second || step.Purpose != box.PurposeIdle) {
		w.t.Fatalf("%s is armed %s after it is due", step.Upcoming(), late)
	}
	if status.Next != step.Upcoming() || !status.NextAt.Equal(step.At) || why.Next != step.Upcoming() || !why.NextAt.Equal(step.At) ||
		why.NextReason != step.Reason || why.StoppedBy != step.StoppedBy || why.State != w.facts.State || status.State != w.facts.State {
		w.t.Fatalf("armed is %+v, and people read %s at %s, %+v", step, status.Next, status.NextAt, why)
	}
	if step.Kind != box.StepWait || step.At.IsZero() {
		return
	}
	for _, at := range []time.Time{w.now.Add(due.Sub(w.now) / 2), due.Add(-1)} {
		if !at.After(w.now) {
			continue
		}
		if later := box.Next(w.facts, at); later.Kind != box.StepWait || later.At.Before(due) {
			w.t.Fatalf("in %s: a wait until %s became %s until %s at %s", w.facts.State, due, later.Kind, later.At, at)
		}
	}
}

// until lets time pass to the end of the wait, or for d when nothing is armed.
func (w *world) until(step box.Step, d time.Duration) {
	if step.At.IsZero() {
		w.now = w.now.Add(d)
		return
	}
	w.now = step.At
}

func (w *world) state(want box.State) {
	w.t.Helper()
	if w.facts.State != want {
		w.t.Fatalf("state is %s, want %s; transitions: %s", w.facts.State, want, w.told())
	}
}

func (w *world) told() string {
	text := ""
	for _, t := range w.facts.Transitions {
		text += fmt.Sprintf("\n  %s %s: %s (%s)", t.At.Format(time.RFC3339), t.To, t.Reason.Text, t.Reason.Code)
	}
	return text
}

func (w *world) connect(holder string) {
	w.t.Helper()
	r := box.ConnectRequest{Request: box.Request{ID: fmt.Sprintf("c-%d-%s", w.now.UnixNano(), holder), By: "ana"}, HolderID: holder}
	if err := w.facts.CheckConnect(r); err != nil {
		w.t.Fatal(err)
	}
	w.facts.Connect(r, w.now)
}

// toSuspended brings a new box to suspended by its idle timer.
func (w *world) toSuspended() box.Step {
	w.t.Helper()
	w.until(w.settle(), 0)
	step := w.settle()
	w.state(box.StateSuspended)
	return step
}

// toAwaiting brings a new box to the end of its paused TTL.
func (w *world) toAwaiting() box.Step {
	w.t.Helper()
	w.until(w.toSuspended(), 0) // notice
	w.until(w.settle(), 0)      // expiry
	step := w.settle()
	w.state(box.StateAwaitingConfirm)
	return step
}

func (w *world) requestDelete() box.Loss {
	w.t.Helper()
	r := box.RequestDeleteAsk{Request: box.Request{ID: fmt.Sprintf("d-%d", w.now.UnixNano()), By: "ana"}}
	if err := w.facts.CheckRequestDelete(r); err != nil {
		w.t.Fatal(err)
	}
	if w.facts.ScanBeforeDelete() {
		w.facts.Queue(box.Ask{Kind: box.AskScan, ID: "scan:" + r.ID})
		w.settle()
	}
	return w.facts.RequestDelete(r, w.now)
}

func TestWholeLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.settle()
	w.state(box.StateRunning)
	w.connect("tab")
	w.events, w.lastUse = 3, w.now
	w.now = w.now.Add(time.Minute)
	w.facts.Release("tab", w.now)
	idle := w.settle()
	if got := idle.At.Sub(w.now); got != 15*time.Minute {
		t.Fatalf("idle deadline is %s after the release, want 15m", got)
	}
	w.until(idle, 0)
	notice := w.settle()
	w.state(box.StateSuspended)
	if got := notice.At.Sub(w.now); got != 27*24*time.Hour {
		t.Fatalf("notice is %s after the suspend, want 27 days", got)
	}
	w.connect("tab") // wakes
	w.settle()
	w.state(box.StateRunning)
	w.facts.Release("tab", w.now)
	w.until(w.settle(), 0)
	notice = w.settle()
	w.state(box.StateSuspended)
	w.until(notice, 0)
	expiry := w.settle()
	w.until(expiry, 0)
	w.settle()
	w.state(box.StateAwaitingConfirm)
	loss := w.requestDelete()
	if !loss.Covered || loss.Conversations != 1 || loss.Events != 3 || loss.Undo != box.Duration(24*time.Hour) {
		t.Fatalf("loss %+v", loss)
	}
	w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
	undo := w.settle()
	w.state(box.StateUndoWindow)
	w.until(undo, 0)
	if end := w.settle(); end.Kind != box.StepFinish || w.exists {
		t.Fatalf("end %+v, box exists %v", end, w.exists)
	}
	w.state(box.StateBoxArchived)
	want := []box.StepKind{
		box.StepCreate, box.StepQuiesce, box.StepReclaim, box.StepExport, box.StepSuspend, box.StepResume,
		box.StepQuiesce, box.StepReclaim, box.StepSuspend, box.StepNotify, box.StepNotify, box.StepVerifyExport, box.StepDelete,
	}
	if !reflect.DeepEqual(w.log, want) {
		t.Fatalf("steps %v\nwant %v", w.log, want)
	}
}
