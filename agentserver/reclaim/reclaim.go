package reclaim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Names below the root that belong to this package.
const (
	trashName   = ".trash"
	journalName = "run/reclaim"
	reserveName = "run/reserve"
)

// Options is what a Reclaimer may be told; the zero value works.
type Options struct {
	// Wait is how long an apply waits for its deletions before it answers with
	// Pending; zero means 30 seconds.
	Wait time.Duration
	// Env reads the environment that tools in the box run with; nil means empty.
	Env func(string) string
	// Layouts know the conversations. Without one there is the box's own home,
	// which is looked at in any case.
	Layouts []Layout
	// Repos asks git; nil means that nothing in a workspace is taken.
	Repos Repos
	// Unsaved says in words which work in a workspace, an absolute path, is
	// nowhere else; empty when none is. It is asked before tier runtime takes it;
	// nil means that nobody can tell, so that nothing of that tier is taken.
	Unsaved func(ctx context.Context, workspace string) (string, error)
	// Needs is asked before a conversation is held.
	Needs Needs
	// Catalogue says what is recognised; nil means the built-in table.
	Catalogue *Catalogue
	Budget    Budget
	Log       *slog.Logger // nil means none

	// fault is called at each step of a pass, for tests that end the process there.
	fault func(step string)
}

// Reclaimer frees space below one root. It is safe for concurrent use; passes
// that change something take turns.
type Reclaimer struct {
	root string
	opts Options
	tree *tree

	pass sync.Mutex // held while a pass moves things

	writing sync.Mutex // held while a plan is journaled, so that what is newer is written later

	mu     sync.Mutex
	plans  map[string]*record
	busy   map[string]*deletion // by trash entry
	owned  map[string]*record   // trash entries that the pass of a plan looks through, deletes and counts
	cutOff []string             // ids of plans whose Remover an earlier process left with something in the trash
	noted  time.Time            // when progress was journaled last
	warned bool                 // that the box is over its budget and nothing is left to shed
	// sweeping says that a goroutine looks after the trash; again wakes it early.
	sweeping bool
	again    chan struct{}

	stop    context.CancelFunc
	stopped context.Context //nolint:containedctx // ends the deletions at Close
	inside  sync.WaitGroup  // calls from outside
	working sync.WaitGroup  // deletions, and the sweep
	ending  bool            // Close was called: nobody comes in any more
	closing sync.Once
}

// Open prepares the trash and the journal below root, which must exist, and
// goes on deleting what an earlier process left in the trash, for as long as
// the Reclaimer lives: what a process still uses is tried again later. One process per
// root: the caller sees to it. A full disk is no obstacle when they are there
// already.
func Open(root string, opts Options) (*Reclaimer, error) {
	if opts.Wait <= 0 {
		opts.Wait = 30 * time.Second
	}
	if opts.Env == nil {
		opts.Env = func(string) string { return "" }
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if opts.Catalogue == nil {
		opts.Catalogue = &Catalogue{rules: builtIn}
	}
	if err := opts.Budget.Check(); err != nil {
		return nil, err
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", root, err)
	}
	// The box's own directories are made by whoever may not follow a link out.
	below, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open the box: %w", err)
	}
	defer below.Close()
	for _, name := range []string{trashName, journalName} {
		if err := below.MkdirAll(name, 0o700); err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
	}
	tree, err := openTree(root)
	if err != nil {
		return nil, err
	}
	// Our own directories are written to by path: they must be what they seem.
	if err := tree.genuine(); err != nil {
		tree.close()
		return nil, err
	}
	stopped, stop := context.WithCancel(context.Background()) //nolint:forbidigo // deletions outlive the request that began them; Close ends them
	r := &Reclaimer{
		root: root, opts: opts, tree: tree,
		plans: map[string]*record{}, busy: map[string]*deletion{}, owned: map[string]*record{}, again: make(chan struct{}, 1),
		stop: stop, stopped: stopped,
	}
	r.keepReserve()
	r.cutOff = r.underWay()
	r.working.Go(r.sweep)
	return r, nil
}

// Close ends the calls that are under way, and the deletions, which the next Open
// goes on with. It returns when they have ended, and may be repeated; later calls
// are refused with ClassUnavailable.
func (r *Reclaimer) Close() {
	r.closing.Do(func() {
		r.mu.Lock()
		r.ending = true
		r.mu.Unlock()
		r.stop()
		r.inside.Wait()
		r.working.Wait()
		// Not before: from here on its number is that of another file.
		r.tree.close()
	})
}

// enter keeps the tree open for a call from outside until leave, and ends its
// context at Close.
func (r *Reclaimer) enter(ctx context.Context) (inner context.Context, leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending {
		return nil, nil, box.Errorf(box.ClassUnavailable, "the part that frees space has ended; ask again when boxd has started again")
	}
	r.inside.Add(1)
	inner, cancel := context.WithCancel(ctx)
	unwatch := context.AfterFunc(r.stopped, cancel)
	return inner, func() {
		unwatch()
		cancel()
		r.inside.Done()
	}, nil
}

// Do plans a pass or carries one out, as the request says. Applying one plan id
// again answers the first report, also after a restart. ClassInvalid names the
// field at fault, NotFound means the plan is not known (any more), Unsupported
// that this system cannot do it safely, Unavailable that Close was called.
func (r *Reclaimer) Do(ctx context.Context, request box.ReclaimRequest) (box.ReclaimReport, error) {
	if err := validate(request); err != nil {
		return box.ReclaimReport{}, err
	}
	if err := r.tree.usable(); err != nil {
		return box.ReclaimReport{}, err
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return box.ReclaimReport{}, err
	}
	defer leave()
	limits, err := r.scopeOf(ctx, request)
	if err != nil {
		return box.ReclaimReport{}, err
	}
	if request.PlanID != "" {
		return r.apply(ctx, request.PlanID)
	}
	plan, err := r.plan(ctx, limits)
	if err != nil {
		return box.ReclaimReport{}, err
	}
	r.remember(plan)
	if request.DryRun {
		return plan.planned(), nil
	}
	return r.apply(ctx, plan.ID)
}

func validate(request box.ReclaimRequest) error {
	for i, tier := range request.Tiers {
		if level(tier) == 0 {
			return box.Invalidf(fmt.Sprintf("tiers[%d]", i), `%q is not a tier; use "caches", "dependencies" or "runtime"`, tier)
		}
	}
	ends := slices.Contains(request.Tiers, box.TierRuntime)
	switch {
	case ends && len(request.ConversationIDs) == 0 && !request.DryRun && request.PlanID == "":
		return box.Invalidf("conversation_ids", "tier runtime ends conversations: name them, or apply the plan of a dry run")
	case request.AcceptUnsaved && (!ends || len(request.ConversationIDs) == 0 || request.PlanID != ""):
		return box.Invalidf("accept_unsaved", "is for tier runtime of conversations that are named, and for a dry run before its plan is applied")
	case request.PlanID != "" && request.DryRun:
		return box.Invalidf("dry_run", "a plan id means apply; leave dry_run out, or leave plan_id out for a new plan")
	case request.PlanID != "" && !planForm.MatchString(request.PlanID):
		return box.Invalidf("plan_id", "is not a plan id; use one that a dry run answered")
	}
	return nil
}

// Supported reports whether this system can delete safely.
func (r *Reclaimer) Supported() bool { return r.tree.usable() == nil }

// abs is the absolute path of what lies at a path relative to the root, as the
// kernel tells it of processes.
func (r *Reclaimer) abs(place string) string { return filepath.Join(r.tree.realPath(), place) }

func (r *Reclaimer) step(name string) {
	if r.opts.fault != nil {
		r.opts.fault(name)
	}
}
