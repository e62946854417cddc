package box_test

import (
	"encoding/json"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// rules are the functions of package box that decide, as values, so that a
// mutant can put another one in a place.
type rules struct {
	next       func(*box.Facts, time.Time) box.Step
	interrupts func(*box.Facts, box.Step) bool
	advance    func(*box.Facts, time.Time)
	begin      func(*box.Facts, box.Step, time.Time)
	apply      func(*box.Facts, box.Step, box.Outcome, time.Time)
	connect    func(*box.Facts, box.ConnectRequest, time.Time) box.ConnectAnswer
	renew      func(*box.Facts, box.RenewRequest, time.Time) box.ConnectAnswer
	report     func(*box.Facts, box.ActivitySignal, time.Time)
	setPolicy  func(*box.Facts, box.SetPolicyAsk, time.Time) box.SetPolicyAnswer
	confirm    func(*box.Facts, box.ConfirmDelete, time.Time)
	cancel     func(*box.Facts, box.CancelDelete, time.Time)
	plan       func(box.Policy, box.Capabilities) (box.Arrangement, error)
}

func ours() rules {
	return rules{
		next: box.Next, interrupts: box.Interrupts, advance: (*box.Facts).Advance, begin: (*box.Facts).Begin, apply: (*box.Facts).Apply,
		connect: (*box.Facts).Connect, renew: (*box.Facts).Renew, report: (*box.Facts).ReportActivity, setPolicy: (*box.Facts).SetPolicy,
		confirm: (*box.Facts).ConfirmDelete, cancel: (*box.Facts).CancelDelete, plan: box.Plan,
	}
}

// seeing returns the rules with a Next and an Interrupts that are shown
// something else than the truth.
func seeing(change func(f *box.Facts, now time.Time)) func() rules {
	return func() rules {
		r := ours()
		r.next = func(f *box.Facts, now time.Time) box.Step {
			blind := *f
			change(&blind, now)
			return box.Next(&blind, now)
		}
		r.interrupts = func(f *box.Facts, step box.Step) bool {
			blind := *f
			change(&blind, time.Time{})
			return box.Interrupts(&blind, step)
		}
		return r
	}
}

// answering returns the rules with a Next whose answer is changed.
func answering(change func(f *box.Facts, step box.Step, now time.Time) box.Step) func() rules {
	return func() rules {
		r := ours()
		r.next = func(f *box.Facts, now time.Time) box.Step { return change(f, box.Next(f, now), now) }
		return r
	}
}

// with returns the rules with one of them replaced.
func with(replace func(r *rules)) func() rules {
	return func() rules {
		r := ours()
		replace(&r)
		return r
	}
}

// copied is what a run hands to the next one.
func copied(f *box.Facts) *box.Facts {
	var out box.Facts
	if err := json.Unmarshal(encoded(f), &out); err != nil {
		panic(err)
	}
	return &out
}

// encoded is how a run hands the facts over.
func encoded(f *box.Facts) []byte {
	data, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return data
}

// never is later than anything that is armed.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// soonest returns when the rules would next take the box from whoever might
// still want it, if nobody did anything: by a suspend, an expiry or a deletion.
func (r rules) soonest(f *box.Facts, now time.Time) time.Time {
	f = copied(f)
	state := f.State
	for range 400 {
		r.advance(f, now)
		if f.State != state {
			return now
		}
		step := r.next(f, now)
		switch {
		case step.Kind == box.StepNotify, step.Kind == box.StepRecord:
			r.begin(f, step, now)
			r.apply(f, step, box.Outcome{}, now)
		case step.Kind == box.StepDeepen: // it can be woken all the same
			r.begin(f, step, now)
			r.apply(f, step, box.Outcome{Observation: box.Observation{Ref: f.Ref, Phase: box.PhaseSuspended, MemoryKept: box.No}}, now)
		case step.Kind != box.StepWait:
			return now
		case step.At.IsZero():
			return never
		default:
			now = step.At
		}
	}
	return never
}

func first(times ...time.Time) time.Time {
	out := times[0]
	for _, t := range times[1:] {
		if t.Before(out) {
			out = t
		}
	}
	return out
}
