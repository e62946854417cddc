package fakebox

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Options shapes a [Cloud]. The zero value imitates a provider that stops
// boxes, keeps their address and their key, lists and watches.
type Options struct {
	// Row is what the driver claims, and so how the cloud behaves: whether
	// memory, id, address and key survive a resume, the walls MaxRun and
	// PausedLife, whether it lists, watches and suspends. The zero value is
	// [DefaultRow].
	Row box.Capabilities
	// NativeIdle is the time without use after which the cloud suspends a box
	// that was told no other time, when the row claims NativeIdle.
	NativeIdle time.Duration
	// Fingerprint is the account that the cloud begins with; "fakebox" if empty.
	Fingerprint string
	// Now is the clock. Without it the cloud has its own, moved by Advance.
	Now func() time.Time
	// AgentServer returns the URL at which a box's agent-server answers.
	AgentServer func(name string) string
}

// DefaultRow returns the row of the zero Options.
func DefaultRow() box.Capabilities {
	return box.Capabilities{
		Driver:             "fakebox",
		Suspend:            box.Yes,
		MemoryKept:         box.No,
		SameIdentity:       box.Yes,
		URLStable:          box.Yes,
		KeyStable:          box.Yes,
		LookingIsUse:       box.No,
		List:               box.Yes,
		Watch:              box.Yes,
		ExportNeedsRunning: box.Yes,
		Fence:              box.Yes,
		NativeIdle:         box.No,
		Adopt:              box.Yes,
		NativeAdjust:       box.No,
		Deepen:             box.No,
		Lead:               box.LeadOurs,
		SuspendProof:       "the fake's own state",
		DeleteProof:        "absent from the fake's account",
	}
}

// Cloud is the fake provider. Safe for concurrent use.
type Cloud struct {
	opts Options

	mu        sync.Mutex
	now       time.Time                      // of the cloud's own clock
	account   string                         // the one it talks to now
	accounts  map[string]map[string]*sandbox // account, name
	serial    int
	faults    []*Fault
	calls     []Call
	changes   []driver.Listed // what happened by itself, in order
	delivered int             // changes that some watcher has seen
	changed   chan struct{}   // closed and replaced at each change
}

// Statement is what the cloud knows of one name, also after its end.
type Statement struct {
	Phase     box.Phase
	Foreign   bool          // made by Plant
	Awake     time.Duration // billed as running
	Suspended time.Duration // billed as suspended
	Memory    time.Duration // of it, with its memory kept
	Wakes     int           // resumes that started or thawed it
	Starts    int           // times that its processes began anew
}

// sandbox is one box of the cloud.
type sandbox struct {
	Statement
	identity box.Identity
	ids      []string // the last one is current
	key      box.Secret
	since    time.Time // of this phase
	billed   time.Time
	lastUse  time.Time
	evidence string
	frozen   bool
	native   box.Native
	account  string // that it was made in
	fence    box.Fence
}

// New returns an empty cloud.
func New(opts *Options) *Cloud {
	c := &Cloud{
		now:      time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		accounts: map[string]map[string]*sandbox{},
		changed:  make(chan struct{}),
	}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.Row.Driver == "" {
		c.opts.Row = DefaultRow()
	}
	c.account = c.opts.Fingerprint
	if c.account == "" {
		c.account = "fakebox"
	}
	return c
}

// Driver returns a driver for one installation. All drivers of a cloud see the
// same boxes.
func (c *Cloud) Driver(installation string) *Driver {
	return &Driver{cloud: c, installation: installation}
}

// Advance moves the cloud's own clock and lets happen what falls due. With
// Options.Now it only does the latter.
func (c *Cloud) Advance(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(max(0, by))
	c.settle()
}

// Use moves a box's native idle clock, as a user at work does.
func (c *Cloud) Use(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if b, ok := c.boxes()[name]; ok {
		b.lastUse = c.clock()
	}
}

// Kill ends a box's processes behind the driver's back; its files stay.
func (c *Cloud) Kill(name, evidence string) {
	c.change(name, box.PhaseFailed, evidence)
}

// LoseMemory gives up the memory of a suspended box behind the driver's back.
func (c *Cloud) LoseMemory(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if b, ok := c.boxes()[name]; ok && b.frozen {
		b.frozen, b.evidence = false, "memory lost at the provider"
		c.report(b)
	}
}

// Vanish destroys a box behind the driver's back.
func (c *Cloud) Vanish(name string) {
	c.change(name, box.PhaseGone, "destroyed at the provider")
}

// Plant puts a running box there that somebody else made under this name.
func (c *Cloud) Plant(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	c.boxes()[name] = &sandbox{
		Statement: Statement{Phase: box.PhaseRunning, Foreign: true, Starts: 1},
		ids:       []string{c.nextID()},
		since:     now, billed: now, lastUse: now, native: box.Native{Idle: box.Duration(c.opts.NativeIdle)},
	}
}

// SwapAccount makes the cloud talk to another account, empty at first, as a
// changed credential does. The boxes of the old one come back with it.
func (c *Cloud) SwapAccount(fingerprint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.account = fingerprint
}

// Statement returns what the cloud knows of name in the current account, and
// false if there never was such a box.
func (c *Cloud) Statement(name string) (Statement, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	b, ok := c.boxes()[name]
	if !ok {
		return Statement{}, false
	}
	return b.Statement, true
}

// Calls returns the log of the driver calls so far.
func (c *Cloud) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func (c *Cloud) clock() time.Time {
	if c.opts.Now != nil {
		return c.opts.Now()
	}
	return c.now
}

func (c *Cloud) boxes() map[string]*sandbox {
	if c.accounts[c.account] == nil {
		c.accounts[c.account] = map[string]*sandbox{}
	}
	return c.accounts[c.account]
}

func (c *Cloud) nextID() string {
	c.serial++
	return fmt.Sprintf("fb-%d", c.serial)
}

func (c *Cloud) change(name string, phase box.Phase, evidence string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if b, ok := c.boxes()[name]; ok && b.Phase != box.PhaseGone {
		b.frozen = false
		c.move(b, phase, c.clock(), evidence)
		c.report(b)
	}
}

// move bills b up to at and changes its phase.
func (c *Cloud) move(b *sandbox, phase box.Phase, at time.Time, evidence string) {
	b.bill(at)
	b.Phase, b.since, b.evidence = phase, at, evidence
}

func (b *sandbox) bill(until time.Time) {
	span := max(0, until.Sub(b.billed))
	switch b.Phase {
	case box.PhaseStarting, box.PhaseRunning:
		b.Awake += span
	case box.PhaseSuspended:
		b.Suspended += span
		if b.frozen {
			b.Memory += span
		}
	case box.PhaseUnknown, box.PhaseFailed, box.PhaseGone:
	}
	if until.After(b.billed) {
		b.billed = until
	}
}

// settle lets happen, at its own time, what the provider does by itself, and
// bills all boxes up to now. A box can meet several walls in one step.
func (c *Cloud) settle() {
	now := c.clock()
	for _, boxes := range c.accounts {
		for _, b := range boxes {
			for c.wall(b, now) {
			}
			b.bill(now)
		}
	}
}

// wall applies the next thing that is due for b, and reports whether there was
// one. Equal counts as due.
func (c *Cloud) wall(b *sandbox, now time.Time) bool {
	row := c.opts.Row
	end := box.PhaseSuspended
	if row.Suspend != box.Yes {
		end = box.PhaseGone
	}
	var at time.Time
	var evidence string
	earliest := func(due time.Time, why string) {
		if at.IsZero() || due.Before(at) {
			at, evidence = due, why
		}
	}
	switch b.Phase {
	case box.PhaseRunning, box.PhaseStarting:
		if row.NativeIdle == box.Yes && b.native.Idle > 0 {
			earliest(b.lastUse.Add(b.native.Idle.Std()), "idle at the provider")
		}
		if row.MaxRun > 0 {
			earliest(b.since.Add(row.MaxRun.Std()), "longest run time at the provider")
		}
	case box.PhaseSuspended:
		end = box.PhaseGone
		if row.PausedLife > 0 {
			earliest(b.since.Add(row.PausedLife.Std()), "retention at the provider")
		}
	case box.PhaseUnknown, box.PhaseFailed, box.PhaseGone:
	}
	if at.IsZero() || at.After(now) {
		return false
	}
	b.bill(at) // with the memory that it had until then
	b.frozen = end == box.PhaseSuspended && row.MemoryKept == box.Yes
	c.move(b, end, at, evidence)
	c.report(b)
	return true
}

// report tells the watchers what b did by itself.
func (c *Cloud) report(b *sandbox) {
	if b.Foreign {
		return
	}
	c.changes = append(c.changes, driver.Listed{Identity: b.identity, Observation: c.observation(b, box.Ref{})})
	close(c.changed)
	c.changed = make(chan struct{})
}

// observation is b as the provider shows it; the provider name of ref is kept.
func (c *Cloud) observation(b *sandbox, ref box.Ref) box.Observation {
	seen := box.Observation{
		Ref: box.Ref{
			Provider:    ref.Provider,
			ID:          b.ids[len(b.ids)-1],
			Name:        b.identity.Name(),
			Epoch:       b.identity.Epoch,
			Fingerprint: b.account,
		},
		Phase:    b.Phase,
		Evidence: b.evidence,
		Age:      box.Span(max(0, c.clock().Sub(b.since))),
	}
	if c.opts.Row.NativeIdle == box.Yes {
		native := b.native
		seen.Native = &native
	}
	if b.Phase == box.PhaseSuspended {
		seen.MemoryKept = box.No
		if b.frozen {
			seen.MemoryKept = box.Yes
		}
	}
	return seen
}

// counted is observation with what the cloud keeps for b, which it counts when it
// suspends, and not at each look.
func (c *Cloud) counted(b *sandbox, ref box.Ref) box.Observation {
	const disk, memory = 64 << 20, 16 << 20
	seen := c.observation(b, ref)
	if seen.StoredBytes = disk; b.frozen {
		seen.StoredBytes += memory
	}
	return seen
}

// bounded is what the cloud makes of the timers that it is told.
func (c *Cloud) bounded(n box.Native) box.Native {
	row := c.opts.Row
	switch {
	case row.NativeIdle != box.Yes:
		return box.Native{}
	case n.Idle == 0:
		return box.Native{Idle: box.Duration(c.opts.NativeIdle)}
	}
	n.Idle = max(n.Idle, box.Duration(row.NativeIdleLeast))
	if row.NativeIdleMost > 0 {
		n.Idle = min(n.Idle, box.Duration(row.NativeIdleMost))
	}
	return n
}

// start begins b's processes anew.
func (c *Cloud) start(b *sandbox, now time.Time) error {
	b.Starts++
	b.lastUse = now
	if c.opts.Row.KeyStable == box.Yes {
		return nil
	}
	return b.newKey()
}

func (b *sandbox) newKey() error {
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return box.Errorf(box.ClassInternal, "make a key: %w", err)
	}
	b.key = box.Secret(hex.EncodeToString(raw))
	return nil
}
