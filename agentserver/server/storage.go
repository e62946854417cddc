package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/scan"
	ondisk "github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

const (
	// selectionLife is how long a selection is taken for right while nothing
	// changed on the disk: who uses what may change without.
	selectionLife = time.Minute
	// partBound is how long a part of the answer may take before the rest is
	// answered without it.
	partBound = 2 * time.Minute
	// largeTree is how many directories a look meets before its memory is worth
	// returning.
	largeTree = 5000
	// maxTold bounds the errors of one answer.
	maxTold = 100
)

// storage answers what the disk holds. One look is under way at most; whoever
// asks meanwhile gets its answer.
type storage struct {
	root    string
	reclaim *reclaim.Reclaimer
	history history
	// retention returns how long a conversation keeps its runtime, as it takes
	// effect; nil when nobody knows.
	retention func(id string) *box.Retention
	forgotten func(ctx context.Context) ([]box.ReclaimItem, error) // nil when nobody looks
	started   time.Time
	scanner   *scan.Scanner
	bound     time.Duration

	histories part[histories]
	disks     part[box.Disk]
	selects   part[reclaim.Selection]
	leftover  part[[]box.ReclaimItem]

	mu      sync.Mutex
	running *storageLook

	// Of the look under way alone.
	states map[string]stateMark
	known  *charted
	cost   scan.Work // of its walks
}

// histories are the conversations, and what their states say.
type histories struct {
	list   []stored
	states map[string]stateMark
	// archived says since when a conversation is, with a zero time when that is not
	// known. One whose runtime is gone is in no layout's list any more.
	archived map[string]time.Time
}

// listed reads the histories; what states were read before is not changed.
func (s *storage) listed(before map[string]stateMark) (histories, error) {
	list, err := s.history.list()
	if err != nil {
		return histories{}, err
	}
	root, err := os.OpenRoot(s.root)
	if err != nil {
		return histories{}, err
	}
	defer root.Close()
	out := histories{list, map[string]stateMark{}, map[string]time.Time{}}
	for _, one := range list {
		out.states[one.ID] = s.history.state(one.ID, before[one.ID])
		// One that cannot be read makes the conversation's place busy, which is told.
		if archived, since, err := ondisk.Archived(root, one.ID); err == nil && archived {
			out.archived[one.ID] = since
		}
	}
	return out, nil
}

// charted is a selection that was measured.
type charted struct {
	reclaim.Selection
	chart
	forgotten []box.ReclaimItem // what stays of what agent-servers left behind
	at        time.Time
	print     uint64
}

// storageLook is one look at the disk, for all who wait for it.
type storageLook struct {
	done    chan struct{}
	status  box.StorageStatus
	err     error
	waiting int
	give    context.CancelCauseFunc // ends it
}

var errNobodyWaits = errors.New("nobody waits for the answer any more")

func newStorage(opts Options, dir history, started time.Time) *storage {
	var retention func(string) *box.Retention
	if opts.Keeping != nil {
		retention = opts.Keeping.Keeper.Effective
	}
	return &storage{
		root: opts.Root, reclaim: opts.Reclaim, history: dir, retention: retention, forgotten: opts.Forgotten, started: started, bound: partBound,
		scanner: scan.New(opts.Root, scan.Options{Watch: watches}), states: map[string]stateMark{},
	}
}

// watches are the searches of candidates, in the order of their numbers.
var watches = []func([]byte) bool{ //nolint:gochecknoglobals // a constant table
	func(name []byte) bool { return reclaim.SearchPackages.Forbids(name) != "" },
	func(name []byte) bool { return reclaim.SearchAll.Forbids(name) != "" },
}

func (s *Server) getStorage(w http.ResponseWriter, r *http.Request) {
	status, err := s.storage.ask(r.Context())
	if err != nil {
		refuseError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, status)
}

// ask joins the look that is under way, or begins one. A caller who gives up
// ends it only when nobody else waits.
func (s *storage) ask(ctx context.Context) (box.StorageStatus, error) {
	s.mu.Lock()
	look := s.running
	if look == nil || look.waiting == 0 { // given up: it is about to end
		before := look
		inner, give := context.WithCancelCause(context.WithoutCancel(ctx))
		look = &storageLook{done: make(chan struct{}), give: give}
		s.running = look
		go func() {
			if before != nil {
				<-before.done
			}
			s.carryOut(inner, look)
		}()
	}
	look.waiting++
	s.mu.Unlock()
	select {
	case <-look.done:
		return look.status, look.err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if look.waiting--; look.waiting == 0 {
			look.give(errNobodyWaits)
		}
		return box.StorageStatus{}, box.Errorf(box.ClassCanceled, "measure the disk: %w", context.Cause(ctx))
	}
}

func (s *storage) carryOut(ctx context.Context, look *storageLook) {
	look.status, look.err = s.look(ctx)
	large := s.cost.Read+s.cost.Kept >= largeTree
	// From here on the next look can begin.
	s.mu.Lock()
	if s.running == look {
		s.running = nil
	}
	s.mu.Unlock()
	close(look.done)
	look.give(nil)
	if large {
		// boxd is mostly idle, and would keep what reading a large tree took until it
		// is needed again, which may be never.
		debug.FreeOSMemory()
	}
}

// look measures. Only histories that cannot be listed, and a disk that does not
// say how large it is, are errors; the rest is told in the answer.
func (s *storage) look(ctx context.Context) (box.StorageStatus, error) {
	before := s.states
	all, err := s.histories.do(ctx, s.bound, func(context.Context) (histories, error) { return s.listed(before) })
	if err != nil {
		return box.StorageStatus{}, fmt.Errorf("list the conversations: %w", err)
	}
	s.states = all.states
	disk, err := s.disks.do(ctx, s.bound, func(context.Context) (box.Disk, error) { return s.reclaim.Disk() })
	if err != nil {
		return box.StorageStatus{}, err
	}
	status := box.StorageStatus{Disk: disk, Conversations: []box.ConversationStorage{}}
	s.cost = scan.Work{}
	found, result, err := s.measure(ctx, all.list)
	if err != nil {
		if ctx.Err() != nil {
			return box.StorageStatus{}, err
		}
		status.Errors = append(status.Errors, err.Error())
	}
	status.Errors = append(status.Errors, found.Errors...)
	s.tell(&status, &all, found, &result)
	for _, fault := range result.Faults {
		status.Errors = append(status.Errors, fault.Path+": "+fault.Err.Error())
	}
	if more := max(0, len(status.Errors)-maxTold) + result.FaultCount - len(result.Faults); more > 0 {
		status.Errors = append(status.Errors[:min(len(status.Errors), maxTold)], fmt.Sprintf("and %d more", more))
	}
	status.Partial = len(status.Errors) > 0
	return status, nil
}

// measure walks over the histories and what the last selection named. When
// something changed since, it selects again and walks over that.
func (s *storage) measure(ctx context.Context, list []stored) (*charted, scan.Result, error) {
	var result scan.Result
	var err error
	last := s.known
	if last != nil && last.covers(list) {
		if result, err = s.walk(ctx, last.places); err == nil && result.Print == last.print && time.Since(last.at) < selectionLife {
			return last, result, nil
		}
	}
	s.known = nil
	next := &charted{at: time.Now()}
	// What happens between selecting and walking is noticed a selectionLife later
	// at the latest.
	next.Selection, err = s.selects.do(ctx, s.bound, s.reclaim.Select)
	if err != nil {
		if ctx.Err() != nil {
			return next, result, err
		}
		next.Errors = append(next.Errors, "select what could be freed: "+err.Error())
	}
	if s.forgotten != nil {
		items, err := s.leftover.do(ctx, s.bound, s.forgotten)
		if err != nil && ctx.Err() != nil {
			return next, result, err
		}
		if err != nil {
			next.Errors = append(next.Errors, "look for what agent-servers left behind: "+err.Error())
		}
		next.forgotten = slices.DeleteFunc(items, func(i box.ReclaimItem) bool { return i.Skipped == "" })
	}
	next.chart = newChart(list, &next.Selection)
	if last == nil || result.Sizes == nil || !slices.Equal(last.places, next.places) {
		if result, err = s.walk(ctx, next.places); err != nil {
			result = scan.Result{} // as if nothing was there, and told
			return next, result, err
		}
	}
	next.print = result.Print
	if len(next.Errors) == 0 {
		s.known = next
	}
	return next, result, nil
}

func (s *storage) walk(ctx context.Context, places []scan.Place) (scan.Result, error) {
	result, err := s.scanner.Walk(ctx, places)
	s.cost.Read += result.Work.Read
	s.cost.Kept += result.Work.Kept
	s.cost.Looked += result.Work.Looked
	return result, err
}

// tell fills in the answer from what was measured.
func (s *storage) tell(status *box.StorageStatus, all *histories, found *charted, result *scan.Result) {
	sums := newSums(found, result)
	places := map[string]*reclaim.Place{}
	for i := range found.Places {
		if one := &found.Places[i]; places[one.Conversation] == nil {
			places[one.Conversation] = one
		}
	}
	for _, one := range all.list {
		entry := box.ConversationStorage{ID: one.ID, Events: one.Events}
		mark := s.states[one.ID]
		entry.State = mark.status
		place := places[one.ID]
		s.tellAge(&entry, one.newest, mark.changed, place)
		sums.tell(&entry)
		if place != nil {
			entry.Skipped = place.Busy
		}
		since, archived := all.archived[one.ID]
		if !archived && place != nil {
			since, archived = place.ArchivedAt, place.Archived
		}
		if archived {
			entry.State, entry.ArchivedSeconds = "archived", -1
			if !since.IsZero() {
				// Just now is a second ago: absent means that it is not.
				entry.ArchivedSeconds = max(1, int64(time.Since(since)/time.Second))
			}
		}
		if s.retention != nil {
			entry.Retention = s.retention(one.ID)
		}
		status.Conversations = append(status.Conversations, entry)
	}
	status.ByTier = sums.byTier("")
	status.Reclaimable = status.ByTier[box.TierCaches]
	status.Left = append(sums.left(), found.forgotten...)
	status.TrashBytes = sums.trash(s.root)
}

// tellAge takes the newest of the signs of use. The lease is none: it is written
// while a conversation is merely loaded; and neither is any directory, since what
// we delete changes those.
func (s *storage) tellAge(entry *box.ConversationStorage, event, state time.Time, place *reclaim.Place) {
	last, from := s.started, ""
	consider := func(at time.Time, sign string) {
		if !at.IsZero() && (from == "" || at.After(last)) {
			last, from = at, sign
		}
	}
	consider(state, "base_state.json")
	consider(event, "newest event")
	if place != nil {
		consider(place.LastActive, cmp.Or(place.LastActiveFrom, "its layout"))
	}
	// A time in the future counts as now: an unsure reading never makes something
	// look idle.
	entry.IdleSeconds, entry.LastActiveFrom = int64(max(0, time.Since(last))/time.Second), from
}

// part is a piece of work that may hang. It is done once at a time, and given up
// after a bound; while it hangs, nobody else is sent there.
type part[T any] struct {
	mu   sync.Mutex
	busy bool
}

func (p *part[T]) do(ctx context.Context, bound time.Duration, work func(context.Context) (T, error)) (T, error) {
	var none T
	p.mu.Lock()
	if p.busy {
		p.mu.Unlock()
		return none, box.Errorf(box.ClassUnavailable, "an earlier look has not come back")
	}
	p.busy = true
	p.mu.Unlock()
	type answer struct {
		value T
		err   error
	}
	inner, cancel := context.WithTimeout(ctx, bound)
	answered := make(chan answer, 1)
	go func() {
		defer cancel()
		value, err := work(inner)
		p.mu.Lock()
		p.busy = false
		p.mu.Unlock()
		answered <- answer{value, err}
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case got := <-answered:
		return got.value, got.err
	case <-timer.C:
		return none, box.Errorf(box.ClassUnavailable, "no answer within %s", bound)
	case <-ctx.Done():
		return none, box.Errorf(box.ClassCanceled, "measure the disk: %w", context.Cause(ctx))
	}
}

// covers reports whether the chart is of these conversations.
func (c *charted) covers(list []stored) bool {
	return slices.EqualFunc(c.histories, list, func(id string, one stored) bool { return id == one.ID })
}

// belowDir reports whether place is dir or lies inside.
func belowDir(dir, place string) bool {
	return place == dir || strings.HasPrefix(place, dir+"/")
}
