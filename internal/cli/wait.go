package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const (
	waitFirst = 250 * time.Millisecond
	waitMost  = 3 * time.Second
)

// goal is a state to wait for, and those from which it is not reached any more.
type goal struct {
	name  string
	good  []box.State
	never []box.State
	// more looks at what states alone do not say; an error ends the wait.
	more func(box.Status) error
	// yet says what a good state still lacks; empty or nil for nothing.
	yet func(box.Status) string
	// keep does what must go on while the wait lasts, at each look, also at one
	// that nobody answers: then the status is empty. It answers how soon the next
	// look must come; an error ends the wait. Nil for nothing.
	keep func(context.Context, box.Status) (time.Duration, error)
}

func runningGoal() goal {
	return goal{
		name: "running", good: []box.State{box.StateRunning},
		never: []box.State{box.StateCreateFailed, box.StateLost, box.StateDeleting, box.StateBoxArchived, box.StateDeleteBlocked, box.StateAbandoned},
	}
}

func suspendedGoal() goal {
	return goal{
		name: "suspended", good: []box.State{box.StateSuspended, box.StateAwaitingConfirm, box.StateUndoWindow},
		never: []box.State{box.StateCreateFailed, box.StateLost, box.StateDeleting, box.StateBoxArchived, box.StateDeleteBlocked, box.StateAbandoned},
	}
}

func archivedGoal() goal {
	return goal{name: "box-archived", good: []box.State{box.StateBoxArchived}, never: []box.State{box.StateDeleteBlocked, box.StateLost, box.StateAbandoned}}
}

// wait asks for the status, less and less often, until the goal is reached. The
// workflow is asked, never the box. States that it passes, and why it stays in
// one, are noted on standard error when they change.
func (s *session) wait(ctx context.Context, workspace string, g goal, within box.Duration) (box.Status, error) {
	var last box.Status
	told, away := "", false
	for pause := waitFirst; ; pause = min(pause*3/2, waitMost) {
		status, err := s.status(ctx, workspace)
		if err != nil && ctx.Err() != nil {
			return last, s.waited(g, last, within)
		}
		if box.ClassOf(err) == box.ClassUnavailable && (s.served || last.State != "") {
			// A worker that is there has too much to do, or it or the engine is being
			// restarted: what was asked for stands.
			if !away {
				note(s.cmd, "%v; still waiting", err)
			}
			away, s.served = true, false
			soon, err := g.kept(ctx, status)
			if err != nil {
				return last, err
			}
			if pause = min(pause, soon); !sleep(ctx, pause) {
				return last, s.waited(g, last, within)
			}
			continue
		}
		if err != nil {
			return last, err
		}
		away = false
		cause := g.cause(status)
		if status.State == last.State { // else it has only just begun
			cause += s.unservedText(ctx, status.Provider, status.Next, status.NextAt)
		}
		if cause != told {
			note(s.cmd, "%s", cause)
		}
		last, told = status, cause
		if reached, err := g.ends(status); reached || err != nil {
			return status, err
		}
		soon, err := g.kept(ctx, status)
		if err != nil {
			return status, err
		}
		if pause = min(pause, soon); !sleep(ctx, pause) {
			return last, s.waited(g, last, within)
		}
	}
}

// waited is the error of a wait that did not end by itself.
func (s *session) waited(g goal, last box.Status, within box.Duration) error {
	if errors.Is(s.cmd.Context().Err(), context.Canceled) {
		return box.Errorf(box.ClassCanceled, "stopped waiting; the request stands")
	}
	got := string(last.State)
	if got == "" {
		got = "not known"
	}
	return &stillWaiting{want: g.name, got: got, took: within.String(), why: because(last)}
}

// ends reports whether a wait for the goal is over: it is reached, or an error
// says that it never is.
func (g goal) ends(s box.Status) (reached bool, err error) {
	switch {
	case slices.Contains(g.good, s.State):
		return g.yet == nil || g.yet(s) == "", nil
	case slices.Contains(g.never, s.State):
		return false, &otherState{want: g.name, got: s.State, why: because(s)}
	case g.more != nil:
		return false, g.more(s)
	}
	return false, nil
}

func (g goal) kept(ctx context.Context, s box.Status) (time.Duration, error) {
	if g.keep == nil {
		return waitMost, nil
	}
	return g.keep(ctx, s)
}

// cause is the state and why, and what a good one still lacks, without what
// changes at each try.
func (g goal) cause(s box.Status) string {
	text := string(s.State) + ": " + s.Reason.Text
	if f := s.Failure; f != nil && !strings.Contains(text, f.Message) {
		text += "; " + string(f.Step) + " failed: " + f.Message
	}
	if g.yet != nil {
		if lacks := g.yet(s); lacks != "" {
			text += "; " + lacks
		}
	}
	return text
}

// because returns why a workspace is as it is, with what keeps failing.
func because(s box.Status) string {
	text := s.Reason.Text
	f := s.Failure
	if f == nil {
		return text
	}
	told := strings.Contains(text, f.Message) // it is the reason
	if told && f.Count <= 1 {
		return text
	}
	text += "; " + string(f.Step) + " failed " + plural(f.Count, "time")
	if !told {
		text += ": " + f.Message
	}
	return text
}
