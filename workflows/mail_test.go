package workflows_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
)

// tellsWhoListens puts the listeners into every outcome, as activities.Boxes do.
type tellsWhoListens struct {
	interceptor.WorkerInterceptorBase

	who []box.Listener
}

func (i *tellsWhoListens) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &toldOutcome{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, who: i.who}
}

type toldOutcome struct {
	interceptor.ActivityInboundInterceptorBase

	who []box.Listener
}

func (o *toldOutcome) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	result, err := o.Next.ExecuteActivity(ctx, in)
	if out, ok := result.(box.Outcome); ok && err == nil {
		out.Listeners = o.who
		return out, nil
	}
	return result, err
}

// post is what the activities answer to a batch of lifecycle events.
func (b *fakeBoxes) post(p box.Posting) box.Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.posts = append(b.posts, p)
	var out box.Outcome
	for _, to := range p.To {
		d := box.Delivery{Receiver: to.Name, Taken: to.Taken}
		for _, e := range p.Events {
			if e.Number <= to.Taken {
				continue
			}
			if d.Failed = b.refuse != nil && b.refuse(to.Name, e); d.Failed {
				break
			}
			d.Taken = e.Number
		}
		out.Deliveries = append(out.Deliveries, d)
	}
	return out
}

// kinds is what was posted, each event once, and requires that ids are its own.
func (b *fakeBoxes) kinds(t *testing.T) []box.EventKind {
	t.Helper()
	var out []box.EventKind
	seen := map[string]int{}
	for _, p := range b.posts {
		for _, e := range p.Events {
			require.NotEmpty(t, e.ID)
			if number, again := seen[e.ID]; again {
				require.Equal(t, number, e.Number, "one id for two events")
				continue
			}
			seen[e.ID] = e.Number
			out = append(out, e.Kind)
		}
	}
	return out
}

func wholeLifeEvents() []box.EventKind {
	return []box.EventKind{
		box.EventCreated, box.EventSuspended, box.EventResumed, box.EventSuspended, box.EventAwaitingConfirm,
		box.EventDeletionRequested, box.EventDeletionConfirmed, box.EventUndoWindow, box.EventBoxArchived,
	}
}

func TestAWholeLifeIsToldAtEveryCadence(t *testing.T) {
	t.Parallel()
	for _, cadence := range []int{0, 1, 2, 3, 5, 7, 1000} {
		p := newPlay(t)
		p.box.listeners = []box.Listener{{Name: "ops"}}
		p.cadence = cadence
		playWholeLife(p)
		require.NoError(t, p.run(), "cadence %d", cadence)
		require.Equal(t, wholeLifeEvents(), p.box.kinds(t), "cadence %d", cadence)
		require.Equal(t, wantLife(), p.box.log[:len(wantLife())], "cadence %d: the steps are those of a life without mail", cadence)
	}
}

func TestNobodyListensAndNothingIsPosted(t *testing.T) {
	t.Parallel()
	p := wholeLife(t, 0)
	require.Empty(t, p.box.posts)
}

func TestADeadReceiverKeepsNothingOpen(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		dies        box.EventKind // from here on
		least, most time.Duration // from the destruction to the end of the workflow
	}{
		"one that was dead for long gets one try": {box.EventCreated, 0, 2 * minute},
		"one that is dead just now gets an hour":  {box.EventBoxArchived, time.Hour, time.Hour + 2*minute},
	} {
		for _, cadence := range []int{0, 1} {
			p := newPlay(t)
			p.cadence = cadence
			p.box.listeners = []box.Listener{{Name: "dead"}, {Name: "good"}}
			dead := false
			p.box.refuse = func(name string, e box.Event) bool {
				dead = dead || e.Kind == row.dies
				return name == "dead" && dead
			}
			playWholeLife(p)
			require.NoError(t, p.run(), name)
			require.Equal(t, wholeLifeEvents(), p.box.kinds(t), name)
			end := p.now.Sub(p.start) - 36*day - minute
			require.GreaterOrEqual(t, end, row.least, name)
			require.Less(t, end, row.most, name)
			require.Less(t, len(p.box.posts), 60, name)
		}
	}
}

// slowNotices answers to SendNotice only after a time on the workflow's clock.
func slowNotices(p *play, after time.Duration, ended *[]time.Duration) {
	p.prepare = func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity("SendNotice", mock.Anything, mock.Anything).After(after).Return(func(ctx context.Context, in activities.NoticeInput) (box.Outcome, error) {
			*ended = append(*ended, p.box.now().Sub(p.start))
			out, err := p.box.SendNotice(ctx, in)
			out.Listeners = p.box.listeners
			return out, err
		})
	}
}

func TestNothingWaitsForMail(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	p.spec.Policy.Idle = box.Duration(2 * time.Second)
	p.box.listeners = []box.Listener{{Name: "slow"}}
	var ended []time.Duration
	slowNotices(p, 90*time.Second, &ended)
	statusOf(p, 10*time.Second, func(s box.Status) {
		if s.State != box.StateSuspended {
			t.Errorf("after ten seconds it is %s: it waits for a webhook", s.State)
		}
		if len(s.Webhooks) != 1 || s.Webhooks[0].Waiting != 2 {
			t.Errorf("webhooks %+v", s.Webhooks)
		}
	})
	p.update(20*time.Second, box.UpdateConnect, box.ConnectRequest{Request: id("c"), HolderID: "tab", Lease: box.Duration(time.Hour)}, nil)
	statusOf(p, 21*time.Second, func(s box.Status) {
		if s.State != box.StateRunning {
			t.Errorf("a second after a connect it is %s", s.State)
		}
	})
	p.stop(10 * minute)
	_ = p.run()
	require.Equal(t, []box.EventKind{box.EventCreated, box.EventSuspended, box.EventResumed}, p.box.kinds(t))
	require.NotEmpty(t, ended)
}

func TestAUserWhoArrivesDoesNotWaitForANotice(t *testing.T) {
	t.Parallel()
	p := newPlay(t)
	var ended []time.Duration
	slowNotices(p, 90*time.Second, &ended)
	notice := 15*minute + 27*day
	p.update(notice+time.Second, box.UpdateConnect, box.ConnectRequest{Request: id("c"), HolderID: "tab", Lease: box.Duration(time.Hour)}, nil)
	statusOf(p, notice+2*time.Second, func(s box.Status) {
		if s.State != box.StateRunning {
			t.Errorf("a second after the connect it is %s", s.State)
		}
		if s.Failure != nil {
			t.Errorf("a notice that is called off counts as failed: %+v", s.Failure)
		}
	})
	p.stop(notice + 5*minute)
	_ = p.run()
	require.True(t, slices.Contains(p.box.log, box.StepResume))
}
