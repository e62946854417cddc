package box_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// lost brings a box with an exported history to lost.
func lost(t *testing.T, change ...func(*box.Spec)) *world {
	t.Helper()
	w := awake(t, change...)
	w.events = 5
	w.toSuspended()
	require.Equal(t, 5, w.facts.Receipt.Events)
	w.vanish()
	w.state(box.StateLost)
	return w
}

func (w *world) replace(id string) box.ActionAnswer {
	w.t.Helper()
	r := box.Request{ID: id, By: "ana"}
	if err := w.facts.CheckReplace(r); err != nil {
		w.t.Fatal(err)
	}
	return w.facts.Replace(r, w.now)
}

func (w *world) restore(id string) box.ActionAnswer {
	w.t.Helper()
	r := box.RestoreAsk{Request: box.Request{ID: id, By: "ana"}}
	if err := w.facts.CheckRestore(r); err != nil {
		w.t.Fatal(err)
	}
	return w.facts.Restore(r, w.now)
}

func refused(t *testing.T, err error, class box.Class, says ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, class, box.ClassOf(err), err)
	for _, text := range says {
		require.ErrorContains(t, err, text)
	}
}

func TestALostBoxWaitsForAPerson(t *testing.T) {
	t.Parallel()
	w := lost(t)
	r := box.Request{ID: "r"}
	for _, err := range []error{w.facts.CheckConnect(box.ConnectRequest{Request: r, HolderID: "h"}), w.facts.CheckResume(r)} {
		refused(t, err, box.ClassFailedPrecondition, "restore", "replace", "request-delete")
	}
	w.pass(90 * day)
	w.state(box.StateLost)
	require.Equal(t, 1, w.did(box.StepCreate), "nothing is replaced silently")
}

func TestReplaceGivesAnEmptyBoxInTheNextEpoch(t *testing.T) {
	t.Parallel()
	w := lost(t)
	old := w.facts.Receipt
	loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}}, w.now)
	w.replace("r")
	w.settle()
	w.state(box.StateRunning)
	f := w.facts
	require.Equal(t, 2, f.Epoch)
	require.Equal(t, 2, f.Ref.Epoch)
	require.Equal(t, 0, w.events)
	require.Equal(t, old, f.StatusAt(w.now).Export, "the receipt of the old epoch stays readable")
	require.False(t, f.StatusAt(w.now).ExportCovers, "and covers nothing of the new one")
	w.confirm(loss.Token)
	require.False(t, f.Confirmation.Accepted, "a token of the old epoch confirms nothing")
	require.Nil(t, f.Deletion)
	w.facts.ReportActivity(box.ActivitySignal{Begun: []string{"op"}, Epoch: 1}, w.now)
	require.Empty(t, f.Holders, "use of the old box holds nothing awake")
	w.facts.ReportActivity(box.ActivitySignal{Begun: []string{"op"}, Epoch: 2}, w.now)
	require.Len(t, f.Holders, 1)
	w.replace("r") // a late repeat
	require.Equal(t, 2, f.Epoch)
	refused(t, f.CheckReplace(box.Request{ID: "again"}), box.ClassFailedPrecondition, "running", "request-delete")
}

func TestScenario37ANewBoxHasDeadlinesFromItsPolicy(t *testing.T) {
	t.Parallel()
	for what, begin := range map[string]func(*world){
		"replaced": func(w *world) { w.replace("r") },
		"restored": func(w *world) { w.restore("r") },
		"adopted":  func(w *world) { w.stray = box.PhaseRunning; w.adopt("a", "stray") },
	} {
		w := lost(t)
		w.now = w.now.Add(100 * day)
		begin(w)
		step := w.settle()
		w.state(box.StateRunning)
		require.Equal(t, idle, step.At.Sub(w.now), what)
		require.Equal(t, w.now, w.facts.AwakeSince, what)
	}
}

func TestScenario38ANewBoxDoesNotInheritTheOldOnesLastUse(t *testing.T) {
	t.Parallel()
	w := lost(t)
	before := w.facts.LastUse
	w.now = w.now.Add(65 * time.Minute)
	w.restore("r")
	w.settle()
	w.now = w.now.Add(7 * time.Second)
	step := w.settle()
	w.state(box.StateRunning)
	require.Equal(t, box.StepWait, step.Kind)
	require.True(t, w.facts.LastUse.After(before.Add(time.Hour)))
}

func TestScenario39ANewBoxKeepsThePolicyInForce(t *testing.T) {
	t.Parallel()
	w := lost(t, func(s *box.Spec) { s.Policy.MaxRun = box.Duration(day) })
	w.policy("p", box.Policy{Idle: box.Duration(3 * time.Hour)})
	w.restore("r")
	step := w.settle()
	require.Equal(t, 3*time.Hour, step.At.Sub(w.now))
	require.Equal(t, box.Duration(day), w.facts.Policy.MaxRun)
	spec := w.facts.SpecNow()
	require.Equal(t, box.Duration(day), spec.Policy.MaxRun, "and the provider is told the same")
	require.Equal(t, box.Duration(3*time.Hour), spec.Policy.Idle)
}

func TestRestorePutsTheHistoryBackBeforeAnyoneGetsIn(t *testing.T) {
	t.Parallel()
	w := lost(t)
	w.restore("r")
	w.connect("tab") // waits like everybody
	step := w.step(box.StepRestore)
	w.state(box.StateStarting)
	require.NotZero(t, w.facts.Connect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "tab"}, w.now).RetryAfter)
	w.finish(step)
	w.settle()
	w.state(box.StateRunning)
	require.Equal(t, 5, w.events)
	status := w.facts.StatusAt(w.now)
	require.Equal(t, box.ReasonRestored, status.Reason.Code)
	require.Equal(t, 5, status.Events)
	require.Nil(t, w.facts.Restoring)
	w.facts.Release("tab", w.now)
	w.toSuspended()
	require.Equal(t, 2, w.facts.Receipt.Epoch, "the new epoch has an export of its own")
}

func TestTheNotesOfARestoreAreCutOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		given, more int
		told        string
	}{
		"as many as are told":              {5, 0, "; note 5"},
		"one more":                         {6, 0, "; note 5; and 1 more"},
		"a hundred, and some beside them":  {100, 30, "; note 5; and 125 more"},
		"some, and some beside them":       {2, 30, "; note 2; and 30 more"},
		"a box that counts less than none": {2, -3, "; note 2"},
	} {
		w := lost(t)
		w.restore("r")
		step := w.step(box.StepRestore)
		out := w.outcome(step)
		for i := range c.given {
			out.Notes = append(out.Notes, fmt.Sprintf("note %d", i+1))
		}
		// As a worker passes it on.
		out.Notes, out.MoreNotes = box.ToldNotes(out.Notes, c.more)
		w.facts.Apply(step, out, w.now)
		text := w.facts.StatusAt(w.now).Reason.Text
		require.True(t, strings.HasSuffix(text, c.told), "%s: %s", name, text)
	}
}

func TestRestoreNeedsAnExport(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.vanish()
	w.state(box.StateLost)
	refused(t, w.facts.CheckRestore(box.RestoreAsk{Request: box.Request{ID: "r"}}), box.ClassFailedPrecondition, "replace")
}

// What a person restores is of the newest epoch that has an export, also when
// an older one holds more; the older one stays where it is.
func TestScenario82TheNewestEpochIsRestored(t *testing.T) {
	t.Parallel()
	w := lost(t)
	first := w.facts.Receipt
	w.replace("r")
	w.settle()
	w.events = 2
	w.toSuspended()
	second := w.facts.Receipt
	require.Equal(t, 2, second.Epoch)
	require.Less(t, second.Events, first.Events)
	w.vanish()
	w.restore("s")
	w.settle()
	w.state(box.StateRunning)
	require.Equal(t, 3, w.facts.Epoch)
	require.Equal(t, 2, w.events)
	require.Zero(t, w.did(box.StepDelete))
}

func TestScenario90ASuccessorThatCannotBeMadeIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := lost(t)
	receipt := w.facts.Receipt
	w.restore("r")
	w.failed(w.step(box.StepCreate), box.ClassInvalid)
	w.settle()
	w.state(box.StateCreateFailed)
	require.Equal(t, receipt, w.facts.Receipt)
	require.Contains(t, w.facts.StatusAt(w.now).Reason.Text, "resume tries the restore again")
	w.facts.Resume(box.Request{ID: "again"}, w.now)
	w.settle()
	w.state(box.StateRunning)
	require.Equal(t, 5, w.events)
	require.Equal(t, 2, w.facts.Epoch)
}

func TestARestoreThatFails(t *testing.T) {
	t.Parallel()
	t.Run("costs nothing for ever, and is taken up again at the next wake", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.fail[box.StepRestore] = box.ClassUnsupported
		w.restore("r")
		w.pass(2 * time.Hour)
		w.state(box.StateSuspended)
		require.Equal(t, box.PhaseSuspended, w.phase)
		w.connect("tab")
		w.pass(10 * time.Second)
		w.state(box.StateStarting)
		require.Contains(t, w.facts.StatusAt(w.now).Failure.Message, "as told")
		delete(w.fail, box.StepRestore)
		w.pass(10 * time.Minute)
		require.Equal(t, 5, w.events)
		require.Nil(t, w.facts.Restoring)
	})
	t.Run("is given up when a person takes the box as it is", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.fail[box.StepRestore] = box.ClassUnsupported
		w.restore("r")
		w.failed(w.step(box.StepRestore), box.ClassUnsupported)
		require.Contains(t, w.replace("s").Text, "as it is")
		w.settle()
		w.state(box.StateRunning)
		require.Equal(t, 2, w.facts.Epoch)
		require.Zero(t, w.events)
	})
	t.Run("gives way to a deletion", func(t *testing.T) {
		t.Parallel()
		w := lost(t)
		w.restore("r")
		step := w.step(box.StepRestore)
		w.confirm(w.requestDelete().Token)
		w.finish(step)
		w.settle()
		w.state(box.StateBoxArchived)
		require.False(t, w.exists)
	})
}

func TestUnknownIsNotGoneForAFormerBox(t *testing.T) {
	t.Parallel()
	w := lost(t)
	old := w.facts.Ref
	w.replace("r")
	w.settle()
	steps := len(w.log)
	see := func(ref box.Ref, phase box.Phase) bool {
		return w.facts.ObserveFormer(box.ObservedSignal{Observation: box.Observation{Ref: ref, Phase: phase}}, w.now)
	}
	require.False(t, w.facts.NeedsAttention())
	require.True(t, see(old, box.PhaseUnknown))
	require.False(t, w.facts.NeedsAttention(), "a reading that says nothing is no sight")
	for range 3 {
		require.True(t, see(old, box.PhaseRunning))
	}
	status := w.facts.StatusAt(w.now)
	require.Contains(t, status.Flags, "needs-attention")
	require.Equal(t, box.StateRunning, status.State)
	require.Equal(t, box.ReasonSeenAgain, status.Reason.Code)
	require.Equal(t, w.now, status.Former[0].SeenAt)
	told := 0
	for _, tr := range w.facts.Transitions {
		if tr.Reason.Code == box.ReasonSeenAgain {
			told++
		}
	}
	require.Equal(t, 1, told, "it is told once")
	w.settle()
	require.Len(t, w.log, steps, "and never touched")
	require.True(t, see(old, box.PhaseGone))
	require.False(t, w.facts.NeedsAttention())
	require.False(t, see(w.facts.Ref, box.PhaseRunning), "the present box is not a former one")
	elsewhere := old
	elsewhere.Fingerprint = "another account"
	require.False(t, see(elsewhere, box.PhaseRunning))
}

func TestFormerBoxesAreBounded(t *testing.T) {
	t.Parallel()
	w := lost(t)
	for i := range 20 {
		w.replace(fmt.Sprint("r", i))
		w.settle()
		w.vanish()
	}
	require.Equal(t, 21, w.facts.Epoch)
	require.Len(t, w.facts.Former, 8)
	require.Equal(t, 20, w.facts.Former[7].Ref.Epoch)
}

func TestALostBoxThatIsReadAgainIsNotReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	w := lost(t)
	w.exists, w.phase = true, box.PhaseRunning
	w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
	for _, err := range []error{
		w.facts.CheckReplace(box.Request{ID: "r"}), w.facts.CheckRestore(box.RestoreAsk{Request: box.Request{ID: "r"}}),
		w.facts.CheckAdopt(box.AdoptAsk{Request: box.Request{ID: "a"}, BoxID: "stray"}),
	} {
		refused(t, err, box.ClassConflict, "again")
	}
	w.settle()
	require.NotEqual(t, box.StateLost, w.facts.State)
	require.Equal(t, 1, w.facts.Epoch)
}

// A create that ended without an answer may have made a box: a new epoch would
// leave it forgotten.
func TestAnUnclearCreationIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.failed(w.step(box.StepCreate), box.ClassDeadlineExceeded)
	w.now = w.now.Add(time.Hour)
	w.failed(w.step(box.StepCreate), box.ClassInvalid)
	w.state(box.StateCreateFailed)
	refused(t, w.facts.CheckReplace(box.Request{ID: "r"}), box.ClassFailedPrecondition, "resume")
	refused(t, w.facts.CheckAdopt(box.AdoptAsk{Request: box.Request{ID: "r"}, BoxID: "stray"}), box.ClassFailedPrecondition, "resume")
}

// TestEveryFactIsOfTheBoxOrOfTheWorkspace fails for a new field until it is
// said here whether a new epoch begins without it.
func TestEveryFactIsOfTheBoxOrOfTheWorkspace(t *testing.T) {
	t.Parallel()
	workspace := []string{
		"Spec", "Policy", "Capabilities", "Epoch", "Epochs", "State", "StateSince", "Receipt", "ReceiptAt", "Reclaimed", "Passes", "Results",
		"DeletionCount", "Confirmation", "Adopt", "Restoring", "Abandonment", "Former", "Hold", "Kept", "Frozen", "Steps", "Unserved", "Seen",
		"Transitions", "Decided", "Outbox", "Began", "Durable", "Recording", "Recorded",
	}
	w := lost(t)
	f := *w.facts
	value := reflect.ValueOf(&f).Elem()
	for i := range value.NumField() {
		name := value.Type().Field(i).Name
		if slices.Contains(workspace, name) {
			continue
		}
		fill(value.Field(i))
		require.False(t, value.Field(i).IsZero(), name)
	}
	f.Look, f.Deletion.Epoch, f.Asks = false, f.Epoch, []box.Ask{{Kind: box.AskExport, ID: "ask"}}
	require.NoError(t, f.CheckReplace(box.Request{ID: "r"}))
	f.Replace(box.Request{ID: "r"}, w.now)
	for i := range value.NumField() {
		field := value.Field(i)
		if name := value.Type().Field(i).Name; !slices.Contains(workspace, name) {
			require.True(t, field.IsZero() || field.Kind() == reflect.Slice && field.Len() == 0, "%s of the old box is still %v", name, value.Field(i).Interface())
		}
	}
	require.NotEmpty(t, f.Results, "what was asked of the old box is answered")
}

// fill sets a value to something that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(3)
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(noon()))
			return
		}
		for _, field := range v.Fields() {
			fill(field)
		}
	default:
		panic("fill does not know " + v.Kind().String())
	}
}

// Whatever carried it here, a hold, a deletion or a confirmation of another
// epoch is nothing.
func TestWhatIsOfAnotherEpochIsStale(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.connect("tab")
	w.facts.Holders[0].Epoch = 7
	w.facts.Advance(w.now)
	require.Empty(t, w.facts.Holders)
	loss := w.requestDelete()
	w.facts.Deletion.Epoch = 7
	w.confirm(loss.Token)
	w.refusedWith(box.ReasonRefused)
	w.facts.Deletion.Confirmed = true
	next := box.Next(w.facts, w.now)
	require.Equal(t, box.StepWait, next.Kind, next.Reason.Text)
}

// What an export is known to lack is a person's to accept, before a box is made.
func TestAnIncompleteExportIsRestoredWhenSomebodyAcceptsIt(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		archive     box.ArchiveReceipt
		says, gives string
	}{
		"something could not be read": {box.ArchiveReceipt{Bytes: 1, Files: 2, Missing: 3}, "3 things in the workspace", "with 2 files of the workspace, without 3 things"},
		"one thing could not be read": {box.ArchiveReceipt{Bytes: 1, Files: 2, Missing: 1}, "1 thing in the workspace", "without 1 thing"},
		"no files at all":             {box.ArchiveReceipt{None: "its agent-server cannot"}, "lacks the files in the workspace", "without files"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := lost(t)
			w.facts.Receipt.Archive = row.archive
			r := box.RestoreAsk{Request: box.Request{ID: "r"}}
			refused(t, w.facts.CheckRestore(r), box.ClassFailedPrecondition, row.says, "accept_incomplete")
			require.Equal(t, box.StateLost, w.facts.State)
			r.AcceptIncomplete = true
			require.NoError(t, w.facts.CheckRestore(r))
			require.Contains(t, w.facts.Restore(r, w.now).Text, row.gives)
		})
	}
	w := lost(t)
	w.facts.Receipt.Archive = box.ArchiveReceipt{Bytes: 1, Files: 2}
	require.NoError(t, w.facts.CheckRestore(box.RestoreAsk{Request: box.Request{ID: "r"}}), "a whole one is not asked about")
}
