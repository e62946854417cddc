package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"

	"github.com/openhands/boxkeeper/box"
)

// tally counts what one life costs in the engine: events of the history, and
// actions as a hosted Temporal bills them (a start, each timer, signal, update,
// activity and write of search attributes).
type tally struct {
	events, actions           int
	cycleEvents, cycleActions int // from one suspended to the next
	timersFired               int
}

// history reads the workflow's history and counts.
func (d *demo) history(ctx context.Context) (tally, error) {
	var t, atSuspended tally
	suspends := 0
	it := d.client.GetWorkflowHistory(ctx, box.WorkflowID(d.workspace), "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for it.HasNext() {
		event, err := it.Next()
		if err != nil {
			return t, err
		}
		t.events++
		switch event.GetEventType() { //nolint:exhaustive // the others are no action
		case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, enumspb.EVENT_TYPE_TIMER_STARTED, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
			enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED, enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
			t.actions++
		case enumspb.EVENT_TYPE_TIMER_FIRED:
			t.timersFired++
		case enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
			t.actions++
			fields := event.GetUpsertWorkflowSearchAttributesEventAttributes().GetSearchAttributes().GetIndexedFields()
			if string(fields[box.SearchState].GetData()) != `"`+string(box.StateSuspended)+`"` {
				continue
			}
			if suspends++; suspends == 2 {
				t.cycleEvents, t.cycleActions = t.events-atSuspended.events, t.actions-atSuspended.actions
			}
			if suspends == 1 {
				atSuspended = t
			}
		}
	}
	return t, nil
}

// idleSuspends counts how often the box was drained because it was idle.
func (d *demo) idleSuspends(ctx context.Context) int {
	why, err := query[box.Why](ctx, d.client, d.workspace, box.QueryWhy)
	if err != nil {
		return 0
	}
	n := 0
	for _, t := range why.Transitions {
		if t.To == box.StateDraining && t.Reason.Code == box.ReasonIdle {
			n++
		}
	}
	return n
}

// readBack starts this program again, which knows nothing, and lets it read the
// history from the store; each event is compared with what was written.
func (d *demo) readBack(ctx context.Context) (conversations, events int, err error) {
	listed, err := d.fresh(ctx, "box", "history", d.workspace, "--verify", "-o", "json")
	if err != nil {
		return 0, 0, err
	}
	var history struct {
		Verified      bool `json:"verified"`
		Conversations []struct {
			ID string `json:"id"`
		} `json:"conversations"`
	}
	if err := json.Unmarshal(listed, &history); err != nil {
		return 0, 0, fmt.Errorf("read the listing of the fresh process: %w", err)
	}
	if !history.Verified {
		return 0, 0, box.Errorf(box.ClassUnknown, "the fresh process could not verify the history")
	}
	for _, c := range history.Conversations {
		wrote, ok := d.work.texts[c.ID]
		if !ok {
			return 0, 0, box.Errorf(box.ClassUnknown, "the history holds conversation %s, which nobody wrote", c.ID)
		}
		lines, err := d.fresh(ctx, "box", "history", d.workspace, c.ID, "-o", "json")
		if err != nil {
			return 0, 0, err
		}
		found, err := compare(lines, wrote)
		if err != nil {
			return 0, 0, fmt.Errorf("conversation %s: %w", c.ID, err)
		}
		conversations++
		events += found
	}
	return conversations, events, nil
}

// compare reads one event per line and finds each that was written.
func compare(lines []byte, wrote map[string]string) (int, error) {
	seen := map[string]bool{}
	scan := bufio.NewScanner(bytes.NewReader(lines))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var e struct {
			ID    string          `json:"id"`
			Event json.RawMessage `json:"event"`
		}
		if err := json.Unmarshal(scan.Bytes(), &e); err != nil {
			return 0, err
		}
		text, ok := wrote[e.ID]
		if !ok || !strings.Contains(string(e.Event), text) || seen[e.ID] {
			return 0, box.Errorf(box.ClassUnknown, "event %q is not as it was written", e.ID)
		}
		seen[e.ID] = true
	}
	if len(seen) != len(wrote) {
		return 0, box.Errorf(box.ClassUnknown, "it has %d of %d events", len(seen), len(wrote))
	}
	return len(seen), scan.Err()
}

// fresh runs this program once more, on the demo's data directory.
func (d *demo) fresh(ctx context.Context, args ...string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append(args, "--data", d.cfg.DataDir)...) //nolint:gosec // our own program and arguments
	cmd.Env = []string{}                                                            // it must find everything by the data directory alone
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, box.Errorf(box.ClassUnknown, "%s in a fresh process: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// pageAgain is the workflow's page, which ends with the demo, and what serves it
// again at its address.
func pageAgain(r DemoResult) string {
	page, err := url.Parse(r.WebUI)
	if err != nil || page.Port() == "" {
		return "-  (see it with: boxkeeperd --no-demo --data " + r.Data + ")"
	}
	return r.WebUI + "  (again with: boxkeeperd --no-demo --ui-port " + page.Port() + " --data " + r.Data + ")"
}

// conclude prints the table. One check that failed fails the demo.
func (d *demo) conclude(r DemoResult) error {
	failed := 0
	d.out.say("")
	for _, c := range d.checks {
		mark := "ok"
		if !c.ok {
			mark = "FAILED"
			failed++
		}
		d.out.say("  %-7s %-52s %s", mark, c.name, c.found)
	}
	d.out.say("")
	for _, row := range [][2]string{
		{"state", string(r.State)},
		{"reclaimed", size(r.BytesReclaimed)},
		{"exported", fmt.Sprintf("%d conversations, %d events", r.Conversations, r.Events)},
		{"sha256", r.SHA256},
		{"history", r.History},
		{"web UI", pageAgain(r)},
		{"took", fmt.Sprintf("%.1f s", r.Seconds)},
		{"engine", fmt.Sprintf("%d events and %d actions for the life, %d and %d for a cycle", r.HistoryEvents, r.Actions, r.CycleEvents, r.CycleActions)},
	} {
		d.out.say("  %-10s %s", row[0], row[1])
	}
	if r.State != box.StateBoxArchived || failed > 0 {
		return box.Errorf(box.ClassUnknown, "%d parts of the demo were not verified; the end state is %s", failed, r.State)
	}
	return nil
}
