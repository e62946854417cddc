package box_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// crashPoint is where in a step the workflow is lost.
type crashPoint int

const (
	noCrash crashPoint = iota
	beforeIntent
	afterIntent
	afterProvider
	afterEntry
)

// skew is how far the workers' clock is behind the engine's: nothing may depend
// on it.
const skew = 5*time.Hour + 17*time.Minute

func (w *world) append(kind box.LedgerKind, data any) {
	w.t.Helper()
	w.appendAt(w.facts.Epoch, kind, data)
}

func (w *world) appendAt(epoch int, kind box.LedgerKind, data any) {
	w.t.Helper()
	raw, err := json.Marshal(data)
	if err != nil {
		w.t.Fatal(err)
	}
	n := len(w.ledger) + 1
	w.ledger = append(w.ledger, box.LedgerEntry{
		Seq: n, ID: fmt.Sprintf("%s-%d", kind, n), Kind: kind, Epoch: epoch, At: w.now.Add(-skew), Data: raw,
	})
}

// intent is what the activity of a step writes before it calls the provider.
func (w *world) intent(step box.Step) {
	w.t.Helper()
	m := w.facts.Marks(w.now)
	switch step.Kind {
	case box.StepCreate:
		w.append(box.LedgerCreateIntent, box.LedgerCreate{Spec: w.facts.SpecNow(), Marks: m})
	case box.StepAdopt:
		w.appendAt(w.facts.Adopt.Epoch, box.LedgerAdoptIntent, box.LedgerCreate{Spec: w.facts.SpecNow(), BoxID: w.facts.Adopt.ID, Marks: m})
	case box.StepSuspend:
		w.append(box.LedgerSuspendIntent, box.LedgerIntent{Ref: w.facts.Ref, Marks: m})
	case box.StepResume:
		w.append(box.LedgerResumeIntent, box.LedgerIntent{Ref: w.facts.Ref, Marks: m})
	case box.StepDelete:
		w.append(box.LedgerDeleteIntent, box.LedgerDeletion{Ref: w.facts.Ref, Receipt: w.facts.Receipt, By: w.facts.Deletion.ConfirmedBy, Marks: m})
	case box.StepRecord:
		w.append(box.LedgerMarks, box.LedgerNote{Marks: m})
	case box.StepNotify:
		if step.LeavesMarks() && w.fail[box.StepNotify] == "" {
			w.append(box.LedgerNoticed, box.LedgerNote{Due: step.At, Marks: m})
		}
	case box.StepWait, box.StepFinish, box.StepAwaitReady, box.StepObserve, box.StepScan, box.StepQuiesce, box.StepUndrain,
		box.StepReclaim, box.StepExport, box.StepVerifyExport, box.StepAdjust, box.StepDeepen, box.StepRestore, box.StepAbandon:
	}
}

// entry is what the activity of a step writes once it knows the outcome.
func (w *world) entry(step box.Step, out box.Outcome) {
	w.t.Helper()
	if out.Failed != nil {
		return
	}
	row := w.facts.Capabilities
	switch step.Kind {
	case box.StepCreate:
		w.unread = false // it was looked for, and seen
		w.append(box.LedgerCreated, box.LedgerCreate{Spec: w.facts.SpecNow(), Observation: out.Observation, Capabilities: &row})
	case box.StepAdopt:
		w.unread = false
		w.appendAt(out.Observation.Ref.Epoch, box.LedgerAdopted, box.LedgerCreate{Spec: w.facts.SpecNow(), BoxID: w.facts.Adopt.ID, Observation: out.Observation, Capabilities: &row})
	case box.StepRestore:
		w.append(box.LedgerRestored, box.LedgerRestore{Ref: w.facts.Ref, Receipt: w.facts.Restoring.Receipt})
	case box.StepAbandon:
		w.append(box.LedgerAbandoned, box.LedgerAbandonment{Ref: w.facts.Ref, Abandonment: *w.facts.Abandonment})
	case box.StepSuspend:
		w.append(box.LedgerSuspended, out.Observation)
	case box.StepResume:
		w.append(box.LedgerResumed, out.Observation)
	case box.StepExport:
		w.append(box.LedgerExported, out.Receipt)
	case box.StepDelete:
		w.append(box.LedgerDeleted, box.LedgerDeletion{Ref: w.facts.Ref, Receipt: w.facts.Receipt, Evidence: out.Observation.Evidence})
	case box.StepObserve:
		w.unread = false
	case box.StepWait, box.StepFinish, box.StepAwaitReady, box.StepScan, box.StepQuiesce, box.StepUndrain,
		box.StepReclaim, box.StepVerifyExport, box.StepNotify, box.StepRecord, box.StepAdjust, box.StepDeepen:
	}
}

// lost ends the workflow at this point of the step, and rebuilds it. It fails on
// a destruction that came before a fresh reading.
func (w *world) lost(step box.Step, at crashPoint) bool {
	w.t.Helper()
	if at == beforeIntent && step.Kind == box.StepDelete && w.unread && !w.facts.Ref.IsZero() {
		w.t.Fatalf("a destruction from rebuilt facts, and the box was not read%s", w.told())
	}
	if w.crash != at {
		return false
	}
	w.crash = noCrash
	w.rebuild()
	return true
}

// read is what the ledger says, through the form that it has in the store.
func (w *world) read() box.Facts {
	w.t.Helper()
	data, err := json.Marshal(w.ledger)
	if err != nil {
		w.t.Fatal(err)
	}
	var entries []box.LedgerEntry
	if err := json.Unmarshal(data, &entries); err != nil {
		w.t.Fatal(err)
	}
	f, asOf, err := box.Rebuild("demo", entries)
	if err != nil {
		w.t.Fatalf("the ledger makes no sense: %v", err)
	}
	if last := entries[len(entries)-1]; !asOf.Equal(last.At.Add(skew)) {
		w.t.Fatalf("as of %s, the engine's clock was %s", asOf, last.At.Add(skew))
	}
	return f
}

// rebuild starts the workspace again from its ledger, as an input travels.
func (w *world) rebuild() {
	w.t.Helper()
	if len(w.ledger) == 0 { // nothing was begun: it is created again
		f := box.NewFacts(w.facts.Spec, w.facts.Capabilities, w.now)
		w.facts = &f
		return
	}
	said := w.read()
	highest := 0 // of a box that somebody began to make
	for _, e := range w.ledger {
		if e.Kind != box.LedgerAdoptIntent {
			highest = max(highest, e.Epoch)
		}
	}
	if said.Epoch < highest || said.Epochs < highest {
		w.t.Fatalf("the epoch is %d of %d given out, and the ledger knows of %d", said.Epoch, said.Epochs, highest)
	}
	w.lastEpoch = said.Epoch // an epoch of which nothing was begun is given out again
	if said.State == box.StateBoxArchived || said.State == box.StateAbandoned {
		if err := box.CheckRebuilt(&said, "demo"); box.ClassOf(err) != box.ClassFailedPrecondition {
			w.t.Fatalf("a closed workspace may be rebuilt: %v", err)
		}
		w.facts = &said
		return
	}
	if err := box.CheckRebuilt(&said, "demo"); err != nil {
		w.t.Fatal(err)
	}
	data, err := json.Marshal(box.Input{Spec: said.Spec, Capabilities: said.Capabilities, Rebuilt: &said})
	if err != nil {
		w.t.Fatal(err)
	}
	var in box.Input
	if err := json.Unmarshal(data, &in); err != nil {
		w.t.Fatal(err)
	}
	w.facts, w.unread = in.Rebuilt, true
	w.facts.Revive(w.now)
	if step := box.Next(w.facts, w.now); !w.facts.Ref.IsZero() && step.Kind != box.StepObserve && step.Kind != box.StepAdopt {
		w.t.Fatalf("the first step is %s", step.Kind)
	}
}

func expiry(f *box.Facts) time.Time {
	at := f.PausedClock.Add(f.Policy.PausedTTL.Std())
	if f.ExpiryFloor.After(at) {
		at = f.ExpiryFloor
	}
	return at
}

// compare checks what the ledger says of a box that rests against what was so.
func (w *world) compare(interrupted bool) {
	w.t.Helper()
	said, was := w.read(), w.facts
	if was.State == box.StateLost || was.State == box.StateCreateFailed || was.State == box.StateCreating {
		return // what came of it is for the reading
	}
	if said.Epoch != was.Epoch || said.Ref != was.Ref {
		w.t.Fatalf("box %d %+v was %d %+v", said.Epoch, said.Ref, was.Epoch, was.Ref)
	}
	if was.Recorded == was.Durable && (said.Kept != was.Kept || said.Frozen != was.Frozen || said.Policy != was.Policy) {
		w.t.Fatalf("kept %v, frozen %v, policy %+v; was %v, %v, %+v", said.Kept, said.Frozen, said.Policy, was.Kept, was.Frozen, was.Policy)
	}
	if !interrupted && !was.Receipt.IsZero() && said.Receipt != was.Receipt {
		w.t.Fatalf("receipt %+v was %+v", said.Receipt, was.Receipt)
	}
	if was.Recorded != was.Durable || was.SuspendedSince.IsZero() {
		return
	}
	if !said.SuspendedSince.Equal(was.SuspendedSince) || !said.PausedClock.Equal(was.PausedClock) || expiry(&said).After(expiry(was)) {
		w.t.Fatalf("in %s: suspended %s, clock %s, expires %s; was %s, %s, %s%s", was.State, said.SuspendedSince, said.PausedClock, expiry(&said), was.SuspendedSince, was.PausedClock, expiry(was), w.told())
	}
	// A window that was given afresh is noted with its notice, and before that
	// the rebuild gives it again.
	said.Revive(w.now)
	if expiry(&said).Before(expiry(was)) {
		w.t.Fatalf("a rebuild brings the expiry closer: %s was %s", expiry(&said), expiry(was))
	}
}

// TestAnyLifeSurvivesTheLossOfItsWorkflow lets people, time, the provider and
// failures do what they like, loses the workflow at any point of any step, and
// checks what the ledger says, and in every turn what must always hold.
func TestAnyLifeSurvivesTheLossOfItsWorkflow(t *testing.T) {
	t.Parallel()
	counts := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		s, c := spec(), row()
		if rapid.Bool().Draw(rt, "deletes at expiry") {
			s.Policy.OnExpiry = box.OnExpiryDelete
		}
		if rapid.Bool().Draw(rt, "provider has timers") {
			c = netted()
			c.PausedLife = box.Span(rapid.IntRange(0, 1).Draw(rt, "paused life")) * box.Span(60*24*time.Hour)
			if rapid.Bool().Draw(rt, "provider leads") {
				s.Policy.Lead = box.LeadProvider
			}
		}
		if rapid.Bool().Draw(rt, "memory is kept") {
			c.MemoryKept, c.Deepen = box.Yes, box.Yes
		}
		x := &chaos{T: rt, w: newWorldAt(rt, s, c), tokens: []string{"bogus"}}
		w, turn, interrupted := x.w, 0, false
		w.between = func(step box.Step) {
			if turn++; rapid.IntRange(0, 7).Draw(rt, "meanwhile") == 0 {
				x.meanwhile(box.Request{ID: fmt.Sprintf("m%d", turn), By: "eve"})
				interrupted = interrupted || box.Interrupts(w.facts, step)
			}
		}
		wait := w.settle()
		for i := range rapid.IntRange(1, 40).Draw(rt, "events") {
			switch rapid.IntRange(0, 9).Draw(rt, "loss") {
			case 0:
				w.rebuild()
				counts["at rest"]++
			case 1:
				w.crash = crashPoint(rapid.IntRange(int(beforeIntent), int(afterEntry)).Draw(rt, "crash"))
				counts[fmt.Sprint("in a step ", w.crash)]++
			}
			x.event(box.Request{ID: fmt.Sprintf("r%d", i), By: "ana"}, wait)
			if wait = w.settle(); wait.Kind == box.StepFinish {
				counts["closed"]++
				break
			}
			w.compare(interrupted)
			counts[string(w.facts.State)]++
		}
		w.between, w.crash = nil, noCrash
		x.rest(wait)
	})
	t.Logf("losses and states: %v", counts)
	for _, must := range []string{"at rest", "in a step 1", "in a step 2", "in a step 3", "in a step 4", "running", "suspended"} {
		if counts[must] == 0 {
			t.Errorf("it never came to %q: %v", must, counts)
		}
	}
}

func TestRebuiltLives(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		life func(*world)                     // up to the loss
		then func(w *world, before box.Facts) // after it, once the box was read
	}{
		"a suspended box keeps its paused clock and its export": {
			func(w *world) { w.toSuspended() },
			func(w *world, before box.Facts) {
				w.state(box.StateSuspended)
				step := box.Next(w.facts, w.now)
				if !w.facts.SuspendedSince.Equal(before.SuspendedSince) || step.Then != box.StepNotify || !step.At.Equal(before.SuspendedSince.Add(27*24*time.Hour)) {
					w.t.Fatalf("suspended %s, next %+v", w.facts.SuspendedSince, step)
				}
				if !w.facts.StatusAt(w.now).ExportCovers || w.facts.Receipt != before.Receipt {
					w.t.Fatal("its export does not cover it any more")
				}
			},
		},
		"a running box gets a fresh idle window": {
			func(w *world) { w.settle(); w.now = w.now.Add(14 * time.Minute) },
			func(w *world, _ box.Facts) {
				w.state(box.StateRunning)
				if step := box.Next(w.facts, w.now); step.Then != box.StepQuiesce || step.At.Sub(w.now) != 15*time.Minute {
					w.t.Fatalf("next %+v, now %s", step, w.now)
				}
			},
		},
		"a box that is gone is lost, and nothing replaces it": {
			func(w *world) { w.toSuspended(); w.exists = false },
			func(w *world, _ box.Facts) { w.state(box.StateLost) },
		},
		"a box that someone woke meanwhile runs": {
			func(w *world) { w.toSuspended(); w.phase = box.PhaseRunning },
			func(w *world, _ box.Facts) {
				w.state(box.StateRunning)
				if !w.facts.SuspendedSince.IsZero() {
					w.t.Fatal("its paused clock goes on while it runs")
				}
			},
		},
		"a notice window that passed meanwhile is given afresh": {
			func(w *world) { w.toSuspended(); w.now = w.now.Add(60 * 24 * time.Hour) },
			func(w *world, _ box.Facts) {
				w.state(box.StateSuspended)
				if step := box.Next(w.facts, w.now); w.did(box.StepNotify) != 1 || step.At.Sub(w.now) != 72*time.Hour {
					w.t.Fatalf("told %d times, next %+v", w.did(box.StepNotify), step)
				}
			},
		},
		"kept stays kept, and so does a changed policy": {
			func(w *world) {
				w.toSuspended()
				w.keep("k", true)
				w.facts.SetPolicy(box.SetPolicyAsk{Request: box.Request{ID: "p"}, Policy: box.Policy{Idle: box.Duration(time.Hour)}}, w.now)
				w.settle()
			},
			func(w *world, _ box.Facts) {
				if !w.facts.Kept || w.facts.Policy.Idle != box.Duration(time.Hour) || !box.Next(w.facts, w.now).At.IsZero() {
					w.t.Fatalf("kept %v, idle %s, next %+v", w.facts.Kept, w.facts.Policy.Idle, box.Next(w.facts, w.now))
				}
			},
		},
		"a confirmation must be given again": {
			func(w *world) {
				w.toSuspended()
				loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}, Undo: box.Duration(time.Hour)}, w.now)
				w.confirm(loss.Token)
				w.settle()
				w.state(box.StateUndoWindow)
			},
			func(w *world, before box.Facts) {
				w.state(box.StateSuspended)
				w.confirm(before.Deletion.Token)
				w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d2"}, Undo: box.Duration(time.Hour)}, w.now)
				w.confirm(before.Deletion.Token)
				if w.facts.Deletion.Confirmed {
					w.t.Fatal("a token from before the loss is good again")
				}
			},
		},
		"a deletion whose intent was written goes on": {
			func(w *world) {
				w.toSuspended()
				loss := w.requestDelete()
				w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
				w.fail[box.StepDelete] = box.ClassDeadlineExceeded
				w.settle()
				delete(w.fail, box.StepDelete)
			},
			func(w *world, _ box.Facts) { w.state(box.StateBoxArchived) },
		},
		"a deletion that was taken back after its intent stays so": {
			func(w *world) {
				w.toSuspended()
				loss := w.requestDelete()
				w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
				w.fail[box.StepDelete] = box.ClassFailedPrecondition
				for w.did(box.StepDelete) == 0 {
					w.turn()
				}
				w.facts.CancelDelete(box.CancelDelete{By: "ana"}, w.now)
				delete(w.fail, box.StepDelete)
				w.settle()
			},
			func(w *world, _ box.Facts) { w.state(box.StateSuspended) },
		},
		"a wake for an export does not leave it awake": {
			func(w *world) {
				w.toSuspended()
				w.facts.Scan = nil
				w.facts.Queue(box.Ask{Kind: box.AskExport, ID: "e"})
				w.crash = afterEntry // of the resume
			},
			func(w *world, before box.Facts) {
				w.state(box.StateSuspended)
				if w.phase != box.PhaseSuspended || !w.facts.PausedClock.Equal(before.PausedClock) {
					w.t.Fatalf("the provider says %s, the clock counts from %s", w.phase, w.facts.PausedClock)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, spec())
			row.life(w)
			before := *w.facts
			if w.crash == noCrash {
				w.log = nil
				w.rebuild()
			}
			w.settle()
			row.then(w, before)
		})
	}
}

func TestALedgerThatMakesNoSenseIsNotGuessed(t *testing.T) {
	t.Parallel()
	good := func() *world {
		w := newWorld(t, spec())
		w.toSuspended()
		return w
	}
	for name, row := range map[string]struct {
		spoil func([]box.LedgerEntry) []box.LedgerEntry
		class box.Class
		says  string
	}{
		"it is empty":             {func([]box.LedgerEntry) []box.LedgerEntry { return nil }, box.ClassNotFound, "empty"},
		"an entry is missing":     {func(l []box.LedgerEntry) []box.LedgerEntry { return slices.Delete(l, 2, 3) }, box.ClassUnknown, "entry 3 of workspace demo is missing"},
		"the first is missing":    {func(l []box.LedgerEntry) []box.LedgerEntry { return l[1:] }, box.ClassUnknown, "entry 1"},
		"it begins in the middle": {func(l []box.LedgerEntry) []box.LedgerEntry { l[0].Kind = box.LedgerSuspended; return l }, box.ClassUnknown, "none before it says"},
		"a kind is of a newer release": {
			func(l []box.LedgerEntry) []box.LedgerEntry { l[1].Kind = "moved"; return l }, box.ClassUnknown,
			"newer",
		},
		"data has another form":      {func(l []box.LedgerEntry) []box.LedgerEntry { l[2].Data = json.RawMessage(`{"key":1}`); return l }, box.ClassUnknown, "entry 3"},
		"it is of another workspace": {func(l []box.LedgerEntry) []box.LedgerEntry { return respec(l, "other") }, box.ClassUnknown, `"other"`},
		"its spec is of a newer release": {func(l []box.LedgerEntry) []box.LedgerEntry {
			l[0].Data = replaced(l[0].Data, `"version":1`, `"version":2`)
			return l
		}, box.ClassUnknown, "version"},
		"a mark of a change has no marks": {func(l []box.LedgerEntry) []box.LedgerEntry { l[2].Kind, l[2].Data = box.LedgerMarks, nil; return l }, box.ClassUnknown, "no marks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := box.Rebuild("demo", row.spoil(good().ledger))
			if box.ClassOf(err) != row.class || !strings.Contains(fmt.Sprint(err), row.says) {
				t.Errorf("%s: %v, want %s and %q", box.ClassOf(err), err, row.class, row.says)
			}
		})
	}
}

func replaced(data json.RawMessage, old, by string) json.RawMessage {
	return json.RawMessage(strings.ReplaceAll(string(data), old, by))
}

func respec(l []box.LedgerEntry, workspace string) []box.LedgerEntry {
	for i := range l {
		l[i].Data = replaced(l[i].Data, `"workspace":"demo"`, `"workspace":"`+workspace+`"`)
	}
	return l
}

// A ledger that an earlier release wrote has no marks.
func TestALedgerWithoutMarksIsReadAllTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.toSuspended()
	for i := range w.ledger {
		var data map[string]any
		if err := json.Unmarshal(w.ledger[i].Data, &data); err != nil {
			t.Fatal(err)
		}
		delete(data, "marks")
		delete(data, "capabilities")
		w.ledger[i].Data, _ = json.Marshal(data)
	}
	said, asOf, err := box.Rebuild("demo", w.ledger)
	if err != nil || said.State != box.StateSuspended || said.Receipt != w.facts.Receipt || !said.SuspendedSince.Equal(w.now.Add(-skew)) || !asOf.Equal(w.now.Add(-skew)) {
		t.Fatalf("%v: %s since %s as of %s, %+v", err, said.State, said.SuspendedSince, asOf, said.Receipt)
	}
	said.Revive(w.now)
	if !said.Adopted || said.NeverReady() {
		t.Error("a box that may have been worked in counts as never ready")
	}
}

// Each field of the facts either survives the loss of a workflow, or it is said
// here why not: a new one must not be forgotten.
func TestMarksHoldWhatARebuildNeeds(t *testing.T) {
	t.Parallel()
	elsewhere := map[string]string{
		"Spec": "in create-intent", "Capabilities": "in created", "Passes": "plans are made again",
		"Reminders": "reminders begin again", "RemindedAt": "reminders begin again",
		"Holders": "leases end", "SuspendWanted": "asked again", "ResumeWanted": "asked again", "Asks": "asked again", "Results": "their askers are gone",
		"Confirmation": "given again", "Failure": "tried at once", "BlockTold": "told again", "Repairs": "counted again", "RepairedAt": "counted again",
		"Observed": "read again", "ObservedAt": "read again", "Look": "read in any case", "UndrainOwed": "assumed",
		"Rebuilt": "set by a rebuild", "Unserved": "a ledger shows that a step was taken", "Durable": "of the run", "Recording": "of the run", "Recorded": "of the run",
		"Native": "told again", "NativeAt": "told again", "NativeStuck": "told again", "TurnEnded": "assumed", "Decided": "of the run", "DeepenFloor": "given again", "DeepenTries": "counted again", "Outbox": "of the run",
		"Seen": "callers use new ids", "Abandonment": "asked for again, or in abandoned", "ToldBy": "read again", "Transitions": "made of the entries",
	}
	marks := map[string]reflect.Type{}
	for field := range reflect.TypeFor[box.Marks]().Fields() {
		marks[field.Name] = field.Type
	}
	for field := range reflect.TypeFor[box.Facts]().Fields() {
		kept, ok := marks[field.Name]
		switch _, why := elsewhere[field.Name]; {
		case ok == why:
			t.Errorf("Facts.%s: in marks is %v, and a reason why not is there: %v", field.Name, ok, why)
		case ok && kept != field.Type:
			t.Errorf("Marks.%s is a %s, in the facts it is a %s", field.Name, kept, field.Type)
		}
	}
	// What is in the marks comes back as it was.
	w := newWorld(t, spec())
	w.toAwaiting()
	w.requestDelete()
	f := w.facts
	f.Kept, f.Frozen, f.Adopted, f.CreateUnclear, f.WakeOwed, f.Unhealthy = true, true, true, true, true, true
	f.IdleFloor, f.WallFloor, f.ExpiryFloor, f.Reclaimed, f.DeletionCount = w.now, w.now, w.now.Add(time.Hour), 7, 3
	f.Sequence = &box.Sequence{Purpose: box.PurposeWall, Since: w.now, Skips: []string{"x"}}
	f.Epochs, f.Adopt, f.Hold = 1, &box.Adoption{ID: "x", From: box.StateLost}, &box.Hold{By: "ann", Since: w.now}
	f.Restoring, f.Former = &box.Restoration{At: w.now}, []box.Former{{Ref: box.Ref{ID: "old", Epoch: 1}, Left: w.now}}
	m := f.Marks(w.now)
	value := reflect.ValueOf(*m)
	for i := range value.NumField() {
		if value.Field(i).IsZero() {
			t.Errorf("Marks.%s is not filled", value.Type().Field(i).Name)
		}
	}
	w.append(box.LedgerMarks, box.LedgerNote{Marks: m})
	said := w.read()
	if again := said.Marks(w.now); !reflect.DeepEqual(again, m) {
		t.Errorf("it comes back as\n%+v\nwas\n%+v", again, m)
	}
	bare := m.Bare()
	if bare.Deletion.By != "" || bare.Sequence.Skips != nil || bare.Because.Text == m.Because.Text || f.Deletion.By == "" || f.Sequence.Skips == nil {
		t.Errorf("bare is %+v", bare)
	}
}

// A person may confirm a deletion before the box was read. It waits for the
// reading all the same.
func TestADeletionBeforeTheFirstReadingWaitsForIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, spec())
	w.toSuspended()
	w.log = nil
	w.rebuild()
	w.confirm(w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d"}}, w.now).Token)
	w.state(box.StateExporting)
	w.settle()
	w.state(box.StateBoxArchived)
	if want := []box.StepKind{box.StepObserve, box.StepVerifyExport, box.StepDelete}; !slices.Equal(w.log, want) {
		t.Errorf("steps %v, want %v", w.log, want)
	}
}
