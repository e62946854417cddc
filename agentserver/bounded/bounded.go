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
	stuck map[string]int
}

// In does the work at place and returns what that returns. After most, or when
// given is closed, it leaves the work to itself and returns ClassDeadlineExceeded
// or ClassCanceled. The former it returns at once while an earlier one is there
// for longer than its time. undo, when it is not nil, gets what came too late.
func In[T any](l *Looks, given <-chan struct{}, place string, most time.Duration, work func() (T, error), undo func(T)) (T, error) {
	var none T
	if l.isStuck(place) {
		return none, box.Errorf(box.ClassDeadlineExceeded, "an earlier look at it has not come back")
	}
	type answer struct {
		value T
		err   error
	}
	back := make(chan answer, 1)
	go func() {
		value, err := work()
		back <- answer{value, err}
	}()
	timer := time.NewTimer(most)
	err := box.Errorf(box.ClassDeadlineExceeded, "it did not answer within %s", most)
	stuck := 0
	select {
	case got := <-back:
		timer.Stop()
		return got.value, got.err
	case <-timer.C:
		stuck = 1
		l.add(place, stuck)
	case <-given:
		err = box.Errorf(box.ClassCanceled, "nobody waits for the answer any more")
	}
	go func() {
		var got answer
		select {
		case got = <-back:
			timer.Stop()
		case <-timer.C: // not a second time
			stuck = 1
			l.add(place, stuck)
			got = <-back
		}
		l.add(place, -stuck)
		if got.err == nil && undo != nil {
			undo(got.value)
		}
	}()
	return none, err
}

func (l *Looks) isStuck(place string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stuck[place] > 0
}

// add counts the looks that are at place for longer than their time.
func (l *Looks) add(place string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stuck == nil {
		l.stuck = map[string]int{}
	}
	if l.stuck[place] += n; l.stuck[place] == 0 {
		delete(l.stuck, place)
	}
}
