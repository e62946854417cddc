package box_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func watch(a box.Arrangement, name string) (box.Watch, bool) {
	for _, w := range a.Watches {
		if w.Name == name {
			return w, true
		}
	}
	return box.Watch{}, false
}

func TestPlanNamesTheRisks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*box.Policy, *box.Capabilities)
		risks  []string // each is a part of one, in order
	}{
		"a provider that leaves nothing open": {func(_ *box.Policy, c *box.Capabilities) { c.NativeIdle = box.Yes }, nil},
		"no idle timer of its own":            {func(*box.Policy, *box.Capabilities) {}, []string{"while boxkeeper is down"}},
		"nobody knows of an idle timer":       {func(_ *box.Policy, c *box.Capabilities) { c.NativeIdle = box.Unknown }, []string{"while boxkeeper is down"}},
		"nobody knows whether it suspends": {func(_ *box.Policy, c *box.Capabilities) {
			c.Suspend, c.NativeIdle = box.Unknown, box.Yes
		}, []string{"nobody has found out whether provider test can suspend"}},
		"it is never idle":                     {func(p *box.Policy, _ *box.Capabilities) { p.Idle = box.Never }, []string{"awake until the hard maximum"}},
		"it is never idle, and has no maximum": {func(p *box.Policy, _ *box.Capabilities) { p.Idle, p.MaxRun = box.Never, box.Never }, []string{"idle and max_run are never: nothing but a request suspends the box", "keeps the box awake for ever"}},
		"it is never idle, and the provider ends it": {func(p *box.Policy, c *box.Capabilities) {
			p.Idle, p.MaxRun, c.MaxRun = box.Never, box.Never, box.Span(time.Hour)
		}, []string{"awake until the hard maximum", "so max_run is 45m"}},
		"a holder holds for ever":               {func(p *box.Policy, c *box.Capabilities) { p.MaxRun, c.NativeIdle = box.Never, box.Yes }, []string{"keeps the box awake for ever"}},
		"no end to what it costs":               {func(p *box.Policy, c *box.Capabilities) { p.PausedTTL, c.NativeIdle = box.Never, box.Yes }, []string{"paid for without end"}},
		"the provider is shorter":               {func(_ *box.Policy, c *box.Capabilities) { c.MaxRun, c.NativeIdle = box.Span(time.Hour), box.Yes }, []string{"ends a box after 1h, so max_run is 45m"}},
		"the provider forgets":                  {func(_ *box.Policy, c *box.Capabilities) { c.PausedLife, c.NativeIdle = box.Span(20*day), box.Yes }, []string{"destroys a suspended box after 20d"}},
		"a life too short for a margin of 72 h": {func(_ *box.Policy, c *box.Capabilities) { c.PausedLife, c.NativeIdle = box.Span(4*day), box.Yes }, []string{"destroys a suspended box after 4d", "the margin before the provider destroys a suspended box is 1d, less than 3d"}},
		"a timer that can't be set again":       {func(_ *box.Policy, c *box.Capabilities) { c.NativeIdle, c.NativeAdjust = box.Yes, box.No }, []string{"idle timer of 30m can't be set again"}},
		"a timer that is shorter than ours": {func(_ *box.Policy, c *box.Capabilities) {
			c.NativeIdle, c.NativeIdleMost = box.Yes, box.Span(20*time.Minute)
		}, []string{"after 20m at the latest, so idle is 10m"}},
		"memory that is kept for good": {func(p *box.Policy, c *box.Capabilities) {
			c.NativeIdle, c.MemoryKept, c.Deepen, p.DeepenAfter = box.Yes, box.Yes, box.Yes, box.Never
		}, []string{"a suspended box holds its memory until it is woken or deleted"}},
		"memory that the provider can't give up": {func(p *box.Policy, c *box.Capabilities) {
			c.NativeIdle, c.MemoryKept, c.Deepen, p.DeepenAfter = box.Yes, box.Yes, box.No, box.Never
		}, nil},
		"a provider in the lead": {func(p *box.Policy, c *box.Capabilities) {
			c.NativeIdle, p.Lead = box.Yes, box.LeadProvider
		}, []string{"nothing is reclaimed before"}},
		"a margin of under 72 h": {func(p *box.Policy, c *box.Capabilities) {
			p.Notice, c.PausedLife, c.NativeIdle = box.Duration(time.Second), box.Span(32*day), box.Yes
		}, []string{"destroys a suspended box after 32d"}},
		"a margin of 72 h is fine": {func(p *box.Policy, c *box.Capabilities) {
			p.Notice, c.PausedLife, c.NativeIdle = box.Duration(time.Second), box.Span(33*day), box.Yes
		}, nil},
	} {
		p, c := box.DefaultPolicy(), row()
		c.NativeAdjust = box.Yes
		test.change(&p, &c)
		plan, err := box.Plan(p, c)
		if err != nil || len(plan.Risks) != len(test.risks) {
			t.Errorf("%s: %v, risks %q", name, err, plan.Risks)
			continue
		}
		for i, part := range test.risks {
			if !strings.Contains(plan.Risks[i], part) {
				t.Errorf("%s: risk %q does not say %q", name, plan.Risks[i], part)
			}
		}
	}
}

func TestPlanRefusesWhatCannotBeMet(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*box.Policy, *box.Capabilities){
		"policy.idle":    func(_ *box.Policy, c *box.Capabilities) { c.Suspend = box.No },
		"policy.max_run": func(p *box.Policy, c *box.Capabilities) { c.Suspend, p.Idle = box.No, box.Never },
		"policy.undo": func(p *box.Policy, c *box.Capabilities) {
			p.OnExpiry, p.Undo, c.PausedLife = box.OnExpiryDelete, box.Duration(3*day), box.Span(32*day)
		},
		"policy.notice": func(p *box.Policy, _ *box.Capabilities) { p.Notice = box.Never },
		"policy.lead":   func(p *box.Policy, _ *box.Capabilities) { p.Lead = box.LeadProvider },
	} {
		p, c := box.DefaultPolicy(), row()
		change(&p, &c)
		if _, err := box.Plan(p, c); box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	p, c := box.DefaultPolicy(), row()
	c.Suspend, p.Idle, p.MaxRun = box.No, box.Never, box.Never
	if _, err := box.Plan(p, c); err != nil {
		t.Errorf("a box that is only ever awake or deleted: %v", err)
	}
}

func TestPlanSaysWhoWatchesWhat(t *testing.T) {
	t.Parallel()
	c := row()
	c.NativeIdle, c.NativeAdjust, c.MaxRun, c.PausedLife = box.Yes, box.Yes, box.Span(4*time.Hour), box.Span(60*day)
	plan, err := box.Plan(box.Policy{OnExpiry: box.OnExpiryDelete}, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []box.Watch{
		{Name: "idle", By: "boxkeeper", After: box.Duration(15 * time.Minute), Action: "reclaim, export, suspend"},
		{Name: "idle, if boxkeeper is down", By: "provider", After: box.Duration(30 * time.Minute), Action: "suspend"},
		{Name: "hard end", By: "provider", After: box.Duration(4 * time.Hour), Action: "the provider ends the box"},
		{Name: "hard maximum awake time", By: "boxkeeper", After: box.Duration(225 * time.Minute), Action: "reclaim, export, suspend"},
		{Name: "life of a suspended box", By: "provider", After: box.Duration(60 * day), Action: "the provider destroys the box"},
		{Name: "renewal of a suspended box", By: "boxkeeper", After: box.Duration(57 * day), Action: "wake, export if needed, suspend again"},
		{Name: "notice before expiry", By: "boxkeeper", After: box.Duration(27 * day), Action: "tell the owner"},
		{Name: "paused TTL", By: "boxkeeper", After: box.Duration(30 * day), Action: "delete after a verified export and an undo window of 1d"},
	} {
		if got, ok := watch(plan, want.Name); !ok || got != want {
			t.Errorf("watch %+v, want %+v", got, want)
		}
	}
	if len(plan.Watches) != 8 || plan.Native.Idle != box.Duration(30*time.Minute) || plan.Policy.MaxRun != box.Duration(225*time.Minute) {
		t.Errorf("%d watches, max_run %s", len(plan.Watches), plan.Policy.MaxRun)
	}
	c.MemoryKept, c.Deepen = box.Yes, box.Yes
	ladder, err := box.Plan(box.Policy{DeepenAfter: box.Duration(2 * time.Hour)}, c)
	want := box.Watch{Name: "memory of a suspended box", By: "boxkeeper", After: box.Duration(2 * time.Hour), Action: "suspend it deeper: its memory is given up, its files are kept"}
	if got, ok := watch(ladder, want.Name); err != nil || !ok || got != want || len(ladder.Watches) != 9 {
		t.Errorf("watch %+v, want %+v (%v)", got, want, err)
	}
	never, err := box.Plan(box.Policy{Idle: box.Never, PausedTTL: box.Never, MaxRun: box.Never}, row())
	if err != nil || len(never.Watches) != 0 {
		t.Errorf("nothing is watched for: %+v, %v", never.Watches, err)
	}
}

// Every claim that nobody has made is named, one by one.
func TestCapabilitiesMissing(t *testing.T) {
	t.Parallel()
	if missing := row().Missing(); len(missing) != 0 {
		t.Fatalf("a complete row misses %v", missing)
	}
	for name, change := range map[string]func(*box.Capabilities){
		"driver": func(c *box.Capabilities) { c.Driver = "" }, "suspend": func(c *box.Capabilities) { c.Suspend = box.Unknown },
		"memory_kept": func(c *box.Capabilities) { c.MemoryKept = box.Unknown }, "same_identity": func(c *box.Capabilities) { c.SameIdentity = box.Unknown },
		"url_stable": func(c *box.Capabilities) { c.URLStable = box.Unknown }, "key_stable": func(c *box.Capabilities) { c.KeyStable = box.Unknown },
		"looking_is_use": func(c *box.Capabilities) { c.LookingIsUse = box.Unknown }, "list": func(c *box.Capabilities) { c.List = box.Unknown },
		"watch": func(c *box.Capabilities) { c.Watch = box.Unknown }, "fence": func(c *box.Capabilities) { c.Fence = box.Unknown }, "native_idle": func(c *box.Capabilities) { c.NativeIdle = box.Unknown },
		"deepen":               func(c *box.Capabilities) { c.Deepen = box.Unknown },
		"native_adjust":        func(c *box.Capabilities) { c.NativeAdjust = box.Unknown },
		"export_needs_running": func(c *box.Capabilities) { c.ExportNeedsRunning = box.Unknown }, "lead": func(c *box.Capabilities) { c.Lead = "" },
		"suspend_proof": func(c *box.Capabilities) { c.SuspendProof = "" }, "delete_proof": func(c *box.Capabilities) { c.DeleteProof = "" },
	} {
		c := row()
		change(&c)
		if missing := c.Missing(); len(missing) != 1 || missing[0] != name {
			t.Errorf("%s: missing %v", name, missing)
		}
	}
}
