package cli

import (
	"context"
	"errors"
	"slices"
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
// workflow is asked, never the box. States that it passes are noted on standard
// error.
func (s *session) wait(ctx context.Context, workspace string, g goal, within box.Duration) (box.Status, error) {
	var last box.Status
	away := false
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
			if !sleep(ctx, pause) {
				return last, s.waited(g, last, within)
			}
			continue
		}
		if err != nil {
			return last, err
		}
		away = false
		if status.State != last.State {
			note(s.cmd, "%s: %s", status.State, because(status))
		}
		last = status
		if slices.Contains(g.good, status.State) {
			return status, nil
		}
		if slices.Contains(g.never, status.State) {
			return status, &otherState{want: g.name, got: status.State, why: because(status)}
		}
		if g.more != nil {
			if err := g.more(status); err != nil {
				return status, err
			}
		}
		if !sleep(ctx, pause) {
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
	return &stillWaiting{want: g.name, got: got, took: within.String()}
}

// because returns why a workspace is as it is, with what keeps failing.
func because(s box.Status) string {
	text := s.Reason.Text
	if f := s.Failure; f != nil {
		text += "; " + string(f.Step) + " failed " + plural(f.Count, "time") + ": " + f.Message
	}
	return text
}
