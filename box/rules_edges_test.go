package box_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

func TestEveryRequestNeedsAnID(t *testing.T) {
	t.Parallel()
	w := awake(t)
	f := w.facts
	for name, err := range map[string]error{
		"connect":        f.CheckConnect(box.ConnectRequest{HolderID: "h"}),
		"suspend":        f.CheckSuspend(box.Request{}),
		"resume":         f.CheckResume(box.Request{}),
		"switch":         f.CheckSwitch(box.SwitchAsk{}),
		"policy":         f.CheckSetPolicy(box.SetPolicyAsk{}),
		"request-delete": f.CheckRequestDelete(box.RequestDeleteAsk{}),
		"ask":            f.CheckAsk(box.Ask{Kind: box.AskExport}),
	} {
		require.Equal(t, box.ClassInvalid, box.ClassOf(err), name)
		require.ErrorContains(t, err, "request_id", name)
	}
	for id, ok := range map[string]bool{
		strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "!": true, "~": true, "\x7f": false, " ": false, "é": false,
	} {
		require.Equal(t, ok, box.CheckRequest(box.Request{ID: id}) == nil, "%q", id)
	}
	require.NoError(t, box.CheckRequest(box.Request{ID: "x", By: strings.Repeat("b", 128)}))
	require.ErrorContains(t, box.CheckRequest(box.Request{ID: "x", By: strings.Repeat("b", 129)}), "by")
	require.ErrorContains(t, box.CheckRequest(box.Request{ID: "x", By: "ana\n| suspended |"}), "by: ", "it is shown in lists and pages")
	require.NoError(t, box.CheckRequest(box.Request{ID: "x", By: "Ana Ö"}))
}

func TestConnectChecksWhatItIsGiven(t *testing.T) {
	t.Parallel()
	ok := box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "h"}
	for name, row := range map[string]struct {
		change func(*box.ConnectRequest)
		field  string
	}{
		"it is fine":                  {func(*box.ConnectRequest) {}, ""},
		"a holder of 128 characters":  {func(r *box.ConnectRequest) { r.HolderID = strings.Repeat("h", 128) }, ""},
		"a holder of 129":             {func(r *box.ConnectRequest) { r.HolderID = strings.Repeat("h", 129) }, "holder_id"},
		"a holder with a space":       {func(r *box.ConnectRequest) { r.HolderID = "a b" }, ""},
		"a holder with a tab":         {func(r *box.ConnectRequest) { r.HolderID = "a\tb" }, "holder_id"},
		"a holder with a delete":      {func(r *box.ConnectRequest) { r.HolderID = "a\x7fb" }, "holder_id"},
		"an origin of 128 characters": {func(r *box.ConnectRequest) { r.Origin = strings.Repeat("o", 128) }, ""},
		"an origin of 129":            {func(r *box.ConnectRequest) { r.Origin = strings.Repeat("o", 129) }, "origin"},
		"an origin with a line break": {func(r *box.ConnectRequest) { r.Origin = "a\nb" }, "origin"},
		"an operation":                {func(r *box.ConnectRequest) { r.Kind = box.HolderOperation }, ""},
		"another kind":                {func(r *box.ConnectRequest) { r.Kind = "visit" }, "kind"},
		"the longest lease":           {func(r *box.ConnectRequest) { r.Lease = box.Duration(12 * time.Hour) }, ""},
		"a longer one":                {func(r *box.ConnectRequest) { r.Lease = box.Duration(12*time.Hour + 1) }, "lease"},
		"a lease for ever":            {func(r *box.ConnectRequest) { r.Lease = box.Never }, "lease"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := awake(t)
			r := ok
			row.change(&r)
			err := w.facts.CheckConnect(r)
			if row.field == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, row.field+": ")
		})
	}
}

func TestACreationThatFailed(t *testing.T) {
	t.Parallel()
	failed := func(t *testing.T) *world {
		t.Helper()
		w := newWorld(t, spec())
		w.fail[box.StepCreate] = box.ClassInvalid
		w.settle()
		w.state(box.StateCreateFailed)
		return w
	}
	t.Run("is tried again by a resume, and by nothing else", func(t *testing.T) {
		t.Parallel()
		w := failed(t)
		require.ErrorContains(t, w.facts.CheckConnect(box.ConnectRequest{Request: box.Request{ID: "c"}, HolderID: "h"}), "resume tries again")
		require.ErrorContains(t, w.facts.CheckSuspend(box.Request{ID: "s"}), "nothing to suspend")
		w.pass(day)
		w.state(box.StateCreateFailed)
		delete(w.fail, box.StepCreate)
		r := box.Request{ID: "r", By: "ana"}
		require.NoError(t, w.facts.CheckResume(r))
		require.Contains(t, w.facts.Resume(r, w.now).Text, "tried again")
		require.Nil(t, w.facts.Failure)
		w.settle()
		w.state(box.StateRunning)
	})
	t.Run("names the box that may exist after an answer that was lost", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.fail[box.StepCreate] = box.ClassDeadlineExceeded
		w.settle()
		w.state(box.StateCreating)
		w.fail[box.StepCreate] = box.ClassInvalid
		w.now = w.settle().At
		w.settle()
		w.state(box.StateCreateFailed)
		require.Contains(t, w.facts.Transitions[len(w.facts.Transitions)-1].Reason.Text, "a box may exist")
	})
	t.Run("does not stand in the way of a deletion that was agreed meanwhile", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		w.fail[box.StepCreate] = box.ClassUnavailable
		w.between = func(step box.Step) {
			if step.Kind == box.StepCreate {
				w.between = nil
				loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d", By: "ana"}}, w.now)
				w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
			}
		}
		w.settle()
		w.state(box.StateBoxArchived)
	})
	t.Run("a deletion that is taken back before anything was made lets it be made", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec())
		loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d", By: "ana"}}, w.now)
		w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
		w.state(box.StateExporting)
		w.facts.CancelDelete(box.CancelDelete{By: "ana"}, w.now)
		w.state(box.StateCreating)
		w.settle()
		w.state(box.StateRunning)
	})
}

func TestABlockedDeletionAndAVisitor(t *testing.T) {
	t.Parallel()
	blocked := func(t *testing.T) *world {
		t.Helper()
		w := awake(t)
		w.toSuspended()
		w.badStore = true
		loss := w.requestDelete()
		w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
		w.settle()
		w.state(box.StateDeleteBlocked)
		return w
	}
	t.Run("is tried again after an hour, then two, up to a day", func(t *testing.T) {
		t.Parallel()
		w := blocked(t)
		for _, hours := range []int{1, 2, 4, 8, 16, 24, 24} {
			step := w.settle()
			require.Equal(t, time.Duration(hours)*time.Hour, step.At.Sub(w.now))
			w.now = step.At
			w.settle()
			w.state(box.StateDeleteBlocked)
		}
	})
	t.Run("waits while it is frozen", func(t *testing.T) {
		t.Parallel()
		w := blocked(t)
		w.facts.Freeze(box.SwitchAsk{Request: box.Request{ID: "f"}, On: true}, w.now)
		require.Zero(t, w.settle().At)
		w.pass(10 * day)
		w.state(box.StateDeleteBlocked)
		require.Zero(t, w.facts.Deletion.Blocked)
	})
	t.Run("ends by a resume", func(t *testing.T) {
		t.Parallel()
		w := blocked(t)
		r := box.Request{ID: "r", By: "ana"}
		require.NoError(t, w.facts.CheckResume(r))
		w.facts.Resume(r, w.now)
		require.Nil(t, w.facts.Deletion)
		w.settle()
		w.state(box.StateRunning)
	})
}

func TestAnUndoWindowAndTheProvidersWall(t *testing.T) {
	t.Parallel()
	c := row()
	c.PausedLife = box.Span(2 * day)
	for undo, accepted := range map[time.Duration]bool{2*day - 15*time.Minute - time.Second: true, 2*day - 15*time.Minute: false, 3 * day: false, 0: true} {
		s := spec()
		s.Policy.PausedTTL = box.Duration(day)
		w := newWorldAt(t, s, c)
		w.settle() // it runs: the window begins when it is suspended
		loss := w.facts.RequestDelete(box.RequestDeleteAsk{Request: box.Request{ID: "d", By: "ana"}, Undo: box.Duration(undo)}, w.now)
		w.facts.ConfirmDelete(box.ConfirmDelete{Token: loss.Token, By: "ana"}, w.now)
		require.Equal(t, accepted, w.facts.Confirmation.Accepted, "%s: %s", undo, w.facts.Confirmation.Reason.Text)
	}
}

func TestNamesOfTheEngine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "box/demo", box.WorkflowID("demo"))
	require.Equal(t, "boxkeeper-local", box.ActivityQueue("local"))
	w := awake(t)
	require.Equal(t, "e1-s1", w.facts.StepID())
	w.after(idle)
	require.Equal(t, "e1-s5", w.facts.StepID(), "create, quiesce, reclaim, export, suspend")
}

// A full disk is cleared before anything is copied off it, on every way to a
// suspend, and an export that fails for want of room is not passed over.
func TestScenario105TheDiskIsClearedBeforeTheExport(t *testing.T) {
	t.Parallel()
	w := awake(t)
	w.fail[box.StepExport] = box.ClassExhausted
	w.after(idle)
	reclaimed, exported := slices.Index(w.log, box.StepReclaim), slices.Index(w.log, box.StepExport)
	require.NotEqual(t, -1, reclaimed, "%v", w.log)
	require.Greater(t, exported, reclaimed, "%v", w.log)
	require.True(t, w.facts.Receipt.IsZero(), "there is no receipt")
	delete(w.fail, box.StepExport)
	w.pass(time.Hour)
	require.False(t, w.facts.Receipt.IsZero(), "%v", w.log)
	w.state(box.StateSuspended)
}

func TestErrorsKeepTheirCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("the disk is full")
	err := box.Errorf(box.ClassExhausted, "write the export: %w", cause)
	require.ErrorIs(t, err, cause)
	require.Equal(t, "write the export: the disk is full", err.Error())
	require.Empty(t, errors.Unwrap(err).Error(), "its text is in the message already")
	require.NoError(t, errors.Unwrap(box.Errorf(box.ClassInvalid, "no cause")))
}

func TestSpecsRefuseWhatCannotBeStored(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out["N"+strings.Repeat("x", i)] = "v"
		}
		return out
	}
	large := func(of string) map[string]string { // the facts hold it twice, and the engine takes 2 MB
		out := many(64)
		for name := range out {
			out[name] = strings.Repeat(of, 4096)
		}
		return out
	}
	for name, row := range map[string]struct {
		change func(*box.Spec)
		field  string
	}{
		"32 labels":   {func(s *box.Spec) { s.Labels = many(32) }, ""},
		"33 labels":   {func(s *box.Spec) { s.Labels = many(33) }, "labels"},
		"64 settings": {func(s *box.Spec) { s.Env = many(64) }, ""},
		"65 settings": {func(s *box.Spec) { s.Env = many(65) }, "env"},
		"64 secrets": {func(s *box.Spec) {
			s.Secrets = many(64)
			for name := range s.Secrets {
				s.Secrets[name] = "env:X"
			}
		}, ""},
		"65 secrets":                       {func(s *box.Spec) { s.Secrets = many(65) }, "secrets"},
		"a reference of 1024 characters":   {func(s *box.Spec) { s.Secrets = map[string]string{"X": "file:/" + strings.Repeat("p", 1018)} }, ""},
		"a reference of 1025":              {func(s *box.Spec) { s.Secrets = map[string]string{"X": "file:/" + strings.Repeat("p", 1019)} }, "secrets.X"},
		"settings as large as they can be": {func(s *box.Spec) { s.Env = large("v") }, ""},
		"settings that are written larger": {func(s *box.Spec) { s.Env = large("\x01") }, "spec"},
		"a label with a bad name":          {func(s *box.Spec) { s.Labels = map[string]string{"-x": "v"} }, "labels.-x"},
		"a label of 256 characters":        {func(s *box.Spec) { s.Labels = map[string]string{"x": strings.Repeat("v", 256)} }, ""},
		"a label of 257":                   {func(s *box.Spec) { s.Labels = map[string]string{"x": strings.Repeat("v", 257)} }, "labels.x"},
		"a label with a space":             {func(s *box.Spec) { s.Labels = map[string]string{"x": "a b"} }, ""},
		"a label with a line end":          {func(s *box.Spec) { s.Labels = map[string]string{"x": "a\nb"} }, "labels.x"},
		"a label that is called a key":     {func(s *box.Spec) { s.Labels = map[string]string{"api-key": "x"} }, "labels.api-key"},
		"a setting of 4096 bytes":          {func(s *box.Spec) { s.Env = map[string]string{"X": strings.Repeat("v", 4096)} }, ""},
		"a setting of 4097":                {func(s *box.Spec) { s.Env = map[string]string{"X": strings.Repeat("v", 4097)} }, "env.X"},
		"a setting with a NUL":             {func(s *box.Spec) { s.Env = map[string]string{"X": "a\x00b"} }, "env.X"},
		"a setting with a bad name":        {func(s *box.Spec) { s.Env = map[string]string{"1X": "v"} }, "env.1X"},
		"a secret with a bad name":         {func(s *box.Spec) { s.Secrets = map[string]string{"1X": "env:X"} }, "secrets.1X"},
		"a secret that is a value":         {func(s *box.Spec) { s.Secrets = map[string]string{"X": "hunter2"} }, "secrets.X"},
		"an image of 256 characters":       {func(s *box.Spec) { s.Image = strings.Repeat("i", 256) }, ""},
		"an image of 257":                  {func(s *box.Spec) { s.Image = strings.Repeat("i", 257) }, "image"},
		"an image with a space":            {func(s *box.Spec) { s.Image = "a b" }, "image"},
		"an image with a delete":           {func(s *box.Spec) { s.Image = "a\x7fb" }, "image"},
		"a longest length":                 {func(s *box.Spec) { s.Policy.Idle = box.Duration(3650 * day) }, ""},
		"a longer one":                     {func(s *box.Spec) { s.Policy.Idle = box.Duration(3650*day + 1) }, "policy.idle"},
		"a shortest length":                {func(s *box.Spec) { s.Policy.Idle = box.Duration(time.Second) }, ""},
		"a shorter one":                    {func(s *box.Spec) { s.Policy.Idle = box.Duration(time.Second - 1) }, "policy.idle"},
		"a notice as long as the TTL":      {func(s *box.Spec) { s.Policy.PausedTTL, s.Policy.Notice = box.Duration(day), box.Duration(day) }, "policy.notice"},
		"a notice a little shorter":        {func(s *box.Spec) { s.Policy.PausedTTL, s.Policy.Notice = box.Duration(day), box.Duration(day-1) }, ""},
		"a notice where nothing expires":   {func(s *box.Spec) { s.Policy.PausedTTL, s.Policy.Notice = box.Never, box.Duration(day) }, ""},
		"a TTL as long as the notice":      {func(s *box.Spec) { s.Policy.PausedTTL = box.Duration(72 * time.Hour) }, ""},
		"a grace period that never is":     {func(s *box.Spec) { s.Policy.Grace = box.Never }, "policy.grace"},
		"an expiry that nobody knows":      {func(s *box.Spec) { s.Policy.OnExpiry = "burn" }, "policy.on_expiry"},
		"a spec of a version of tomorrow":  {func(s *box.Spec) { s.Version++ }, "version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := spec()
			row.change(&s)
			err := s.Validate()
			if row.field == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, box.ClassInvalid, box.ClassOf(err))
			require.ErrorContains(t, err, row.field+": ")
		})
	}
	require.Equal(t, box.Duration(36*time.Hour), box.Policy{PausedTTL: box.Duration(72 * time.Hour)}.Effective().Notice, "half of it, since the usual one would be all of it")
	require.Equal(t, box.Duration(72*time.Hour), box.Policy{PausedTTL: box.Duration(73 * time.Hour)}.Effective().Notice)
}
