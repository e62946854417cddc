package reclaim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
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
	Log *slog.Logger // nil means none
}

// Reclaimer frees space below one root. It is safe for concurrent use; passes
// that change something take turns.
type Reclaimer struct {
	root string
	opts Options
	tree *tree

	pass sync.Mutex // held while a pass moves things

	mu    sync.Mutex
	plans map[string]*record
	busy  map[string]chan struct{} // trash entries that are being deleted now
	owned map[string]bool          // trash entries that a pass deletes and counts
	// sweeping says that a goroutine looks after the trash; again wakes it early.
	sweeping bool
	again    chan struct{}

	stop    context.CancelFunc
	stopped context.Context //nolint:containedctx // ends the deletions at Close
	working sync.WaitGroup
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
		plans: map[string]*record{}, busy: map[string]chan struct{}{}, owned: map[string]bool{}, again: make(chan struct{}, 1),
		stop: stop, stopped: stopped,
	}
	r.keepReserve()
	r.working.Go(r.sweep)
	return r, nil
}

// Close stops the deletions, which the next Open goes on with.
func (r *Reclaimer) Close() {
	r.stop()
	r.working.Wait()
	r.tree.close()
}

// Do plans a pass or carries one out, as the request says. Applying one plan id
// again answers the first report, also after a restart. ClassInvalid names the
// field at fault, NotFound means the plan is not known (any more), Unsupported
// that this system cannot do it safely.
func (r *Reclaimer) Do(ctx context.Context, request box.ReclaimRequest) (box.ReclaimReport, error) {
	if err := validate(request); err != nil {
		return box.ReclaimReport{}, err
	}
	if err := r.tree.usable(); err != nil {
		return box.ReclaimReport{}, err
	}
	if request.PlanID != "" {
		return r.apply(ctx, request.PlanID)
	}
	plan, err := r.plan(ctx)
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
		field := fmt.Sprintf("tiers[%d]", i)
		switch tier {
		case box.TierCaches:
		case box.TierDependencies, box.TierRuntime:
			return &box.Error{
				Class: box.ClassUnsupported, Field: field,
				Message: fmt.Sprintf("%q is not offered by this version; use \"caches\"", tier),
			}
		default:
			return box.Invalidf(field, "%q is not a tier; use \"caches\"", tier)
		}
	}
	switch {
	case request.PlanID != "" && request.DryRun:
		return box.Invalidf("dry_run", "a plan id means apply; leave dry_run out, or leave plan_id out for a new plan")
	case request.PlanID != "" && !planForm.MatchString(request.PlanID):
		return box.Invalidf("plan_id", "is not a plan id; use one that a dry run answered")
	}
	return nil
}

// Space is what a look at the root found.
type Space struct {
	Disk box.Disk
	// ReclaimableBytes is what a pass would free now, TrashBytes what is moved
	// aside and not yet deleted.
	ReclaimableBytes, TrashBytes int64
	Errors                       []string
}

// Look measures without changing anything. It fails only when the disk itself
// cannot be read; the rest is listed in Errors.
func (r *Reclaimer) Look(ctx context.Context) (Space, error) {
	disk, err := diskOf(r.root)
	if err != nil {
		return Space{}, fmt.Errorf("read the size of the disk: %w", err)
	}
	space := Space{Disk: disk}
	if err := r.tree.usable(); err != nil {
		space.Errors = append(space.Errors, err.Error())
		return space, nil
	}
	plan, err := r.plan(ctx)
	if err != nil {
		return Space{}, err
	}
	space.ReclaimableBytes = plan.PlannedBytes
	space.Errors = append(space.Errors, plan.unread...)
	if space.TrashBytes, err = r.trashBytes(ctx); err != nil {
		return Space{}, err
	}
	return space, nil
}

// Supported reports whether this system can delete safely.
func (r *Reclaimer) Supported() bool { return r.tree.usable() == nil }
