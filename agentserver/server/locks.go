package server

import (
	"context"
	"sync"
)

// lockMap is a set of locks by name that waits no longer than ctx. Its zero
// value works.
type lockMap struct {
	mu   sync.Mutex
	held map[string]*namedLock
}

type namedLock struct {
	free chan struct{} // holds one token while nobody has the lock
	uses int
}

// lock returns when the name is ours; leave gives it back.
func (l *lockMap) lock(ctx context.Context, name string) (leave func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*namedLock{}
	}
	one := l.held[name]
	if one == nil {
		one = &namedLock{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		l.held[name] = one
	}
	one.uses++
	l.mu.Unlock()
	done := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.uses--; one.uses == 0 {
			delete(l.held, name)
		}
	}
	select {
	case <-one.free:
		return func() {
			one.free <- struct{}{}
			done()
		}, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}
