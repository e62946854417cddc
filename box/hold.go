package box

import (
	"slices"
	"strings"
	"time"
)

// Hold stops every destructive step, whatever was agreed, until it is lifted.
// Exports, notices and suspends go on.
type Hold struct {
	By     string    `json:"by,omitzero"`
	Reason string    `json:"reason,omitzero"`
	Since  time.Time `json:"since"`
}

// SetHold puts a hold on or lifts it. It may be repeated; the first hold's time
// stays. A signal has no answer, so a text that is too long is cut.
func (f *Facts) SetHold(s HoldSignal, now time.Time) {
	by, reason := plainText(s.By), plainText(s.Reason)
	switch {
	case s.On && f.Hold != nil:
		f.Hold.By, f.Hold.Reason = by, reason
	case s.On:
		f.Hold = &Hold{By: by, Reason: reason, Since: now}
		f.Durable++
		f.note(now, f.holdReason("nothing is destroyed"))
		for _, ask := range slices.Clone(f.Asks) {
			if ask.Kind == AskReclaim && !ask.Reclaim.DryRun {
				f.finish(ask, Result{Class: ClassFailedPrecondition, Error: f.holdReason("nothing is reclaimed").Text + "; ask again when it is lifted"})
			}
		}
	case f.Hold != nil:
		f.note(now, Reason{ReasonOnHold, "the hold was lifted by " + orElse(by, unnamed)})
		f.Hold = nil
		f.Durable++
		f.freshMemory(now)
	}
}

// plainText cuts a text and takes out what is not printable.
func plainText(text string) string {
	const most = 256
	out := strings.Map(func(c rune) rune {
		if c < ' ' || c == 127 {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
	if runes := []rune(out); len(runes) > most {
		out = string(runes[:most])
	}
	return strings.TrimSpace(out)
}

func (f *Facts) holdReason(what string) Reason {
	text := "a hold is on, set by " + orElse(f.Hold.By, unnamed)
	if f.Hold.Reason != "" {
		text += " (" + f.Hold.Reason + ")"
	}
	return Reason{ReasonOnHold, what + ": " + text}
}

// onHold turns a destruction into a wait while a hold is on.
func (f *Facts) onHold(step Step) Step {
	if f.Hold == nil {
		return step
	}
	return Step{Kind: StepWait, Then: StepDelete, Reason: f.holdReason("the agreed deletion waits"), StoppedBy: f.holdStop()}
}

func (f *Facts) holdStop() string {
	if d := f.Deletion; d != nil && d.Committed {
		return "operator: hold off"
	}
	return "operator: hold off; owner: cancel-delete"
}

// restUnderHold keeps a box from staying awake for as long as a hold lasts
// because its deletion waits: it is suspended first.
func (f *Facts) restUnderHold(now time.Time) {
	if f.Hold == nil || !f.deletionDue() || f.Deletion.Committed || !f.SuspendedSince.IsZero() || f.Capabilities.Suspend == No {
		return
	}
	if p := f.Observed.Phase; p != PhaseRunning && p != PhaseStarting {
		return
	}
	why := f.holdReason("the agreed deletion waits, so the box is suspended meanwhile")
	if f.NeverReady() {
		f.settle(now, why)
		return
	}
	f.Deletion.Verified = false
	f.move(now, StateRunning, why)
}
