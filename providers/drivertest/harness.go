package drivertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Harness gives the suite one place of a provider: an account, an engine, a
// directory. Every case has a place of its own. It may also implement
// [Planter], [Strayer], [Killer], [Life], [Leftover], [Puzzler] and [Mover], and, for a
// driver that talks HTTP, [Wire], [Paged] and [Detour].
type Harness interface {
	// Driver returns a new driver of installation; all drivers of a harness
	// talk to the same place.
	Driver(t *testing.T, installation string) driver.Driver
	// Row is what the driver is expected to claim.
	Row() box.Capabilities
}

// Planter makes a box that is not ours.
type Planter interface {
	// Plant makes a box of this name that carries no label of ours.
	Plant(t *testing.T, name string)
	// Untouched reports whether the planted box is there and as it was.
	Untouched(t *testing.T, name string) bool
}

// Strayer makes a box that carries no mark of anybody, and so can be adopted.
type Strayer interface {
	// Stray makes the box and returns the provider's own id of it.
	Stray(t *testing.T) (id string)
}

// Killer ends a box's processes behind the driver's back and keeps its files. A
// harness is none where the provider suspends and starts no box that failed.
type Killer interface {
	Kill(t *testing.T, ref box.Ref)
}

// Life tells lives of a box's processes apart.
type Life interface {
	// Life returns a text that stays the same as long as the processes of the
	// box go on where they were, suspended or not. It must not wake the box.
	Life(t *testing.T, ref box.Ref) string
}

// Leftover finds what a deleted box left behind.
type Leftover interface {
	// Left names everything that is still there of the box by the service's own
	// books: what is on its way out is, and so is what was made beside the box.
	Left(t *testing.T, ref box.Ref) []string
}

// Puzzler leaves something in the place of a deleted box of which the driver cannot
// tell what it does.
type Puzzler interface {
	Puzzle(t *testing.T, ref box.Ref)
}

// Mover exchanges the place for another one.
type Mover interface {
	// Move makes all drivers of the place talk to another account, region or
	// engine that has no boxes, as a changed credential or setting does. What it
	// returns puts them back.
	Move(t *testing.T) (back func())
}

// errLost is what a caller sees when the work was done and the answer broke.
var errLost = errors.New("the answer was lost")

// lossy is a driver that can lose the answer of its next mutating call, and
// that counts what reaches the driver behind it.
type lossy struct {
	driver.Driver
	mu    sync.Mutex
	lose  bool
	calls int
}

func (l *lossy) loseNext() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = true
}

func (l *lossy) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

func (l *lossy) answer(seen box.Observation, err error) (box.Observation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.lose {
		l.lose = false
		return box.Observation{}, errLost
	}
	return seen, err
}

func (l *lossy) Create(ctx context.Context, req driver.CreateRequest) (box.Observation, error) {
	return l.answer(l.Driver.Create(ctx, req))
}

func (l *lossy) Suspend(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return l.answer(l.Driver.Suspend(ctx, ref))
}

func (l *lossy) Resume(ctx context.Context, ref box.Ref, start driver.Start) (box.Observation, error) {
	return l.answer(l.Driver.Resume(ctx, ref, start))
}

// Deepen is not supported by a driver that does not implement it.
func (l *lossy) Deepen(ctx context.Context, ref box.Ref) (box.Observation, error) {
	deepener, ok := l.Driver.(driver.Deepener)
	if !ok {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return l.answer(deepener.Deepen(ctx, ref))
}

// Adjust is not supported by a driver that does not implement it.
func (l *lossy) Adjust(ctx context.Context, ref box.Ref, native box.Native) (box.Observation, error) {
	adjuster, ok := l.Driver.(driver.Adjuster)
	if !ok {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return l.answer(adjuster.Adjust(ctx, ref, native))
}

func (l *lossy) Delete(ctx context.Context, ref box.Ref) (box.Observation, error) {
	return l.answer(l.Driver.Delete(ctx, ref))
}

func (l *lossy) ErrorClass(err error) (box.Class, time.Duration) {
	if errors.Is(err, errLost) {
		return box.ClassUnavailable, 0
	}
	return l.Driver.ErrorClass(err)
}

// List and Watch pass on, so that the portable type finds them behind lossy.
func (l *lossy) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	l.mu.Lock()
	l.calls++
	l.mu.Unlock()
	lister, ok := l.Driver.(driver.Lister)
	if !ok {
		return nil, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return lister.List(ctx, installation)
}

func (l *lossy) Watch(ctx context.Context, emit func(driver.Listed)) error {
	watcher, ok := l.Driver.(driver.Watcher)
	if !ok {
		return box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return watcher.Watch(ctx, emit)
}

func (l *lossy) Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error) {
	adopter, ok := l.Driver.(driver.Adopter)
	if !ok {
		return box.Observation{}, box.Errorf(box.ClassUnsupported, "not implemented")
	}
	return l.answer(adopter.Adopt(ctx, id, as))
}
