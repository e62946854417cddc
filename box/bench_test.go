package box_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// BenchmarkTurn measures one turn of the loop's rules (let time pass, decide,
// arm) in the states in which a box spends its life, beside reading the same
// facts from their JSON form: what a design pays that keeps them in a database
// and decides from there.
func BenchmarkTurn(b *testing.B) {
	states := []struct {
		name  string
		reach func(w *world)
	}{
		{"running-idle", func(*world) {}},
		{"held-by-256", func(w *world) {
			for i := range 256 {
				w.begun(fmt.Sprint("op-", i))
			}
		}},
		{"suspended", func(w *world) { w.toSuspended() }},
		{"undo-window", func(w *world) {
			w.toSuspended()
			w.confirm(w.requestUndo(box.Duration(day)).Token)
		}},
	}
	for _, s := range states {
		w := newWorld(b, spec())
		w.settle()
		s.reach(w)
		w.settle()
		b.Run(s.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.facts.Advance(w.now)
				if step := w.facts.Armed(box.Next(w.facts, w.now)); step.Kind != box.StepWait {
					b.Fatal(step.Kind)
				}
			}
		})
		stored, err := json.Marshal(w.facts)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(s.name+"/from-json", func(b *testing.B) {
			b.ReportAllocs()
			b.ReportMetric(float64(len(stored)), "stored-bytes")
			for b.Loop() {
				var f box.Facts
				if err := json.Unmarshal(stored, &f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWhy measures the answer to a query.
func BenchmarkWhy(b *testing.B) {
	w := newWorld(b, spec())
	w.settle()
	for range 30 {
		w.now = w.now.Add(time.Hour)
		w.facts.Suspend(box.Request{ID: fmt.Sprint("s", w.now)}, w.now)
		w.settle()
		w.facts.Resume(box.Request{ID: fmt.Sprint("r", w.now)}, w.now)
		w.settle()
	}
	b.ReportAllocs()
	for b.Loop() {
		if why := w.facts.WhyAt(w.now); why.Next == "" {
			b.Fatal(why)
		}
	}
}
