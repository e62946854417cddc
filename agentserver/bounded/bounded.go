// Package bounded does what a system call may never come back from, such as a
// look at a file on a server that is stopped: nothing ends such a call. Who waits
// for it gives up after a while, and until it comes back nobody else is sent to
// the same place, so that no more and no more threads wait there.
//
// Who calls it: the packages of boxd that look where somebody else's files point.
package bounded

import (
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Looks remembers where a look has not come back. Its zero value works; it is safe
// for concurrent use.
type Looks struct {
	mu    sync.Mutex
	stuck map[string]bool
}

// In does the work at place and returns what that returns. After most, or when
// given is closed, it leaves the work to itself and returns ClassDeadlineExceeded
// or ClassCanceled, and so it does at once while an earlier one is still there.
// undo, when it is not nil, gets what came too late.
func In[T any](l *Looks, given <-chan struct{}, place string, most time.Duration, work func() (T, error), undo func(T)) (T, error) {
	var none T
	if l.isStuck(place) {
		return none, box.Errorf(box.ClassDeadlineExceeded, "an earlier look at it has not come back")
	}
	type answer struct {
		value T
		err   error
	}
	back, left := make(chan answer), make(chan struct{})
	go func() {
		value, err := work()
		select {
		case back <- answer{value, err}:
		case <-left:
			l.set(place, false)
			if err == nil && undo != nil {
				undo(value)
			}
		}
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	err := box.Errorf(box.ClassCanceled, "nobody waits for the answer any more")
	select {
	case got := <-back:
		return got.value, got.err
	case <-given:
	case <-timer.C:
		err = box.Errorf(box.ClassDeadlineExceeded, "it did not answer within %s", most)
	}
	l.set(place, true)
	close(left)
	return none, err
}

func (l *Looks) isStuck(place string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stuck[place]
}

func (l *Looks) set(place string, stuck bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stuck == nil {
		l.stuck = map[string]bool{}
	}
	if stuck {
		l.stuck[place] = true
	} else {
		delete(l.stuck, place)
	}
}
