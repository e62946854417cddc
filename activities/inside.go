package activities

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// slack is how much younger than the deadline a box may call its last use: it
// counts in whole seconds.
const slack = 2 * time.Second

// Quiesce closes the door, looks once more, and prepares the box for its pause.
// When it is in use after all the door is open again before this returns.
func (b *Boxes) Quiesce(ctx context.Context, in QuiesceInput) (box.Outcome, error) {
	return b.run(ctx, box.StepQuiesce, func(ctx context.Context) (out box.Outcome, err error) {
		client, err := b.dial(ctx, in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		defer client.Close()
		if err := drain(ctx, client); err != nil {
			return box.Outcome{}, err
		}
		defer func() {
			if err != nil || out.Busy != "" { // never leave the door closed behind a change of mind
				open, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBehind)
				defer cancel()
				_ = client.Undrain(open) // its lease ends by itself
			}
		}()
		use, err := client.Use(ctx)
		if err != nil {
			return box.Outcome{}, err
		}
		if why := busy(use, in.IdleFor.Std()); why != "" {
			return box.Outcome{Use: &use, Busy: why}, nil
		}
		if err := client.PrepareForPause(ctx); err != nil {
			return box.Outcome{}, err
		}
		after, err := client.Use(ctx) // prepare-for-pause may have written events
		if err != nil {
			return box.Outcome{}, err
		}
		return box.Outcome{Use: &after}, nil
	})
}

// busy says why a box is in use, or nothing. A box that counts in whole seconds
// may call its last use a little younger than it is.
func busy(use box.Use, idle time.Duration) string {
	switch {
	case idle == 0:
		return ""
	case use.Running > 0:
		return "a conversation is running in it"
	case use.InFlight > 0:
		return "a request that starts work is being served"
	case use.IdleFor.Std()+min(slack, idle/2) < idle:
		return "its last use is only " + box.Duration(use.IdleFor.Std().Round(time.Second)).String() + " ago"
	}
	return ""
}

// drain refuses new work for a while. A server that cannot drain is taken as it
// is: the last look is then the only guard.
func drain(ctx context.Context, client *agentserver.Client) error {
	err := client.Drain(ctx, drainLease)
	if box.ClassOf(err) == box.ClassUnsupported {
		return nil
	}
	return err
}

// drained keeps the drain of a suspend sequence up while act runs.
func drained(ctx context.Context, client *agentserver.Client, on bool, act func(context.Context) error) error {
	if !on {
		return act(ctx)
	}
	if err := drain(ctx, client); err != nil {
		return err
	}
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(drainRenew)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = drain(ctx, client) // the next renewal tries again
			}
		}
	})
	defer wait.Wait()
	defer close(done)
	return act(ctx)
}

// Undrain lets work in again.
func (b *Boxes) Undrain(ctx context.Context, in Target) (box.Outcome, error) {
	return b.run(ctx, box.StepUndrain, func(ctx context.Context) (box.Outcome, error) {
		client, err := b.dial(ctx, in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		defer client.Close()
		err = client.Undrain(ctx)
		if box.ClassOf(err) == box.ClassUnsupported {
			err = nil
		}
		return box.Outcome{}, err
	})
}

// Scan reads how the box is used, for a person who asked.
func (b *Boxes) Scan(ctx context.Context, in Target) (box.Outcome, error) {
	return b.run(ctx, box.StepScan, func(ctx context.Context) (box.Outcome, error) {
		client, err := b.dial(ctx, in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		defer client.Close()
		use, err := client.Use(ctx)
		return box.Outcome{Use: &use}, err
	})
}

// Reclaim runs one pass in the box, or plans it.
func (b *Boxes) Reclaim(ctx context.Context, in ReclaimInput) (box.Outcome, error) {
	return b.run(ctx, box.StepReclaim, func(ctx context.Context) (out box.Outcome, err error) {
		client, err := b.dial(ctx, in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		defer client.Close()
		err = drained(ctx, client, in.Drained, func(ctx context.Context) error {
			out.Reclaim, err = client.Reclaim(ctx, in.Request)
			return err
		})
		shorten(&out.Reclaim)
		return out, err
	})
}

const maxReported = 50

// shorten leaves the items that tell most: a history is no place for a file
// list. What is (to be) taken comes before what is left, the largest first.
func shorten(r *box.ReclaimReport) {
	if len(r.Items) <= maxReported {
		return
	}
	rank := func(i box.ReclaimItem) int64 {
		if i.Skipped == "" {
			return i.Bytes
		}
		return i.Bytes - math.MaxInt64
	}
	slices.SortStableFunc(r.Items, func(a, b box.ReclaimItem) int { return cmp.Compare(rank(b), rank(a)) })
	r.Omitted = len(r.Items) - maxReported
	r.Items = r.Items[:maxReported]
	slices.SortFunc(r.Items, func(a, b box.ReclaimItem) int { return strings.Compare(a.Path, b.Path) })
}

// Export takes the history and the workspace into the store and returns the
// receipt, which exists only after every object was read back.
func (b *Boxes) Export(ctx context.Context, in ExportInput) (box.Outcome, error) {
	return b.run(ctx, box.StepExport, func(ctx context.Context) (out box.Outcome, err error) {
		leave, err := b.Transfers.take(ctx)
		if err != nil {
			return box.Outcome{}, err
		}
		defer leave()
		client, err := b.dial(ctx, in.Ref)
		if err != nil {
			return box.Outcome{}, err
		}
		defer client.Close()
		err = drained(ctx, client, in.Drained, func(ctx context.Context) error {
			request := exports.Request{Workspace: in.Workspace, Epoch: in.Ref.Epoch, Attempt: in.Step, Previous: in.Previous, Secrets: in.Secrets}
			out.Receipt, err = b.Store.Export(ctx, request, agentserver.History{Client: client}, func(p exports.Progress) {
				tell(ctx, p.Done, p.Total, string(p.Stage), p.Bytes)
				if b.Progress != nil {
					b.Progress(in.Workspace, p)
				}
			})
			return err
		})
		if err != nil {
			return box.Outcome{}, err
		}
		return out, b.record(ctx, in.Target, exports.KindExported, out.Receipt)
	})
}
