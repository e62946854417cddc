package providers_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/fakebox"
)

const installation = "0a1b2c3d"

func keys(t *testing.T) providers.KeySource {
	t.Helper()
	k, err := providers.NewKeySource(box.Secret(strings.Repeat("s", 32)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func over(t *testing.T, d driver.Driver) *providers.Provider {
	t.Helper()
	p, err := providers.New("fake", d, &providers.Options{Installation: installation, Keys: keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// laddered is the row of a cloud that suspends with memory, and deeper.
func laddered() box.Capabilities {
	row := fakebox.DefaultRow()
	row.MemoryKept, row.Deepen = box.Yes, box.Yes
	return row
}

func spec(workspace string) box.Spec {
	return box.Spec{Version: box.WireVersion, Workspace: workspace, Provider: "fake"}
}

func made(t *testing.T, p *providers.Provider, workspace string) box.Ref {
	t.Helper()
	seen, err := p.Create(t.Context(), spec(workspace), 1, driver.Start{})
	if err != nil {
		t.Fatal(err)
	}
	return seen.Ref
}

func wantClass(t *testing.T, what string, err error, want box.Class) {
	t.Helper()
	if got := box.ClassOf(err); got != want {
		t.Errorf("%s: class %q (%v), want %q", what, got, err, want)
	}
}

// overclaiming claims what it does not have: it hides List and Watch.
type overclaiming struct{ driver.Driver }

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	d := fakebox.New(nil).Driver(installation)
	good := providers.Options{Installation: installation, Keys: keys(t)}
	empty := fakebox.DefaultRow()
	empty.LookingIsUse = box.Unknown
	forgetful := fakebox.DefaultRow()
	forgetful.Deepen = box.Yes
	silent := laddered()
	silent.List, silent.Watch, silent.Adopt = box.No, box.No, box.No
	for name, row := range map[string]struct {
		class    box.Class
		instance string
		d        driver.Driver
		opts     *providers.Options
	}{
		"a bad name":                             {box.ClassInvalid, "Bad Name", d, &good},
		"no driver":                              {box.ClassInvalid, "fake", nil, &good},
		"no options":                             {box.ClassInvalid, "fake", d, nil},
		"a bad installation":                     {box.ClassInvalid, "fake", d, &providers.Options{Installation: "0A1B2C3D", Keys: keys(t)}},
		"no keys":                                {box.ClassInvalid, "fake", d, &providers.Options{Installation: installation}},
		"a claim without method":                 {box.ClassInternal, "fake", overclaiming{d}, &good},
		"memory that is given up and never kept": {box.ClassInternal, "fake", fakebox.New(&fakebox.Options{Row: forgetful}).Driver(installation), &good},
		"a deeper suspend without method":        {box.ClassInternal, "fake", overclaiming{fakebox.New(&fakebox.Options{Row: silent}).Driver(installation)}, &good},
		"a row with a hole":                      {box.ClassInternal, "fake", fakebox.New(&fakebox.Options{Row: empty}).Driver(installation), &good},
	} {
		_, err := providers.New(row.instance, row.d, row.opts)
		wantClass(t, name, err, row.class)
	}
	if p, err := providers.New("do-prod", d, &good); err != nil || p.Name() != "do-prod" {
		t.Errorf("a good instance: %v", err)
	}
}

func TestRefsOfOthersNeverReachTheDriver(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(&fakebox.Options{Row: laddered()})
	p := over(t, cloud.Driver(installation))
	ok := made(t, p, "work")
	for name, row := range map[string]struct {
		class  box.Class
		change func(r *box.Ref)
	}{
		"no ref":                  {box.ClassInvalid, func(r *box.Ref) { *r = box.Ref{} }},
		"another instance":        {box.ClassFailedPrecondition, func(r *box.Ref) { r.Provider = "other" }},
		"another installation":    {box.ClassFailedPrecondition, func(r *box.Ref) { r.Name = strings.Replace(r.Name, installation, "ffffffff", 1) }},
		"a name that is not ours": {box.ClassFailedPrecondition, func(r *box.Ref) { r.Name = "postgres" }},
		"another epoch":           {box.ClassFailedPrecondition, func(r *box.Ref) { r.Epoch = 2 }},
		"no id":                   {box.ClassFailedPrecondition, func(r *box.Ref) { r.ID = "" }},
		"no fingerprint":          {box.ClassFailedPrecondition, func(r *box.Ref) { r.Fingerprint = "" }},
	} {
		ref := ok
		row.change(&ref)
		before := len(cloud.Calls())
		for what, call := range calls(t, p) {
			wantClass(t, what+" with "+name, call(ref), row.class)
		}
		if sent := cloud.Calls()[before:]; len(sent) > 0 {
			t.Errorf("%s: the driver was called: %+v", name, sent)
		}
	}
}

func calls(t *testing.T, p *providers.Provider) map[string]func(ref box.Ref) error {
	t.Helper()
	ctx := t.Context()
	return map[string]func(ref box.Ref) error{
		"observe":  func(ref box.Ref) error { _, err := p.Observe(ctx, ref); return err },
		"suspend":  func(ref box.Ref) error { _, err := p.Suspend(ctx, ref); return err },
		"deepen":   func(ref box.Ref) error { _, err := p.Deepen(ctx, ref); return err },
		"resume":   func(ref box.Ref) error { _, err := p.Resume(ctx, ref, driver.Start{}); return err },
		"delete":   func(ref box.Ref) error { _, err := p.Delete(ctx, ref); return err },
		"endpoint": func(ref box.Ref) error { _, err := p.Endpoint(ctx, ref); return err },
	}
}

func TestSwappedAccountStopsEveryMutationAndProvesNothing(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(&fakebox.Options{Row: laddered()})
	p := over(t, cloud.Driver(installation))
	ref := made(t, p, "swap")
	cloud.SwapAccount("another")
	before := len(cloud.Calls())
	for what, call := range calls(t, p) {
		if what != "observe" {
			wantClass(t, what, call(ref), box.ClassFailedPrecondition)
		}
	}
	for _, c := range cloud.Calls()[before:] {
		if c.Op != fakebox.OpFingerprint {
			t.Errorf("%s was sent to another account", c.Op)
		}
	}
	if seen, err := p.Observe(t.Context(), ref); err == nil {
		t.Errorf("observe answered %q", seen.Phase)
	}
}

func TestAbsenceIsReadTwiceUnderTheRightFingerprint(t *testing.T) {
	t.Parallel()
	observed := func(c *fakebox.Cloud) int {
		n := 0
		for _, call := range c.Calls() {
			if call.Op == fakebox.OpObserve {
				n++
			}
		}
		return n
	}
	t.Run("one lie is not believed", func(t *testing.T) {
		t.Parallel()
		cloud := fakebox.New(nil)
		p := over(t, cloud.Driver(installation))
		ref := made(t, p, "lie")
		cloud.Inject(fakebox.Fault{Op: fakebox.OpObserve, Phase: box.PhaseGone})
		if seen, err := p.Observe(t.Context(), ref); err != nil || seen.Phase != box.PhaseRunning {
			t.Errorf("%q, %v, want running", seen.Phase, err)
		}
	})
	t.Run("an absence elsewhere is Unknown", func(t *testing.T) {
		t.Parallel()
		for skip := range 2 {
			cloud := fakebox.New(nil)
			p := over(t, cloud.Driver(installation))
			ref := made(t, p, "elsewhere")
			cloud.Vanish(ref.Name)
			cloud.Inject(fakebox.Fault{Op: fakebox.OpFingerprint, Skip: skip, Fingerprint: "another"})
			_, err := p.Observe(t.Context(), ref)
			wantClass(t, "observe", err, box.ClassUnknown)
		}
	})
	t.Run("an unreadable fingerprint is that error", func(t *testing.T) {
		t.Parallel()
		cloud := fakebox.New(nil)
		p := over(t, cloud.Driver(installation))
		ref := made(t, p, "unread")
		cloud.Vanish(ref.Name)
		cloud.Inject(fakebox.Fault{Op: fakebox.OpFingerprint, Class: box.ClassUnauthorized})
		_, err := p.Observe(t.Context(), ref)
		wantClass(t, "observe", err, box.ClassUnauthorized)
	})
	t.Run("two readings prove it", func(t *testing.T) {
		t.Parallel()
		cloud := fakebox.New(nil)
		p := over(t, cloud.Driver(installation))
		ref := made(t, p, "proof")
		cloud.Vanish(ref.Name)
		seen, err := p.Observe(t.Context(), ref)
		if err != nil || seen.Phase != box.PhaseGone || observed(cloud) != 2 {
			t.Errorf("%q, %v after %d readings", seen.Phase, err, observed(cloud))
		}
	})
	t.Run("a delete is read back", func(t *testing.T) {
		t.Parallel()
		cloud := fakebox.New(nil)
		p := over(t, lying{cloud.Driver(installation)})
		ref := made(t, p, "undead")
		_, err := p.Delete(t.Context(), ref)
		wantClass(t, "delete that did nothing", err, box.ClassUnavailable)
	})
}

// lying says that it deleted and suspended, and does nothing.
type lying struct{ *fakebox.Driver }

func (lying) Delete(_ context.Context, ref box.Ref) (box.Observation, error) {
	return box.Observation{Ref: ref, Phase: box.PhaseGone}, nil
}

func (lying) Suspend(_ context.Context, ref box.Ref) (box.Observation, error) {
	return box.Observation{Ref: ref, Phase: box.PhaseRunning}, nil
}

func (lying) Resume(_ context.Context, ref box.Ref, _ driver.Start) (box.Observation, error) {
	ref.Name = "bk-ffffffff-theirs-1"
	return box.Observation{Ref: ref, Phase: box.PhaseRunning}, nil
}

func TestAnswersThatProveNothingAreUnknown(t *testing.T) {
	t.Parallel()
	p := over(t, lying{fakebox.New(nil).Driver(installation)})
	ref := made(t, p, "proof")
	_, err := p.Suspend(t.Context(), ref)
	wantClass(t, "suspend that answers running", err, box.ClassUnknown)
	_, err = p.Resume(t.Context(), ref, driver.Start{})
	wantClass(t, "resume that answers another box", err, box.ClassUnknown)
}

// Deletion errors of every class stay errors: none of them means gone.
func TestNoErrorOfADeleteIsASuccess(t *testing.T) {
	t.Parallel()
	for _, class := range []box.Class{
		box.ClassUnauthorized, box.ClassExhausted, box.ClassUnavailable, box.ClassDeadlineExceeded,
		box.ClassInternal, box.ClassUnknown, box.ClassConflict, box.ClassNotFound, box.ClassFailedPrecondition,
	} {
		cloud := fakebox.New(nil)
		p := over(t, cloud.Driver(installation))
		ref := made(t, p, "errors")
		cloud.Inject(fakebox.Fault{Op: fakebox.OpDelete, Class: class, RetryAfter: time.Minute})
		_, err := p.Delete(t.Context(), ref)
		wantClass(t, "delete", err, class)
		if e, ok := errors.AsType[*box.Error](err); !ok || e.RetryAfter != time.Minute {
			t.Errorf("%s: the wait is lost: %v", class, err)
		}
		if s, _ := cloud.Statement(ref.Name); s.Phase != box.PhaseRunning {
			t.Errorf("%s: the box is %s", class, s.Phase)
		}
	}
}

// The rules take Unauthorized and its like for "the provider was not told", and
// open the way back: that must not be said of a deletion which was carried out.
func TestADeletionThatWasCarriedOutIsNeverSaidToBeRefused(t *testing.T) {
	t.Parallel()
	for _, class := range []box.Class{
		box.ClassUnauthorized, box.ClassFailedPrecondition, box.ClassInvalid, box.ClassUnsupported, box.ClassUnavailable,
	} {
		cloud := fakebox.New(nil)
		p := over(t, cloud.Driver(installation))
		ref := made(t, p, "refused-late")
		cloud.Inject(fakebox.Fault{Op: fakebox.OpObserve, Class: class})
		_, err := p.Delete(t.Context(), ref)
		wantClass(t, "delete whose proof is answered "+string(class), err, box.ClassUnavailable)
	}
	cloud := fakebox.New(nil)
	p := over(t, cloud.Driver(installation))
	ref := made(t, p, "refused-at-once")
	cloud.Inject(fakebox.Fault{Op: fakebox.OpDelete, Class: box.ClassUnauthorized})
	_, err := p.Delete(t.Context(), ref)
	wantClass(t, "delete that is refused", err, box.ClassUnauthorized)
}

func TestErrorsNameOperationInstanceAndBox(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	p := over(t, cloud.Driver(installation))
	ref := made(t, p, "named")
	cloud.Inject(fakebox.Fault{Op: fakebox.OpSuspend, Class: box.ClassConflict, Message: "a snapshot is running"})
	_, err := p.Suspend(t.Context(), ref)
	want := "suspend box bk-0a1b2c3d-named-1 at provider fake: a snapshot is running"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestListAndWatchShowOnlyWhatIsOurs(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	p := over(t, mixing{cloud.Driver(installation)})
	ref := made(t, p, "ours")
	found, err := p.List(t.Context())
	if err != nil || len(found) != 1 || found[0].Observation.Ref != ref {
		t.Errorf("list %+v, %v", found, err)
	}
	cloud.Inject(fakebox.Fault{Op: fakebox.OpFingerprint, Skip: 1, Fingerprint: "another"})
	_, err = p.List(t.Context())
	wantClass(t, "a list while the account changes", err, box.ClassUnknown)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan driver.Listed, 10)
	done := make(chan error, 1)
	go func() { done <- p.Watch(ctx, func(one driver.Listed) { told <- one }) }()
	cloud.Vanish(ref.Name)
	one := <-told
	if one.Observation.Ref != ref || one.Observation.Phase != box.PhaseGone {
		t.Errorf("told %+v", one)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("watch ended with %v", err)
	}
}

// mixing lists foreign boxes among ours.
type mixing struct{ *fakebox.Driver }

func (m mixing) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	found, err := m.Driver.List(ctx, installation)
	if err != nil || len(found) == 0 {
		return found, err
	}
	for _, change := range []func(l *driver.Listed){
		func(l *driver.Listed) { l.Identity.Installation = "ffffffff" },
		func(l *driver.Listed) { l.Identity.Workspace = "../x" },
		func(l *driver.Listed) { l.Observation.Ref.Name = "postgres" },
		func(l *driver.Listed) { l.Observation.Ref.ID = "" },
		func(l *driver.Listed) { l.Identity.Epoch = 0 },
	} {
		foreign := found[0]
		change(&foreign)
		found = append(found, foreign)
	}
	return found, nil
}

func TestWatchDoesNotBelieveAnAbsenceFromElsewhere(t *testing.T) {
	t.Parallel()
	cloud := fakebox.New(nil)
	p := over(t, cloud.Driver(installation))
	ref := made(t, p, "gone")
	cloud.Vanish(ref.Name)
	cloud.Inject(fakebox.Fault{Op: fakebox.OpFingerprint, Times: -1, Fingerprint: "another"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan driver.Listed, 10)
	go func() { _ = p.Watch(ctx, func(one driver.Listed) { told <- one }) }()
	if one := <-told; one.Observation.Phase != box.PhaseUnknown || one.Observation.Ref.Name != ref.Name {
		t.Errorf("told %+v", one)
	}
}

func TestEndpointIsAnAddress(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "127.0.0.1:80", "ftp://host/", "http://user:pass@host/", "http:///path", "://"} {
		cloud := fakebox.New(&fakebox.Options{AgentServer: func(string) string { return url }})
		p := over(t, cloud.Driver(installation))
		_, err := p.Endpoint(t.Context(), made(t, p, "url"))
		wantClass(t, url, err, box.ClassUnknown)
		if strings.Contains(err.Error(), "pass") {
			t.Errorf("%v", err)
		}
	}
}
