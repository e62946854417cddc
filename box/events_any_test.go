package box_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openhands/boxkeeper/box"
)

// TestAnyMail lets receivers do what they like while people, time, the provider
// and failures do: the life of the box must not notice, what waits is bounded,
// and every event is taken, waiting or counted as dropped.
func TestAnyMail(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := spec()
		if rapid.Bool().Draw(rt, "deletes at expiry") {
			s.Policy.OnExpiry = box.OnExpiryDelete
		}
		x := &chaos{T: rt, w: newWorld(rt, s).listening(all("a", "b")...), tokens: []string{"bogus"}}
		post := newPostman(x.w)
		tries := map[string]int{}
		last := map[string]int{}
		post.answer = func(name string, e box.Event) box.Delivery {
			key := fmt.Sprintf("%s %d", name, e.Number)
			if tries[key]++; tries[key] > 8 {
				rt.Fatalf("event %d was sent to %s %d times", e.Number, name, tries[key])
			}
			if e.Number <= last[name] {
				rt.Fatalf("event %d came to %s after %d", e.Number, name, last[name])
			}
			switch rapid.SampledFrom([]string{"takes", "takes", "fails", "fails", "busy", "refuses", "gone"}).Draw(rt, "answer") {
			case "fails":
				return box.Delivery{Failed: true, Problem: "it answered 500"}
			case "busy":
				return box.Delivery{Failed: true, RetryAfter: box.Duration(rapid.Int64Range(0, int64(30*day)).Draw(rt, "after"))}
			case "gone":
				return box.Delivery{Failed: true, Gone: true}
			case "refuses":
				last[name] = e.Number
				return box.Delivery{Refused: 1}
			}
			last[name] = e.Number
			return box.Delivery{}
		}
		wait := x.w.settle()
		for i := range rapid.IntRange(1, 40).Draw(rt, "events") {
			if rapid.Bool().Draw(rt, "the mail goes") {
				post.deliver()
			}
			x.event(box.Request{ID: fmt.Sprintf("r%d", i), By: "ana"}, wait)
			wait = x.w.settle()
			checkMail(rt, x.w, post)
			if wait.Kind == box.StepFinish {
				break
			}
		}
		ended := x.w.now
		post.rounds()
		checkMail(rt, x.w, post)
		if len(x.w.facts.Outbox.Events) != 0 {
			rt.Fatalf("%d events wait for ever", len(x.w.facts.Outbox.Events))
		}
		if x.w.facts.State == box.StateBoxArchived && x.w.now.Sub(ended) > time.Hour {
			rt.Fatalf("the workflow of a destroyed box stays open for %s", x.w.now.Sub(ended))
		}
	})
}

// checkMail checks what must hold of the outbox at any time.
func checkMail(rt *rapid.T, w *world, post *postman) {
	f := w.facts
	o := f.Outbox
	if len(o.Events) > 32 || len(o.Receivers) > 8 {
		rt.Fatalf("%d events and %d receivers are carried along", len(o.Events), len(o.Receivers))
	}
	for _, r := range f.StatusAt(w.now).Webhooks {
		if sum := len(post.got[r.Name]) + r.Dropped + r.Waiting; sum != o.Number {
			rt.Fatalf("%s: %d taken, %d dropped, %d waiting, of %d", r.Name, len(post.got[r.Name]), r.Dropped, r.Waiting, o.Number)
		}
	}
	// What is armed does not depend on who listens.
	data, err := json.Marshal(f)
	if err != nil {
		rt.Fatal(err)
	}
	var alone box.Facts
	if err := json.Unmarshal(data, &alone); err != nil {
		rt.Fatal(err)
	}
	alone.Outbox = box.Outbox{}
	if with, without := box.Next(f, w.now), box.Next(&alone, w.now); !reflect.DeepEqual(with, without) {
		rt.Fatalf("with mail: %+v\nwithout: %+v", with, without)
	}
}
