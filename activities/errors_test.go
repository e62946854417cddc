package activities_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

// notifier answers what it is told to.
type notifier struct {
	err  error
	told []box.Delivery
	who  []box.Listener
}

func (n notifier) Listeners() []box.Listener { return n.who }

func (n notifier) Deliver(context.Context, box.Posting) ([]box.Delivery, error) { return n.told, n.err }

func TestErrorsBecomeWhatTheEngineActsOn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		class         box.Class
		retry, benign bool
	}{
		{box.ClassUnknown, true, false},
		{box.ClassNotFound, false, false},
		{box.ClassAlreadyExists, true, false},
		{box.ClassInvalid, false, false},
		{box.ClassFailedPrecondition, false, false},
		{box.ClassConflict, true, true},
		{box.ClassUnauthorized, false, false},
		{box.ClassExhausted, true, true},
		{box.ClassUnavailable, true, true},
		{box.ClassUnsupported, false, false},
		{box.ClassCanceled, false, false},
		{box.ClassDeadlineExceeded, true, false},
		{box.ClassInternal, true, false},
	} {
		r := newRigAt(t, "http://127.0.0.1:1")
		r.boxes.Notify = notifier{err: box.Errorf(row.class, "as told"), who: []box.Listener{{Name: "ops"}}}
		_, err := run(t.Context(), r, r.boxes.SendNotice, activities.NoticeInput{Posting: box.Posting{Workspace: "w"}})
		var app *temporal.ApplicationError
		if !errors.As(err, &app) {
			t.Errorf("%s became %T %v", row.class, err, err)
			continue
		}
		if app.Type() != string(row.class) || app.NonRetryable() == row.retry || (app.Category() == temporal.ApplicationErrorCategoryBenign) != row.benign {
			t.Errorf("%s: type %s, retried %v, category %v", row.class, app.Type(), !app.NonRetryable(), app.Category())
		}
		if got := activities.FailureOf(err); !reflect.DeepEqual(got, box.StepFailure{
			Class: row.class, Message: "notify: as told", NotBegun: row.class == box.ClassUnauthorized, Listeners: []box.Listener{{Name: "ops"}},
		}) {
			t.Errorf("%s is read back as %+v", row.class, got)
		}
		if got := r.steps.last(); got != "notify fake "+string(row.class) {
			t.Errorf("recorded is %q", got)
		}
	}
}

// What an account lacks goes along as far as to the rules, however the error was
// wrapped; a rate has no such thing.
func TestABlockGoesAlong(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		err  error
		want box.Block
	}{
		"a quota":                         {&box.Error{Class: box.ClassExhausted, Message: "full", Block: box.BlockQuota}, box.BlockQuota},
		"wrapped":                         {box.Errorf(box.ClassExhausted, "once more: %w", &box.Error{Class: box.ClassExhausted, Block: box.BlockBalance}), box.BlockBalance},
		"a rate":                          {box.Errorf(box.ClassExhausted, "too many"), ""},
		"below an error of another class": {box.Errorf(box.ClassUnavailable, "look again: %w", &box.Error{Class: box.ClassExhausted, Block: box.BlockQuota}), ""},
	} {
		r := newRigAt(t, "http://127.0.0.1:1")
		r.boxes.Notify = notifier{err: row.err}
		_, err := run(t.Context(), r, r.boxes.SendNotice, activities.NoticeInput{Posting: box.Posting{Workspace: "w"}})
		if got := activities.FailureOf(err).Block; got != row.want {
			t.Errorf("%s: the rules read %q", what, got)
		}
	}
}

// A short wait is the engine's; a long one goes back, so that it is durable.
func TestWaits(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		wait      time.Duration
		goesBack  bool
		remembers time.Duration
	}{
		{0, false, 0},
		{10 * time.Second, false, 0},
		{10*time.Second + 1, true, 10*time.Second + 1},
		{time.Hour, true, time.Hour},
	} {
		r := newRigAt(t, "http://127.0.0.1:1")
		target := activities.Target{Workspace: workspace, Ref: do(r, r.boxes.Create, quick()).Observation.Ref, Step: "s"}
		r.cloud.Inject(fakebox.Fault{Op: fakebox.OpSuspend, Class: box.ClassExhausted, RetryAfter: row.wait})
		_, err := run(t.Context(), r, r.boxes.Suspend, target)
		var app *temporal.ApplicationError
		if !errors.As(err, &app) || app.NextRetryDelay() != row.wait || app.NonRetryable() != row.goesBack {
			t.Errorf("%s: %v, next %v", row.wait, err, app)
			continue
		}
		if got := activities.FailureOf(err); got.RetryAfter.Std() != row.remembers || got.Class != box.ClassExhausted {
			t.Errorf("%s is read back as %+v", row.wait, got)
		}
	}
}

// quick is a create whose box is never waited for long.
func quick() activities.CreateInput { return creating("e1-s1") }

func TestFailureOfOthers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err  error
		want box.Class
	}{
		"cancelled":              {temporal.NewCanceledError(), box.ClassCanceled},
		"timed out":              {temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_HEARTBEAT, nil), box.ClassDeadlineExceeded},
		"something else":         {errors.New("boom"), box.ClassUnknown},
		"a panic of the worker":  {errors.Join(errors.New("panic")), box.ClassUnknown},
		"another program's type": {temporal.NewApplicationError("text", "SomeType"), "SomeType"},
	} {
		got := activities.FailureOf(row.err)
		if got.Class != row.want || got.Message == "" || got.RetryAfter != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestACancelledStepIsACancellation(t *testing.T) {
	t.Parallel()
	r := newRigAt(t, "http://127.0.0.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := run(ctx, r, r.boxes.Observe, activities.Target{Workspace: workspace, Ref: box.Ref{Provider: "fake", ID: "fb-1", Name: name, Epoch: 1, Fingerprint: "fakebox"}})
	if !temporal.IsCanceledError(err) || activities.FailureOf(err).Class != box.ClassCanceled {
		t.Errorf("it ended with %T %v", err, err)
	}
}
