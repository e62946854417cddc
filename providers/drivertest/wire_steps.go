package drivertest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// answer is what any method said.
type answer struct {
	print string
	seen  box.Observation
	at    driver.Endpoint
	list  []driver.Listed
}

// about returns what was said of the box of a ref, if anything.
func (a answer) about(ref box.Ref) (box.Observation, bool) {
	for _, one := range a.list {
		if one.Observation.Ref.Name == ref.Name {
			return one.Observation, true
		}
	}
	return a.seen, a.seen.Phase != ""
}

// step is one method, and how the suite brings a box to where it has work.
type step struct {
	name    string
	changes bool // it may change something at the provider
	ends    bool // its proof is a reading after the change, not the answer to it
	claimed func(row box.Capabilities) box.Tri
	ready   func(t *testing.T, b *bench, workspace string) box.Ref
	call    func(ctx context.Context, b *bench, workspace string, ref box.Ref) (answer, error)
	// right says in words what is wrong with an answer that came without an
	// error; the box is really as now says.
	right func(a answer, ref box.Ref, now truth) string
	// leaves is how many boxes of the name there are afterwards.
	leaves int
}

// truth is what a driver sees over a line that is whole.
type truth struct {
	phase box.Phase
	ref   box.Ref
	print string
	url   string
	// detour says whether an address is another way to the box; nil: there is one only.
	detour func(url string) bool
}

func awake(p box.Phase) bool { return p == box.PhaseRunning || p == box.PhaseStarting }

func suspends(row box.Capabilities) box.Tri { return row.Suspend }

func steps() []step {
	return append(readingSteps(), changingSteps()...)
}

func stepOf(name string) step {
	return steps()[slices.IndexFunc(steps(), func(s step) bool { return s.name == name })]
}

func nowhere(*testing.T, *bench, string) box.Ref { return box.Ref{} }

func running(t *testing.T, b *bench, workspace string) box.Ref {
	t.Helper()
	ref := b.made(t, workspace)
	await(t, "the box runs", func() bool { return b.phase(t, ref) == box.PhaseRunning })
	b.runs(t, ref)
	return ref
}

func asleep(t *testing.T, b *bench, workspace string) box.Ref {
	t.Helper()
	return b.suspended(t, running(t, b, workspace))
}

func readingSteps() []step {
	return []step{
		{
			name: "fingerprint", ready: nowhere,
			call: func(ctx context.Context, b *bench, _ string, _ box.Ref) (answer, error) {
				print, err := b.wire.Fingerprint(ctx)
				return answer{print: print}, err
			},
			right: func(a answer, _ box.Ref, now truth) string {
				return unless(a.print == now.print, "the fingerprint is %q, not %q", a.print, now.print)
			},
		},
		{
			name: "observe", ready: running, leaves: 1,
			call: func(ctx context.Context, b *bench, _ string, ref box.Ref) (answer, error) {
				seen, err := b.observe(ctx, ref)
				return answer{seen: seen}, err
			},
			right: func(a answer, ref box.Ref, now truth) string {
				if a.seen.Phase == box.PhaseUnknown {
					return ""
				}
				return unless(a.seen.Phase == now.phase && a.seen.Ref == ref, "%+v, but it is %s", a.seen, now.phase)
			},
		},
		{
			name: "observe a suspended box", claimed: suspends, ready: asleep, leaves: 1,
			call: func(ctx context.Context, b *bench, _ string, ref box.Ref) (answer, error) {
				seen, err := b.observe(ctx, ref)
				return answer{seen: seen}, err
			},
			right: func(a answer, ref box.Ref, now truth) string {
				if a.seen.Phase == box.PhaseUnknown {
					return ""
				}
				return unless(a.seen.Phase == now.phase && a.seen.Ref == ref, "%+v, but it is %s", a.seen, now.phase)
			},
		},
		{
			name: "endpoint", ready: running, leaves: 1,
			call: func(ctx context.Context, b *bench, _ string, ref box.Ref) (answer, error) {
				at, err := b.endpoint(ctx, ref)
				return answer{at: at}, err
			},
			right: func(a answer, _ box.Ref, now truth) string {
				leads := a.at.URL != "" && (a.at.URL == now.url || now.detour != nil && now.detour(a.at.URL))
				return unless(leads, "the address is %q, not %q", a.at.URL, now.url)
			},
		},
		{
			name: "list", claimed: func(row box.Capabilities) box.Tri { return row.List }, ready: running, leaves: 1,
			call: func(ctx context.Context, b *bench, _ string, _ box.Ref) (answer, error) {
				found, err := b.list(ctx)
				return answer{list: found}, err
			},
			right: func(a answer, ref box.Ref, now truth) string {
				seen, there := a.about(ref)
				if !there {
					return "the list lacks the box, and is no error"
				}
				phase := seen.Phase == now.phase || seen.Phase == box.PhaseUnknown
				return unless(phase && seen.Ref == ref, "listed as %+v, but it is %s", seen, now.phase)
			},
		},
	}
}

func changingSteps() []step {
	return []step{
		{
			name: "create", changes: true, ready: nowhere, leaves: 1,
			call: func(ctx context.Context, b *bench, workspace string, _ box.Ref) (answer, error) {
				seen, err := b.create(ctx, workspace)
				return answer{seen: seen}, err
			},
			right: func(a answer, _ box.Ref, now truth) string {
				phase := awake(a.seen.Phase) || a.seen.Phase == box.PhaseUnknown
				return unless(phase && a.seen.Ref == now.ref && awake(now.phase), "%+v, but it is %+v, %s", a.seen, now.ref, now.phase)
			},
		},
		{
			name: "suspend", changes: true, ends: true, claimed: suspends, ready: running, leaves: 1,
			call: func(ctx context.Context, b *bench, _ string, ref box.Ref) (answer, error) {
				seen, err := b.suspend(ctx, ref)
				return answer{seen: seen}, err
			},
			right: func(a answer, _ box.Ref, now truth) string {
				return unless(a.seen.Phase == box.PhaseSuspended && now.phase == box.PhaseSuspended, "%+v, but it is %s", a.seen, now.phase)
			},
		},
		{
			name: "resume", changes: true, claimed: suspends, ready: asleep, leaves: 1,
			call: func(ctx context.Context, b *bench, _ string, ref box.Ref) (answer, error) {
				seen, err := b.resume(ctx, ref)
				return answer{seen: seen}, err
			},
			right: func(a answer, _ box.Ref, now truth) string {
				return unless(awake(a.seen.Phase) && awake(now.phase), "%+v, but it is %s", a.seen, now.phase)
			},
		},
		{
			name: "adjust", changes: true, claimed: func(row box.Capabilities) box.Tri { return row.NativeAdjust }, ready: running, leaves: 1,
			call: func(ctx context.Context, b *bench, _ string, ref box.Ref) (answer, error) {
				seen, err := b.adjust(ctx, ref, within(b.row, box.Native{Idle: told(b.row).Idle * 2}))
				return answer{seen: seen}, err
			},
			right: func(a answer, ref box.Ref, _ truth) string {
				if a.seen.Native == nil {
					return "it says no timer (Native is nil); without one as read back there is no proof, and so Unknown"
				}
				return unless(a.seen.Ref == ref && a.seen.Phase != box.PhaseGone, "%+v", a.seen)
			},
		},
		{
			name: "adopt", changes: true, claimed: func(row box.Capabilities) box.Tri { return row.Adopt }, ready: running, leaves: 1,
			call: func(ctx context.Context, b *bench, workspace string, ref box.Ref) (answer, error) {
				seen, err := b.adopt(ctx, ref.ID, workspace)
				return answer{seen: seen}, err
			},
			right: func(a answer, ref box.Ref, now truth) string {
				phase := a.seen.Phase == now.phase || a.seen.Phase == box.PhaseUnknown
				return unless(phase && a.seen.Ref == ref, "%+v, but it is %+v, %s", a.seen, ref, now.phase)
			},
		},
		{
			name: "delete", changes: true, ends: true, ready: running,
			call: func(ctx context.Context, b *bench, _ string, ref box.Ref) (answer, error) {
				seen, err := b.remove(ctx, ref)
				return answer{seen: seen}, err
			},
			right: func(a answer, _ box.Ref, now truth) string {
				return unless(a.seen.Phase == box.PhaseGone && now.phase == box.PhaseGone, "%+v, but it is %s", a.seen, now.phase)
			},
		},
	}
}

func unless(fine bool, format string, args ...any) string {
	if fine {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// passing are the classes of what a second try may mend.
func passing(class box.Class) bool {
	return slices.Contains([]box.Class{box.ClassUnavailable, box.ClassConflict}, class)
}

// again makes a call over a line that is whole, until it gets through.
func (s step) again(t *testing.T, b *bench, workspace string, ref box.Ref) answer {
	t.Helper()
	var out answer
	await(t, s.name+" gets through over a line that is whole", func() bool {
		said, err := s.call(t.Context(), b, workspace, ref)
		if err != nil && !passing(b.class(err)) {
			t.Fatalf("%s over a line that is whole: %v", s.name, err)
		}
		out = said
		return err == nil
	})
	return out
}

// look reads what is true, over a line that is whole.
func look(t *testing.T, b *bench, ref box.Ref) truth {
	t.Helper()
	print, err := b.wire.Fingerprint(t.Context())
	if err != nil {
		t.Fatalf("fingerprint: %v", err)
	}
	now := truth{print: print, ref: ref, phase: box.PhaseGone}
	if !ref.IsZero() {
		now.phase = b.phase(t, ref)
	}
	if now.phase == box.PhaseRunning {
		now.url = b.runs(t, ref).URL
		if other, ok := b.h.(Detour); ok {
			now.detour = other.Detour
		}
	}
	return now
}
