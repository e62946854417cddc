package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// What a review found broken, one test for each kind of fault.

func TestScenario61ABoxThatNeverAnswersEndsSuspended(t *testing.T) {
	t.Parallel()
	t.Run("nobody waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.deaf = true
		w.pass(time.Hour)
		w.state(box.StateSuspended)
		if w.phase != box.PhaseSuspended {
			t.Fatalf("it still costs: %s", w.phase)
		}
	})
	t.Run("a person asks for the suspend", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.connect("tab")
		w.failed(w.step(box.StepResume), box.ClassUnavailable)
		w.facts.Suspend(box.Request{ID: "s"}, w.now)
		w.settle()
		w.state(box.StateSuspended)
	})
	t.Run("someone waits until the hard maximum", func(t *testing.T) {
		t.Parallel()
		w := awake(t)
		w.toSuspended()
		w.fail[box.StepResume] = box.ClassUnavailable
		w.facts.Resume(box.Request{ID: "r"}, w.now)
		w.pass(11 * time.Hour)
		w.state(box.StateResuming)
		w.pass(2 * time.Hour)
		w.state(box.StateSuspended)
	})
}

func TestATakenBackDeletionInTheMiddleOfAStep(t *testing.T) {
	t.Parallel()
	for _, at := range []box.StepKind{box.StepQuiesce, box.StepExport, box.StepVerifyExport} {
		w := awake(t)
		w.confirm(w.requestDelete().Token)
		step := w.step(at)
		w.cancel()
		if !box.Interrupts(w.facts, step) {
			t.Errorf("%s is not interrupted", at)
		}
		w.finish(step) // it ended before the cancellation reached it
		w.settle()
		if !w.exists || w.facts.Deletion != nil || w.did(box.StepDelete) != 0 {
			t.Errorf("taken back during %s: exists %v, %s, steps %v", at, w.exists, w.facts.State, w.log)
		}
	}
}

func TestAConfirmationDuringTheCreateIsCarriedOut(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]func(*world, box.Step){
		"it is made":    func(w *world, s box.Step) { w.finish(s) },
		"it is refused": func(w *world, s box.Step) { w.failed(s, box.ClassInvalid) },
	} {
		w := newWorld(t, spec())
		step := w.step(box.StepCreate)
		w.confirm(w.requestDelete().Token)
		outcome(w, step)
		w.settle()
		if w.facts.State != box.StateBoxArchived || w.exists {
			t.Errorf("%s: %s, exists %v%s", name, w.facts.State, w.exists, w.told())
		}
	}
}

func TestAFaultOfTheWorkersIsNotOneOfTheBox(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.now = w.now.Add(idle)
	for range 6 {
		step := w.step(box.StepQuiesce)
		w.facts.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, Message: "no worker serves test", NotBegun: true}}, w.now)
		w.now = w.facts.Failure.RetryAt
	}
	if s := w.facts.Sequence; s == nil || s.Quiet || len(s.Skips) != 0 || w.facts.Unhealthy {
		t.Fatalf("the last look was skipped: %+v", s)
	}
	w.settle()
	w.state(box.StateSuspended)
	if !w.facts.StatusAt(w.now).ExportCovers {
		t.Fatal("it was suspended without an export")
	}
}

func TestADeletionThatTheProviderWasNotToldOfCanBeTakenBack(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.confirm(w.requestDelete().Token)
	step := w.step(box.StepDelete)
	w.facts.Apply(step, box.Outcome{Failed: &box.StepFailure{Class: box.ClassUnavailable, Message: "the store does not answer", NotBegun: true}}, w.now)
	w.cancel()
	w.settle()
	if !w.exists || w.facts.Deletion != nil {
		t.Fatalf("exists %v, deletion %+v", w.exists, w.facts.Deletion)
	}
}

func TestAnAdoptedBoxIsNotTakenForAnEmptyOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.exists, w.phase, w.events = true, box.PhaseSuspended, 5
	step := w.step(box.StepCreate)
	w.facts.Apply(step, box.Outcome{Observation: w.seen(), Adopted: true}, w.now)
	w.settle()
	loss := w.requestDelete()
	if strings.Contains(strings.Join(loss.NotExported, " "), "never answered") {
		t.Fatalf("a person is told that nothing is lost: %v", loss.NotExported)
	}
	w.confirm(loss.Token)
	w.settle()
	if w.did(box.StepExport) == 0 || !w.stored[w.digest()] {
		t.Fatalf("it was deleted without an export: %v", w.log)
	}
}

func TestATokenIsBoundToTheUndoWindowThatWasShown(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	shown := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "a"}, Undo: box.Duration(day)}, w.now)
	w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "b"}}, w.now)
	w.confirm(shown.Token)
	w.refusedWith(box.ReasonRefused)
}

func TestABlockedDeletionIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.toSuspended()
	w.badStore = true
	w.confirm(w.requestDelete().Token)
	wait := w.settle()
	w.state(box.StateDeleteBlocked)
	if wait.At.Sub(w.now) != time.Hour {
		t.Fatalf("the next try is in %s", wait.At.Sub(w.now))
	}
	w.badStore = false
	w.pass(time.Hour)
	if w.facts.State != box.StateBoxArchived || w.exists {
		t.Fatalf("%s, exists %v", w.facts.State, w.exists)
	}
}

func TestAnExpiryByPolicyAfterAnOutageIsToldAgainFirst(t *testing.T) {
	t.Parallel()
	w := awake(t, func(s *box.Spec) { s.Policy.OnExpiry = box.OnExpiryDelete })
	w.until(w.toSuspended(), 0)
	w.settle() // told
	w.now = w.now.Add(25 * day)
	w.settle()
	w.state(box.StateSuspended)
	if w.did(box.StepNotify) != 2 {
		t.Fatalf("told %d times", w.did(box.StepNotify))
	}
	w.pass(73 * time.Hour)
	w.state(box.StateUndoWindow)
}

func TestWhatIsAskedWaitsBehindADeletion(t *testing.T) {
	t.Parallel()
	w := awake(t)
	loss := w.requestDelete()
	w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "slow"})
	step := w.step(box.StepExport)
	w.confirm(loss.Token)
	if !box.Interrupts(w.facts, step) {
		t.Error("an asked export is not interrupted by a confirmed deletion")
	}
	if next := box.Next(w.facts, w.now); next.Kind != box.StepQuiesce || next.Purpose != box.PurposeDelete {
		t.Errorf("next is %s for %s", next.Kind, next.Purpose)
	}
	w.settle()
	if _, done := w.facts.ResultFor("slow"); !done || w.exists {
		t.Errorf("answered %v, exists %v", done, w.exists)
	}
}

func TestAStepThatMeetsAnotherStateMakesItLook(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "x"})
	w.phase = box.PhaseSuspended // somebody suspended it, and nobody said so
	w.failed(w.step(box.StepExport), box.ClassFailedPrecondition)
	w.settle()
	w.state(box.StateSuspended)
}

func TestTheLaterWishCountsWhileASuspendFails(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.fail[box.StepSuspend] = box.ClassUnavailable
	w.facts.Suspend(box.Request{ID: "s"}, w.now)
	w.settle()
	w.state(box.StateSuspending)
	w.facts.Resume(box.Request{ID: "r"}, w.now)
	w.settle()
	w.state(box.StateRunning)
}

func TestADeletionBeatsASettlingThatFails(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.fail[box.StepSuspend] = box.ClassFailedPrecondition
	w.phase = box.PhaseFailed
	w.facts.Observe(box.ObservedSignal{Observation: w.seen()})
	w.settle()
	w.state(box.StateSuspending)
	w.waive(w.requestDelete().Token)
	w.pass(time.Hour)
	if w.facts.State != box.StateBoxArchived || w.exists {
		t.Fatalf("%s, exists %v%s", w.facts.State, w.exists, w.told())
	}
}

func TestSpecsRefuseWhatBoxkeeperSets(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*box.Spec){
		"env.BOXKEEPER_X":       func(s *box.Spec) { s.Env = map[string]string{"BOXKEEPER_X": "1"} },
		"secrets.OH_SECRET_KEY": func(s *box.Spec) { s.Secrets = map[string]string{"OH_SECRET_KEY": "env:X"} },
		"policy.idle":           func(s *box.Spec) { s.Policy.Idle = 1 },
		"labels.a b":            func(s *box.Spec) { s.Labels = map[string]string{"a b": "c"} },
		"image":                 func(s *box.Spec) { s.Image = "two words" },
	} {
		s := spec()
		change(&s)
		if err := s.Validate(); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A store that is away for some minutes must cost no history.
func TestAnExportIsWaitedForWhileItsFailureMayPass(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.work(true)
	w.fail[box.StepExport] = box.ClassUnavailable
	due := w.now.Add(idle)
	w.pass(idle + 7*time.Minute)
	w.state(box.StateSuspending)
	delete(w.fail, box.StepExport)
	w.pass(2 * time.Minute)
	w.state(box.StateSuspended)
	if !w.facts.StatusAt(w.now).ExportCovers {
		t.Fatal("suspended without an export")
	}

	w = awake(t)
	w.work(true)
	w.fail[box.StepExport] = box.ClassUnavailable
	w.pass(idle + time.Hour)
	w.state(box.StateSuspended)
	if late := w.facts.StateSince.Sub(due); late < 10*time.Minute || late > 13*time.Minute {
		t.Fatalf("it gave up %s after the idle deadline", late)
	}
}

// A destroying call whose outcome is not known, and an export that is lost
// since: what the box is now decides, and the deletion is carried out.
func TestAnUnclearDeletionWhoseExportIsLostLooksAtTheBox(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		turn  func(*world)
		want  box.State
		again bool // exported once more
	}{
		"it is suspended as before":         {func(*world) {}, box.StateBoxArchived, true},
		"it runs":                           {func(w *world) { w.phase = box.PhaseRunning }, box.StateBoxArchived, true},
		"it starts":                         {func(w *world) { w.phase = box.PhaseStarting }, box.StateBoxArchived, true},
		"it ended by itself":                {func(w *world) { w.phase = box.PhaseFailed }, box.StateBoxArchived, true},
		"it is gone, and a person is asked": {func(w *world) { w.exists = false }, box.StateDeleteBlocked, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			w.work(false)
			w.toSuspended()
			w.confirm(w.requestDelete().Token)
			w.failed(w.step(box.StepDelete), box.ClassDeadlineExceeded)
			w.cancel()
			w.state(box.StateDeleting) // there may be no way back
			row.turn(w)
			w.log = nil
			w.now = w.facts.Failure.RetryAt
			w.failed(w.step(box.StepDelete), box.ClassFailedPrecondition)
			w.badStore = true
			w.between = func(step box.Step) {
				w.badStore = w.badStore && step.Kind != box.StepVerifyExport // the next export is stored well
			}
			w.pass(30 * time.Minute)
			w.state(row.want)
			if w.did(box.StepObserve) == 0 || (w.did(box.StepExport) > 0) != row.again {
				t.Errorf("steps %v", w.log)
			}
		})
	}
}

func TestWhatBecameOfACancellation(t *testing.T) {
	t.Parallel()
	w := awake(t)
	last := func() box.Confirmation {
		t.Helper()
		c := w.facts.StatusAt(w.now).Confirmation
		if c == nil || !c.Cancel || c.By != "ana" {
			t.Fatalf("last_confirmation is %+v", c)
		}
		return *c
	}
	w.cancel()
	if c := last(); c.Accepted || c.Reason.Code != box.ReasonRefused {
		t.Errorf("without a request it became %+v", c)
	}
	w.confirm(w.requestDelete().Token)
	w.cancel()
	if c := last(); !c.Accepted || c.Reason.Code != box.ReasonCancelled {
		t.Errorf("in time it became %+v", c)
	}
	w.cancel()
	if c := last(); !c.Accepted {
		t.Errorf("its repeat became %+v", c)
	}
	w.confirm(w.requestDelete().Token)
	w.failed(w.step(box.StepDelete), box.ClassUnavailable)
	w.cancel()
	if c := last(); c.Accepted || c.Reason.Code != box.ReasonRefused {
		t.Errorf("too late it became %+v", c)
	}
}
