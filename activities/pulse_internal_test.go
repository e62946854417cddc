package activities

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openhands/boxkeeper/box"
)

func TestAStandstillEndsTheExecution(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pulse{last: time.Now(), bound: standstill}
		ctx := context.WithValue(t.Context(), pulseKey{}, p)
		for range 5 {
			time.Sleep(standstill / 2)
			if err := fenced(ctx); err != nil {
				t.Fatalf("a pause within the bound: %v", err)
			}
		}
		time.Sleep(standstill + time.Second)
		if err := fenced(ctx); box.ClassOf(err) != box.ClassUnavailable {
			t.Fatalf("after a standstill: %v", err)
		}
		if err := fenced(ctx); err == nil {
			t.Fatal("a later look forgot the standstill")
		}
	})
}

// A driver that waited for a lock asks its context before it goes on, also one
// that the step's own end does not reach.
func TestAFencedContextEndsWithAStandstill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pulse{last: time.Now(), bound: standstill}
		ctx := context.WithValue(t.Context(), pulseKey{}, p)
		detached := fence(ctx, context.WithoutCancel(ctx))
		if err := detached.Err(); err != nil {
			t.Fatalf("at the start: %v", err)
		}
		time.Sleep(standstill + time.Second)
		if detached.Err() == nil {
			t.Fatal("it goes on after a standstill")
		}
	})
}
