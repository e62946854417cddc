package retention

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// Options is what a Keeper may be told; the zero value archives only what has a
// rule, and nothing that has a workspace.
type Options struct {
	Layouts []reclaim.Layout
	// DefaultDays is after how many days without use a conversation without a
	// rule is archived; 0 means never.
	DefaultDays float64
	// Off says why nothing is archived in this box, such as that its provider
	// suspends it; empty means that it is.
	Off string
	// Unsaved says in words which work in a directory exists nowhere else; empty
	// means none. Nil means that nobody can tell, and then a conversation with a
	// workspace is left.
	Unsaved func(ctx context.Context, dir string) (reason string, err error)
	// Needs says what in the box cannot do without something elsewhere.
	Needs reclaim.Needs
	// Take removes the runtime of a conversation that is archived, as a pass of
	// tier runtime does. It may be called again for one that it did not finish;
	// nil leaves the runtime to others.
	Take func(ctx context.Context, conversation string) error
	Log  *slog.Logger // nil means none
}

// Keeper archives the conversations of one box. It is safe for concurrent use.
type Keeper struct {
	root  string
	rules *Rules
	opts  Options
	now   func() reading
	boot  string
	wake  chan struct{}

	mu      sync.Mutex // one pass at a time
	last    reading
	ticked  bool // last was read by a pass of Run, which comes at intervals
	resumed time.Time
}

// Outcome is what a pass did about one conversation that was due.
type Outcome struct {
	Conversation string
	Archived     bool
	Reason       string // why it was left, or why it was due
}

// New returns a keeper of the box at root, which is absolute. The start of boxd
// counts as a resume of the box, unless another boxd was at work in it moments
// ago.
func New(root string, rules *Rules, opts Options) *Keeper {
	if opts.Log == nil {
		opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	k := &Keeper{root: root, rules: rules, opts: opts, now: clocks(time.Now()), boot: bootID(), wake: make(chan struct{}, 1)}
	k.start()
	return k
}

func (k *Keeper) start() {
	k.last = k.now()
	k.resumed = begin(k.root, k.boot, k.last.time())
}

// Off says why nothing is archived in this box; empty means that it is.
func (k *Keeper) Off() string { return k.opts.Off }

// Effective returns the rule of a conversation as it takes effect: its own or
// the box's default, nil when that can't be told.
func (k *Keeper) Effective(id string) *box.Retention {
	rule, _, err := k.rules.Of(id)
	switch {
	case err != nil:
		return nil
	case k.opts.Off != "":
		return &box.Retention{Mode: box.RetentionDefault}
	case rule.Mode == box.RetentionDefault && k.opts.DefaultDays > 0:
		return &box.Retention{Mode: box.RetentionDays, Days: k.opts.DefaultDays}
	}
	return &rule
}

// Wake tells Run that a conversation has a rule now.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run makes a pass now, which also finishes what an earlier process began, and
// then every five minutes while any conversation has a rule or the box a
// default. Otherwise it sleeps until Wake. It returns when ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	due := true
	for ctx.Err() == nil {
		if due {
			if _, err := k.Pass(ctx); err != nil && ctx.Err() == nil {
				k.opts.Log.Warn("look for conversations to archive", "error", err)
			}
		}
		var tick <-chan time.Time
		stop := func() bool { return true }
		if k.armed() {
			timer := time.NewTimer(interval)
			tick, stop = timer.C, timer.Stop
		} else {
			k.pause()
		}
		select {
		case <-tick:
			due = true
		case <-k.wake:
			// A rule is not acted upon at once: it may be a slip.
			due = false
		case <-ctx.Done():
		}
		stop()
	}
}

// pause notes that the next pass does not come at its interval.
func (k *Keeper) pause() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ticked = false
}

func (k *Keeper) armed() bool {
	return k.opts.Off == "" && (k.opts.DefaultDays > 0 || k.rules.any())
}

// Pass archives every conversation that is due, and has the runtimes of those
// removed that are archived already. It returns what was due. A conversation
// that can't be judged is left, with the reason in the log; an error means that
// nothing could be.
func (k *Keeper) Pass(ctx context.Context) ([]Outcome, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.look()
	defer k.keep()
	rules, broken, err := k.rules.all(now)
	if err != nil {
		return nil, err
	}
	for id, err := range broken {
		k.opts.Log.Warn("a conversation is left as it is", "conversation", id, "error", err)
	}
	all, err := k.seats(ctx)
	if err != nil {
		return nil, err
	}
	var out []Outcome
	for _, one := range all {
		id := one[0].place.Conversation
		if broken[id] != nil {
			continue
		}
		if slices.ContainsFunc(one, func(s seat) bool { return s.place.Archived }) {
			k.finish(ctx, one)
			continue
		}
		why, due := k.due(one, rules[id], now)
		if !due {
			continue
		}
		out = append(out, k.archive(ctx, one, why))
		if err := ctx.Err(); err != nil {
			return out, err
		}
	}
	return out, nil
}

// Stopped archives a conversation whose runtime a person has just stopped, when
// its rule says so; due is false when it says nothing of the kind.
func (k *Keeper) Stopped(ctx context.Context, id string) (out Outcome, due bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	rule, set, err := k.rules.Of(id)
	if err != nil || !set || rule.Mode != box.RetentionOnStop || k.opts.Off != "" {
		return Outcome{}, false, err
	}
	all, err := k.seats(ctx)
	if err != nil {
		return Outcome{}, false, err
	}
	for _, one := range all {
		if one[0].place.Conversation == id && !one[0].place.Archived {
			return k.archive(ctx, one, "its runtime was stopped"), true, nil
		}
	}
	return Outcome{}, false, nil
}

// look reads the clocks and notes a resume since the last look.
func (k *Keeper) look() time.Time {
	now := k.now()
	frozen := k.ticked && now.mono-k.last.mono > interval+jump // with all clocks going on
	if resumedBetween(k.last, now) || frozen {
		k.resumed = now.time()
		k.opts.Log.Info("the box was resumed; nothing is archived for a day")
	}
	if k.resumed.After(now.time()) {
		k.resumed = now.time() // of a wall clock that was wrong
	}
	k.last, k.ticked = now, false
	return now.time()
}

// keep ends a pass: it notes that this boxd is at work.
func (k *Keeper) keep() {
	if !k.armed() {
		return
	}
	now := k.look()
	k.ticked = true
	text, err := json.Marshal(kept{Boot: k.boot, Seen: now, Resumed: k.resumed})
	if err == nil {
		err = k.rules.write(clockFile, text)
	}
	if err != nil {
		// Then the next start counts as a resume.
		k.opts.Log.Warn("note the time of a pass", "error", err)
	}
}

// due says whether a conversation is to be archived now, and why.
func (k *Keeper) due(in []seat, rule box.Retention, now time.Time) (why string, due bool) {
	for _, one := range in {
		if why, due = k.dueIn(one.place, rule, now); !due {
			return "", false
		}
	}
	return why, due
}

func (k *Keeper) dueIn(place *reclaim.Place, rule box.Retention, now time.Time) (why string, due bool) {
	days := rule.Days
	if rule.Mode == "" || rule.Mode == box.RetentionDefault {
		days = k.opts.DefaultDays
	}
	unused := now.Sub(place.LastActive)
	switch {
	case k.opts.Off != "", place.LastActive.IsZero(), now.Sub(k.resumed) < rest:
		return "", false
	case rule.Mode == box.RetentionOnStop:
		return "its runtime is stopped", unused >= stopped
	case days <= 0:
		return "", false
	}
	// Equal counts as due.
	since := min(unused, now.Sub(k.resumed))
	return fmt.Sprintf("unused for %g days", days), since >= time.Duration(days*float64(24*time.Hour))
}

// archive archives one conversation that is due, or says why not.
func (k *Keeper) archive(ctx context.Context, in []seat, why string) Outcome {
	out := Outcome{Conversation: in[0].place.Conversation, Reason: k.try(ctx, in)}
	if out.Reason != "" {
		k.opts.Log.Info("a conversation is due and left", "conversation", out.Conversation, "due", why, "reason", out.Reason)
		return out
	}
	out.Archived, out.Reason = true, why
	k.opts.Log.Info("a conversation is archived", "conversation", out.Conversation, "reason", why)
	k.finish(ctx, in)
	return out
}

// try writes the marker, or says why it did not.
func (k *Keeper) try(ctx context.Context, in []seat) (left string) {
	for _, one := range in {
		if left := k.doubt(ctx, one.place); left != "" {
			return left
		}
	}
	// Two layouts may lock the same lease, so that the others only say that nobody
	// is there.
	for _, one := range in[1:] {
		release, left := hold(ctx, one)
		if left != "" {
			return left
		}
		release()
	}
	release, left := hold(ctx, in[0])
	if left != "" {
		return left
	}
	defer release()
	// It may have been loaded, used and left while we looked; and the box may have
	// been frozen.
	if resumedBetween(k.last, k.now()) {
		return "the box was resumed meanwhile"
	}
	for _, one := range in {
		if used, err := k.usedSince(one.place); err != nil || used {
			return "was used meanwhile"
		}
	}
	for _, one := range in {
		if err := one.layout.Archive(ctx, one.place.Conversation); err != nil {
			return "cannot be archived: " + err.Error()
		}
	}
	return ""
}

// doubt says why a conversation must not be archived, as far as that shows
// without holding it.
func (k *Keeper) doubt(ctx context.Context, place *reclaim.Place) string {
	if place.Busy != "" {
		return place.Busy
	}
	for _, dir := range place.Workspaces {
		if k.opts.Unsaved == nil {
			return "nothing tells whether it holds unsaved work"
		}
		reason, err := k.opts.Unsaved(ctx, filepath.Join(k.root, dir))
		switch {
		case err != nil:
			return "cannot tell whether it holds unsaved work: " + err.Error()
		case reason != "":
			return "holds unsaved work: " + reason
		}
	}
	return k.needed(ctx, place)
}

// needed says what else in the box cannot do without what goes with a place.
func (k *Keeper) needed(ctx context.Context, place *reclaim.Place) string {
	var dirs []string
	for _, dir := range append([]string{place.Runtime}, place.Workspaces...) {
		if dir != "" {
			dirs = append(dirs, filepath.Join(k.root, dir))
		}
	}
	if len(dirs) == 0 {
		return ""
	}
	return k.opts.Needs.Of(ctx)(dirs...)
}

// usedSince reports whether a conversation was used after its place was read.
func (k *Keeper) usedSince(place *reclaim.Place) (bool, error) {
	at, err := lastActive(k.root, place.Conversation)
	return at.After(place.LastActive), err
}

// finish has the runtime of an archived conversation removed.
func (k *Keeper) finish(ctx context.Context, in []seat) {
	id := in[0].place.Conversation
	if k.opts.Take == nil || !slices.ContainsFunc(in, seat.hasRuntime) {
		return
	}
	if err := k.opts.Take(ctx, id); err != nil {
		k.opts.Log.Warn("remove the runtime of an archived conversation; the next pass tries again", "conversation", id, "error", err)
	}
}

func lastActive(dir, id string) (time.Time, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return time.Time{}, err
	}
	defer root.Close()
	at, _, err := storage.LastActive(root, id)
	return at, err
}
