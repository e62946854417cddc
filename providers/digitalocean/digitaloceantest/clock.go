package digitaloceantest

import (
	"context"
	"time"
)

// deferred is what happens at its time and not before.
type deferred struct {
	at time.Time
	do func()
}

// Now is the time of the server's clock, in UTC.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.time()
}

// Advance moves the server's own clock, and everything happens whose time has
// come, in its order. It panics when the clock is the caller's.
func (s *Server) Advance(d time.Duration) {
	if s.opts.Now != nil || d < 0 {
		panic("digitaloceantest: Advance moves the server's own clock, and only forward")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
	s.settle()
	close(s.moved)
	s.moved = make(chan struct{})
}

// time is the present. The lock is held.
func (s *Server) time() time.Time {
	if s.opts.Now != nil {
		return s.opts.Now().UTC()
	}
	return s.now
}

// settle does what is due, the earliest first. The lock is held.
func (s *Server) settle() {
	now := s.time()
	for {
		at, do := s.due()
		if do == nil || at.After(now) {
			return
		}
		do()
	}
}

// due finds what happens next: do is nil if nothing will. The lock is held.
func (s *Server) due() (at time.Time, do func()) {
	offer := func(t time.Time, f func()) {
		if do == nil || t.Before(at) {
			at, do = t, f
		}
	}
	for i, d := range s.later {
		offer(d.at, func() {
			s.later = append(s.later[:i:i], s.later[i+1:]...)
			d.do()
		})
	}
	for _, ses := range s.sessions {
		if t, f := ses.due(s); f != nil {
			offer(t, func() { f(t) })
		}
	}
	for _, w := range s.spaces {
		if w.state == "RELEASING" {
			offer(w.freeAt, func() { w.release() })
		}
	}
	return at, do
}

// at lets something happen later. The lock is held.
func (s *Server) at(t time.Time, do func()) {
	s.later = append(s.later, deferred{t, do})
}

// wait returns once the clock has come to t. The lock is not held.
func (s *Server) wait(ctx context.Context, t time.Time) error {
	for {
		s.mu.Lock()
		left, moved := t.Sub(s.time()), s.moved
		s.mu.Unlock()
		if left <= 0 {
			return nil
		}
		var timer <-chan time.Time
		if s.opts.Now != nil {
			timer = time.After(left)
		}
		select {
		case <-moved:
		case <-timer:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.closing:
			return context.Canceled
		}
	}
}
