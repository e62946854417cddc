package workflows

import (
	"encoding/json"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/openhands/boxkeeper/box"
)

// signal is one channel and how what it carries goes into the facts.
type signal struct {
	channel workflow.ReceiveChannel
	take    func(now time.Time) bool // false when there is none
}

// listen opens the signal channels. A confirmation is taken before a
// cancellation, so that of two that wait the cancellation wins.
func (w *loop) listen() []signal {
	return []signal{
		on(w, box.SignalActivity, func(s box.ActivitySignal, now time.Time) { w.facts.ReportActivity(s, now) }),
		on(w, box.SignalRenew, func(s box.RenewRequest, now time.Time) {
			if w.facts.CheckRenew(s) == nil {
				w.facts.Renew(s, now)
			}
		}),
		on(w, box.SignalRelease, func(s box.ReleaseRequest, now time.Time) { w.facts.Release(s.HolderID, now) }),
		on(w, box.SignalObserved, func(s box.ObservedSignal, now time.Time) {
			if !w.facts.ObserveFormer(s, now) {
				w.facts.Observe(s)
			}
		}),
		on(w, box.SignalHold, func(s box.HoldSignal, now time.Time) { w.facts.SetHold(s, now) }),
		on(w, box.SignalConfirmDelete, func(s box.ConfirmDelete, now time.Time) { w.facts.ConfirmDelete(s, now) }),
		on(w, box.SignalCancelDelete, func(s box.CancelDelete, now time.Time) { w.facts.CancelDelete(s, now) }),
	}
}

func on[S any](w *loop, name string, store func(S, time.Time)) signal {
	channel := workflow.GetSignalChannel(w.ctx, name)
	return signal{channel, func(now time.Time) bool {
		var s S
		if !channel.ReceiveAsync(&s) {
			return false
		}
		store(s, now)
		return true
	}}
}

func (w *loop) signalled() bool {
	for _, s := range w.signals {
		if s.channel.Len() > 0 {
			return true
		}
	}
	return false
}

func (w *loop) takeSignals() {
	for _, s := range w.signals {
		for s.take(workflow.Now(w.ctx)) {
		}
	}
}

// update registers one update: check refuses before anything is written to the
// history, serve stores and answers. What was sent is read here, not by the
// engine's converter, so that a request that does not fit is refused like any
// other, with its class and the field at fault.
func update[R, A any](w *loop, name, about string, check func(R) error, serve func(workflow.Context, R) (A, error)) error {
	return workflow.SetUpdateHandlerWithOptions(w.ctx, name, func(ctx workflow.Context, sent json.RawMessage) (A, error) {
		r, err := read(sent, check) // the facts may have moved since the validator ran
		if err != nil {
			var none A
			return none, refusal(err)
		}
		answer, err := serve(ctx, r)
		w.dirty = true
		return answer, refusal(err)
	}, workflow.UpdateHandlerOptions{
		Description: about,
		Validator: func(sent json.RawMessage) error {
			_, err := read(sent, check)
			return refusal(err)
		},
	})
}

func read[R any](sent json.RawMessage, check func(R) error) (R, error) {
	var r R
	if err := box.Decode(sent, &r); err != nil {
		return r, err
	}
	return r, check(r)
}

// now is the only clock of the handlers.
func (w *loop) now() time.Time { return workflow.Now(w.ctx) }

func (w *loop) serveUpdates() error {
	f := w.facts
	for _, register := range []func() error{
		func() error {
			return update(w, box.UpdateConnect, "wake if needed, take or renew a hold", f.CheckConnect,
				func(_ workflow.Context, r box.ConnectRequest) (box.ConnectAnswer, error) {
					return f.Connect(r, w.now()), nil
				})
		},
		func() error {
			return update(w, box.UpdateRenew, "extend a hold", f.CheckRenew,
				func(_ workflow.Context, r box.RenewRequest) (box.ConnectAnswer, error) {
					return f.Renew(r, w.now()), nil
				})
		},
		func() error {
			return update(w, box.UpdateRelease, "end a hold", func(r box.ReleaseRequest) error { return box.CheckRequest(r.Request) },
				func(_ workflow.Context, r box.ReleaseRequest) (box.ActionAnswer, error) {
					return f.Release(r.HolderID, w.now()), nil
				})
		},
		func() error {
			return update(w, box.UpdateSuspend, "suspend now", f.CheckSuspend,
				func(_ workflow.Context, r box.Request) (box.ActionAnswer, error) { return f.Suspend(r, w.now()), nil })
		},
		func() error {
			return update(w, box.UpdateResume, "wake now", f.CheckResume,
				func(_ workflow.Context, r box.Request) (box.ActionAnswer, error) { return f.Resume(r, w.now()), nil })
		},
		func() error {
			return update(w, box.UpdateKeep, "turn the expiry off or on", f.CheckSwitch,
				func(_ workflow.Context, r box.SwitchAsk) (box.ActionAnswer, error) { return f.Keep(r, w.now()), nil })
		},
		func() error {
			return update(w, box.UpdateFreeze, "stop every timer, or start the clocks afresh", f.CheckSwitch,
				func(_ workflow.Context, r box.SwitchAsk) (box.ActionAnswer, error) { return f.Freeze(r, w.now()), nil })
		},
		func() error {
			return update(w, box.UpdateSetPolicy, "change the policy; answers old and new deadlines", f.CheckSetPolicy,
				func(_ workflow.Context, r box.SetPolicyAsk) (box.SetPolicyAnswer, error) {
					return f.SetPolicy(r, w.now()), nil
				})
		},
		func() error {
			return update(w, box.UpdateReplace, "start a new, empty box in place of a lost one", f.CheckReplace,
				func(_ workflow.Context, r box.Request) (box.ActionAnswer, error) { return f.Replace(r, w.now()), nil })
		},
		func() error {
			return update(w, box.UpdateRestore, "start a new box with the exported history and workspace in place of a lost one", f.CheckRestore,
				func(_ workflow.Context, r box.RestoreAsk) (box.ActionAnswer, error) {
					return f.Restore(r, w.now()), nil
				})
		},
		func() error {
			return update(w, box.UpdateAdopt, "take over a box that is there", f.CheckAdopt,
				func(ctx workflow.Context, r box.AdoptAsk) (box.ActionAnswer, error) {
					f.TakeOver(r, w.now())
					_, err := w.result(ctx, r.ID)
					return f.AdoptAnswer(), err
				})
		},
		func() error {
			return update(w, box.UpdateAbandon, "end the watch over a box that cannot be had any more", f.CheckAbandon,
				func(ctx workflow.Context, r box.AbandonAsk) (box.ActionAnswer, error) {
					f.Abandon(r, w.now())
					_, err := w.result(ctx, r.ID)
					return f.AbandonAnswer(), err
				})
		},
		w.serveReclaim, w.serveExport, w.serveRequestDelete,
	} {
		if err := register(); err != nil {
			return err
		}
	}
	return nil
}

func (w *loop) serveReclaim() error {
	ask := func(r box.ReclaimAsk) box.Ask {
		return box.Ask{Kind: box.AskReclaim, ID: r.ID, By: r.By, Reclaim: r.ReclaimRequest}
	}
	return update(w, box.UpdateReclaim, "free disk in the box now, or plan it",
		func(r box.ReclaimAsk) error { return w.facts.CheckAsk(ask(r)) },
		func(ctx workflow.Context, r box.ReclaimAsk) (box.ReclaimReport, error) {
			result, err := w.answer(ctx, ask(r))
			if err != nil || result.Reclaim == nil {
				return box.ReclaimReport{}, err
			}
			return *result.Reclaim, nil
		})
}

func (w *loop) serveExport() error {
	ask := func(r box.Request) box.Ask { return box.Ask{Kind: box.AskExport, ID: r.ID, By: r.By} }
	return update(w, box.UpdateExport, "take or refresh the export now",
		func(r box.Request) error { return w.facts.CheckAsk(ask(r)) },
		func(ctx workflow.Context, r box.Request) (box.Receipt, error) {
			result, err := w.answer(ctx, ask(r))
			if err != nil || result.Receipt == nil {
				return box.Receipt{}, err
			}
			return *result.Receipt, nil
		})
}

func (w *loop) serveRequestDelete() error {
	return update(w, box.UpdateRequestDelete, "say what a deletion would lose, and give the token to confirm it", w.facts.CheckRequestDelete,
		func(ctx workflow.Context, r box.RequestDeleteAsk) (box.Loss, error) {
			if w.facts.ScanBeforeDelete() && (!w.facts.Occupied() || !w.looksAside()) {
				// Without an answer the last scan is shown, with its age.
				if _, err := w.answer(ctx, box.Ask{Kind: box.AskScan, ID: "scan:" + r.ID, By: r.By}); err != nil {
					w.log.Info("scan before a deletion failed", "error", err.Error())
				}
				if err := w.facts.CheckRequestDelete(r); err != nil {
					return box.Loss{}, err
				}
			}
			return w.facts.RequestDelete(r, w.now()), nil
		})
}

// answer queues an ask and waits until the loop has dealt with it.
func (w *loop) answer(ctx workflow.Context, ask box.Ask) (box.Result, error) {
	w.facts.Queue(ask)
	return w.result(ctx, ask.ID)
}

// result waits until the loop has the result of a request.
func (w *loop) result(ctx workflow.Context, id string) (box.Result, error) {
	w.dirty = true
	var result box.Result
	err := workflow.Await(ctx, func() bool {
		done, ok := w.facts.ResultFor(id)
		result = done
		return ok
	})
	if err == nil && result.Error != "" {
		err = box.Errorf(result.Class, "%s", result.Error)
	}
	return result, err
}

func (w *loop) serveQueries() error {
	if err := workflow.SetQueryHandlerWithOptions(w.ctx, box.QueryStatus,
		func() (box.Status, error) { return w.facts.StatusAt(w.now()), nil },
		workflow.QueryHandlerOptions{Description: "state, next action and time, holders, newest export"}); err != nil {
		return err
	}
	return workflow.SetQueryHandlerWithOptions(w.ctx, box.QueryWhy,
		func() (box.Why, error) { return w.facts.WhyAt(w.now()), nil },
		workflow.QueryHandlerOptions{Description: "why it is as it is, what comes next, and who can stop it"})
}
