package box_test

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// properties is the table: what must always hold, and the faults that would
// break it.
func properties() []property {
	return []property{
		{
			name: "no destructive step without a receipt or a waiver, consent, and a fresh read", life: watcher{turn: destroysRightly},
			mutants: []mutant{
				{"deletes without reading the export back", answering(func(_ *box.Facts, step box.Step, _ time.Time) box.Step {
					if step.Kind == box.StepVerifyExport {
						step.Kind = box.StepDelete
					}
					return step
				})},
				{"takes any token for a confirmation", with(func(r *rules) {
					r.confirm = func(f *box.Facts, s box.ConfirmDelete, now time.Time) {
						if f.Deletion != nil {
							s.Token = f.Deletion.Token
						}
						f.ConfirmDelete(s, now)
					}
				})},
				{"a token never expires", with(func(r *rules) {
					r.confirm = func(f *box.Facts, s box.ConfirmDelete, now time.Time) {
						if f.Deletion != nil {
							f.Deletion.Expires = never
						}
						f.ConfirmDelete(s, now)
					}
				})},
				{"a cancellation is not heard", with(func(r *rules) { r.cancel = func(*box.Facts, box.CancelDelete, time.Time) {} })},
				{"an export in doubt counts as a whole one", seeing(func(f *box.Facts, _ time.Time) {
					if f.Scan != nil && f.Scan.Stale {
						scan := *f.Scan
						scan.Stale = false
						f.Scan = &scan
					}
				})},
				{"destroys before what was reported is read", seeing(func(f *box.Facts, _ time.Time) {
					f.Look = f.Look && f.State != box.StateExporting
				})},
			},
		},
		{
			name: "exactly one armed deadline: the earliest that is known", life: watcher{turn: armsOne}, facts: armedOnce,
			mutants: []mutant{
				{"no timer after a resume", answering(func(f *box.Facts, step box.Step, _ time.Time) box.Step {
					if n := len(f.Transitions); f.State == box.StateRunning && step.Kind == box.StepWait && n > 0 && f.Transitions[n-1].From == box.StateResuming {
						step.At = time.Time{}
					}
					return step
				})},
				{"a suspended box has no timer", answering(func(f *box.Facts, step box.Step, _ time.Time) box.Step {
					if f.State == box.StateSuspended && step.Kind == box.StepWait {
						step.At = time.Time{}
					}
					return step
				})},
				{"of two leases the later one is armed", answering(func(f *box.Facts, step box.Step, _ time.Time) box.Step {
					for _, h := range f.Holders {
						if step.Kind == box.StepWait && step.Reason.Code == box.ReasonHeld && h.Until.After(step.At) {
							step.At = h.Until
						}
					}
					return step
				})},
			},
		},
		{
			name: "a wake-up lies strictly in the future", life: watcher{turn: wakesLater},
			facts: func(_ *rapid.T, r rules, f *box.Facts, now time.Time) string { return later(r.next(f, now), now) },
			mutants: []mutant{
				{"a lease that is over is waited for", with(func(r *rules) {
					r.advance = func(f *box.Facts, now time.Time) {
						holders := f.Holders
						f.Advance(now)
						f.Holders = holders
					}
				})},
				{"equal does not count as due", answering(func(f *box.Facts, step box.Step, now time.Time) box.Step {
					if step.Kind == box.StepQuiesce && f.LastUse.Add(f.Policy.Idle.Std()).Equal(now) {
						return box.Step{Kind: box.StepWait, Reason: step.Reason, At: now}
					}
					return step
				})},
			},
		},
		{
			name: "an idle box is never suspended while a holder lives", life: watcher{turn: respectsHolders},
			mutants: []mutant{
				{"idle ignores holders", seeing(func(f *box.Facts, _ time.Time) { f.Holders = nil })},
				{"who arrives after the drain is not heard", seeing(func(f *box.Facts, _ time.Time) {
					if f.Sequence != nil && f.Sequence.Purpose == box.PurposeIdle {
						f.Holders, f.ResumeWanted = nil, nil
					}
				})},
				{"a renewal is answered and not kept", with(func(r *rules) {
					r.renew = func(f *box.Facts, a box.RenewRequest, now time.Time) box.ConnectAnswer {
						return copied(f).Renew(a, now)
					}
				})},
			},
		},
		{
			name: "extending never shortens", life: watcher{handled: neverShortens},
			mutants: []mutant{
				{"a renewal sets the lease", with(func(r *rules) {
					r.renew = func(f *box.Facts, a box.RenewRequest, now time.Time) box.ConnectAnswer {
						for i := range f.Holders {
							if f.Holders[i].ID == a.HolderID {
								f.Holders[i].Until = now
							}
						}
						return f.Renew(a, now)
					}
				})},
				{"a connection sets the lease", with(func(r *rules) {
					r.connect = func(f *box.Facts, a box.ConnectRequest, now time.Time) box.ConnectAnswer {
						f.Release(a.HolderID, now)
						return f.Connect(a, now)
					}
				})},
				{"a report of older use turns the clock back", with(func(r *rules) {
					r.report = func(f *box.Facts, s box.ActivitySignal, now time.Time) {
						f.ReportActivity(s, now)
						f.LastUse = now.Add(-s.IdleFor.Std())
					}
				})},
			},
		},
		{
			name: "a policy change is never retroactive", life: watcher{handled: neverRetroactive},
			mutants: []mutant{
				{"a shorter paused TTL counts from the suspend", with(func(r *rules) {
					r.setPolicy = func(f *box.Facts, a box.SetPolicyAsk, now time.Time) box.SetPolicyAnswer {
						floor := f.ExpiryFloor
						answer := f.SetPolicy(a, now)
						f.ExpiryFloor = floor
						return answer
					}
				})},
				{"a shorter idle time counts from the last use", with(func(r *rules) {
					r.setPolicy = func(f *box.Facts, a box.SetPolicyAsk, now time.Time) box.SetPolicyAnswer {
						floor := f.IdleFloor
						answer := f.SetPolicy(a, now)
						f.IdleFloor = floor
						return answer
					}
				})},
				{"a shorter hard maximum counts from the wake", with(func(r *rules) {
					r.setPolicy = func(f *box.Facts, a box.SetPolicyAsk, now time.Time) box.SetPolicyAnswer {
						answer := f.SetPolicy(a, now)
						f.WallFloor = time.Time{}
						return answer
					}
				})},
			},
		},
		{
			name: "a suspended box is not touched, least of all where looking is use", life: watcher{turn: leavesAlone},
			mutants: []mutant{
				{"asks the box before it answers what a deletion loses", answering(func(f *box.Facts, step box.Step, _ time.Time) box.Step {
					if d := f.Deletion; f.State == box.StateSuspended && step.Kind == box.StepWait && d != nil && !d.Confirmed {
						return box.Step{Kind: box.StepScan, Reason: step.Reason, Ask: &box.Ask{Kind: box.AskScan, ID: "scan"}}
					}
					return step
				})},
				{"reads it once a day", answering(func(f *box.Facts, step box.Step, now time.Time) box.Step {
					if f.State == box.StateSuspended && step.Kind == box.StepWait && now.Sub(f.ObservedAt) >= day {
						return box.Step{Kind: box.StepObserve, Reason: step.Reason}
					}
					return step
				})},
				{"wakes it for an export that nobody needs", answering(func(f *box.Facts, step box.Step, _ time.Time) box.Step {
					if f.State == box.StateSuspended && step.Kind == box.StepWait && f.Scan != nil && f.Scan.Stale {
						return box.Step{Kind: box.StepResume, Purpose: box.PurposeMaintenance, Reason: step.Reason}
					}
					return step
				})},
			},
		},
		{
			name: "the memory of a suspended box is given up when its time is over, and nothing else of it", life: watcher{turn: givesUpMemoryInTime, end: restsWithoutMemory},
			mutants: []mutant{
				{"gives it up at half of the time", answering(func(f *box.Facts, step box.Step, now time.Time) box.Step {
					if step.Kind == box.StepWait && step.Then == box.StepDeepen && step.At.Sub(now) <= f.Policy.DeepenAfter.Std()/2 {
						return box.Step{Kind: box.StepDeepen, Reason: step.Reason}
					}
					return step
				})},
				{"a provider is believed to have kept none", seeing(func(f *box.Facts, _ time.Time) { f.Observed.MemoryKept = box.No })},
				{"a change of the policy is not heard", with(func(r *rules) {
					r.setPolicy = func(f *box.Facts, a box.SetPolicyAsk, now time.Time) box.SetPolicyAnswer {
						answer := f.SetPolicy(a, now)
						f.DeepenFloor = never
						return answer
					}
				})},
				{"the paused TTL begins anew", with(func(r *rules) {
					r.apply = func(f *box.Facts, step box.Step, out box.Outcome, now time.Time) {
						f.Apply(step, out, now)
						if step.Kind == box.StepDeepen {
							f.PausedClock = now
						}
					}
				})},
				{"who arrived meanwhile is not heard", seeing(func(f *box.Facts, _ time.Time) { f.Holders = nil })},
			},
		},
		{
			name: "planning what was planned changes nothing", other: plansOnce,
			mutants: []mutant{
				{"each plan takes another margin off", with(func(r *rules) {
					r.plan = func(p box.Policy, c box.Capabilities) (box.Arrangement, error) {
						a, err := box.Plan(p, c)
						if c.MaxRun > 0 && !a.Policy.MaxRun.IsNever() {
							a.Policy.MaxRun = max(a.Policy.MaxRun-box.Duration(time.Minute), box.Duration(time.Second))
						}
						return a, err
					}
				})},
			},
		},
		{
			name: "the same facts give the same step, also after JSON, and looking changes nothing", facts: sameStep,
			life: watcher{turn: func(x *trial, step box.Step) string {
				if x.turns%4 != 1 { // the slowest of all
					return ""
				}
				return same(x.r, x.w.facts, step, x.w.now)
			}},
			mutants: []mutant{
				{"counts its own calls", func() rules {
					r, calls := ours(), 0
					r.next = func(f *box.Facts, now time.Time) box.Step {
						calls++
						step := box.Next(f, now)
						step.Reason.Text += fmt.Sprint(" (look ", calls, ")")
						return step
					}
					return r
				}},
				{"keeps a mark outside of the facts", func() rules {
					r, told := ours(), map[*box.Facts]bool{}
					r.next = func(f *box.Facts, now time.Time) box.Step {
						step := box.Next(f, now)
						if step.Kind == box.StepNotify && told[f] {
							step.Kind = box.StepWait
						}
						told[f] = true
						return step
					}
					return r
				}},
				{"puts off a failure while it looks", answering(func(f *box.Facts, step box.Step, _ time.Time) box.Step {
					if f.Failure != nil {
						f.Failure.Count++
					}
					return step
				})},
			},
		},
		{
			name: "a deadline does not come closer by itself",
			life: watcher{turn: func(x *trial, step box.Step) string { return monotone(x.r, x.w.facts, step, x.w.now) }},
			mutants: []mutant{
				{"acts an hour early", answering(func(_ *box.Facts, step box.Step, now time.Time) box.Step {
					if step.Kind == box.StepWait && step.Then == box.StepNotify && step.At.Sub(now) < time.Hour {
						return box.Step{Kind: box.StepNotify, Reason: step.Reason, At: step.At}
					}
					return step
				})},
				{"waits for shorter and shorter", answering(func(_ *box.Facts, step box.Step, now time.Time) box.Step {
					if step.Kind == box.StepWait && !step.At.IsZero() {
						step.At = step.At.Add(-now.Sub(noon()) % (step.At.Sub(now)/2 + 1))
					}
					return step
				})},
			},
		},
		{
			name: "nothing acts on a frozen box", life: watcher{turn: staysFrozen},
			facts: func(_ *rapid.T, r rules, f *box.Facts, now time.Time) string { return frozen(f, r.next(f, now)) },
			mutants: []mutant{
				{"freeze stops the idle timer only", seeing(func(f *box.Facts, _ time.Time) { f.Frozen = f.Frozen && f.State == box.StateRunning })},
				{"freeze stops the expiry only", seeing(func(f *box.Facts, _ time.Time) { f.Frozen = f.Frozen && f.State != box.StateRunning })},
			},
		},
		{
			name: "no box is paid for once nobody uses it", life: watcher{end: comesToRest},
			mutants: []mutant{
				{"a failed automatic suspend is not tried again", with(func(r *rules) {
					r.apply = func(f *box.Facts, step box.Step, out box.Outcome, now time.Time) {
						f.Apply(step, out, now)
						if out.Failed != nil && f.Failure != nil && (step.Kind == box.StepSuspend || step.Kind == box.StepQuiesce) {
							f.Failure.RetryAt = never
						}
					}
				})},
				{"no timer after a creation", answering(func(f *box.Facts, step box.Step, _ time.Time) box.Step {
					if n := len(f.Transitions); f.State == box.StateRunning && step.Kind == box.StepWait && n > 0 && f.Transitions[n-1].From == box.StateCreating {
						step.At = time.Time{}
					}
					return step
				})},
			},
		},
	}
}
