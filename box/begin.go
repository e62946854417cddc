package box

import "time"

// Begin records that a step starts. Call it right before the activity.
func (f *Facts) Begin(step Step, now time.Time) {
	f.Steps++
	f.decide(step, now)
	switch step.Kind {
	case StepQuiesce:
		if f.Sequence == nil {
			f.Sequence = &Sequence{Purpose: step.Purpose, Since: now, Reclaimed: step.Purpose == PurposeDelete}
			if step.Purpose != PurposeIdle {
				f.Holders = nil // overruled; who still needs the box connects again, and then wakes it
			}
		}
		if f.State == StateRunning {
			f.move(now, StateDraining, step.Reason)
		}
		f.UndrainOwed = false
	case StepReclaim, StepExport:
		f.skipReclaim(step.Kind)
		if step.Purpose == PurposeTurn {
			f.TurnEnded = time.Time{} // what ends from now on is for the next one
		}
		if step.Ask == nil && f.State == StateDraining {
			why := Reason{ReasonQuiet, "drained; nothing runs in it"}
			if s := f.Sequence; s != nil && !s.Looked {
				why = Reason{ReasonUnreachable, "it could not be looked at once more: " + f.skipText(s)}
			}
			f.move(now, StateSuspending, why)
		}
	case StepSuspend:
		f.skipReclaim(step.Kind)
		f.Sequence.Committed = true
		if f.State == StateDraining {
			f.move(now, StateSuspending, step.Reason)
		}
	case StepResume:
		if step.Purpose == PurposeMaintenance {
			f.Sequence = &Sequence{Purpose: PurposeMaintenance, Since: now, Reclaimed: true}
		} else {
			f.Sequence = nil
			f.move(now, StateResuming, step.Reason)
		}
	case StepVerifyExport:
		f.move(now, StateExporting, step.Reason)
	case StepDelete:
		f.Deletion.Committed, f.Deletion.Tried = true, true
		f.move(now, StateDeleting, step.Reason)
	case StepWait, StepFinish, StepCreate, StepAwaitReady, StepObserve, StepScan, StepUndrain, StepNotify,
		StepAdjust, StepDeepen, StepAdopt, StepRestore, StepAbandon, StepRecord:
	}
	if step.LeavesMarks() {
		f.Recording = f.Durable
	}
}

// skipReclaim records that a hold kept a pass from being made.
func (f *Facts) skipReclaim(next StepKind) {
	if s := f.Sequence; next != StepReclaim && s != nil && !s.Reclaimed && f.Hold != nil {
		s.Reclaimed = true
		s.Skips = append(s.Skips, f.holdReason("nothing was reclaimed").Text)
	}
}
