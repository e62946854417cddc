package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/engine"
)

// The demo's policy: idle timers are short, the rest is what everyone gets.
const (
	demoIdle   = 4 * time.Second
	demoBound  = 5 * time.Minute // for the whole demo
	patience   = 2 * time.Minute
	pollEvery  = 100 * time.Millisecond
	pausedTTL  = 30 * 24 * time.Hour
	undoWindow = 24 * time.Hour
)

// DemoResult is what a demo that verified everything ends with.
type DemoResult struct {
	Workspace      string    `json:"workspace"`
	State          box.State `json:"state"`
	BytesReclaimed int64     `json:"bytes_reclaimed"` // growth of free space by statfs
	Conversations  int       `json:"conversations"`
	Events         int       `json:"events"`
	SHA256         string    `json:"sha256"` // of the export's manifest
	History        string    `json:"history"`
	WebUI          string    `json:"web_ui"`
	Seconds        float64   `json:"seconds"`
	Data           string    `json:"data"`
	// What the life, and one cycle of suspend, resume and suspend, cost in the
	// engine.
	HistoryEvents int `json:"history_events"`
	Actions       int `json:"actions"`
	CycleEvents   int `json:"cycle_events"`
	CycleActions  int `json:"cycle_actions"`
}

// DemoOptions are what a caller of [RunDemo] may change; the zero value is the
// demo as people see it.
type DemoOptions struct {
	// Dir is the demo's own data directory; it must not exist.
	Dir string
	// Port and UIPort are the engine's; 0 picks free ones.
	Port, UIPort int
	NoUI         bool
	// Change alters the workers, for tests that sabotage a part.
	Change Change
	// Patience bounds each wait for a state; two minutes when zero.
	Patience time.Duration
	// Saw is told of each transition, for tests that sabotage in the middle.
	Saw func(t box.Transition)
	// Stay is called after the end, while the engine still runs.
	Stay func(webUI string)
}

func demoCommand(shared *cli.Shared) *cobra.Command {
	var (
		o    DemoOptions
		stay bool
	)
	c := &cobra.Command{
		Use: "demo", Short: "Show one box's whole life, and verify each part of it", Args: noArguments,
		Long: "Runs a box through its whole life on an engine of its own, in a data directory of its own: work, idle, reclaim, export, suspend, " +
			"resume, idle again, 30 days suspended (the engine skips the time), notice, confirmation, deletion, and the history read back by a fresh process. " +
			"It exits with 0 only if every part was verified.",
	}
	c.Flags().IntVar(&o.Port, "port", 0, "port of the engine's API; 0 picks a free one")
	c.Flags().IntVar(&o.UIPort, "ui-port", 0, "port of the Web UI; 0 picks a free one")
	c.Flags().BoolVar(&stay, "stay", false, "keep the Web UI open at the end, until Ctrl-C")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := shared.Config()
		if err != nil {
			return err
		}
		asJSON := c.Flag("output").Value.String() == "json"
		out := c.OutOrStdout()
		if asJSON {
			out = c.ErrOrStderr()
		}
		o.Dir = filepath.Join(cfg.DataDir, "demo", time.Now().UTC().Format("20060102-150405")+"-"+uuid.NewString()[:4])
		if stay {
			o.Stay = func(url string) {
				_, _ = fmt.Fprintf(out, "\nThe Web UI stays at %s until Ctrl-C.\n", url)
				<-c.Context().Done()
			}
		}
		result, err := RunDemo(c.Context(), shared, out, o)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(c.OutOrStdout()).Encode(result)
		}
		return nil
	}
	return c
}

// demo is one running demo.
type demo struct {
	*node
	out       *progress
	opts      DemoOptions
	cfg       config.Config
	workspace string
	work      work
	told      time.Time // newest transition that was printed
	checks    []check
	notices   atomic.Int32
}

// check is one thing that was verified, or not.
type check struct {
	name, found string
	ok          bool
}

// RunDemo runs the demo. An error says what could not be verified; the box is
// then still there.
func RunDemo(ctx context.Context, shared *cli.Shared, out io.Writer, o DemoOptions) (DemoResult, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, demoBound)
	defer cancel()
	if o.Patience == 0 {
		o.Patience = patience
	}
	if _, err := os.Lstat(o.Dir); err == nil {
		return DemoResult{}, box.Invalidf("data", "%s exists; the demo makes a directory of its own", o.Dir)
	}
	cfg, err := config.Load("", func(name string) (string, bool) {
		switch name { // nothing of this machine's configuration: the demo touches no other box
		case "BOXKEEPER_DATA":
			return o.Dir, true
		case "BOXKEEPER_LISTEN":
			return config.ListenOff, true
		case "BOXKEEPER_LOG_LEVEL":
			return "error", true
		}
		return "", false
	})
	if err != nil {
		return DemoResult{}, err
	}
	d := &demo{opts: o, cfg: cfg, out: newProgress(out), workspace: "demo-" + strings.ReplaceAll(uuid.NewString(), "-", "")[:6]}
	d.out.say("demo: workspace %s, data in %s", d.workspace, cfg.DataDir)
	d.node, err = start(ctx, shared, cfg, nodeOptions{
		flags: flags{port: o.Port, uiPort: o.UIPort, noUI: o.NoUI}, timeSkipping: true, progress: d.out.transfer, notify: d, change: o.Change,
	})
	if err != nil {
		return DemoResult{}, err
	}
	defer d.stop(ctx)
	webUI := d.engine.WorkflowURL(box.WorkflowID(d.workspace))
	d.out.say("demo: engine at %s, watch it in %s", d.engine.Address(), orNothing(webUI, "no Web UI"))
	result, err := d.life(ctx)
	if err != nil {
		d.out.say("demo: FAILED: %s", err)
		return DemoResult{}, err
	}
	result.WebUI, result.Seconds = webUI, time.Since(began).Round(time.Millisecond).Seconds()
	if err := d.conclude(result); err != nil {
		return DemoResult{}, err
	}
	if o.Stay != nil {
		o.Stay(webUI)
	}
	return result, nil
}

// life is the scenario.
func (d *demo) life(ctx context.Context) (DemoResult, error) {
	spec := box.Spec{
		Version: box.WireVersion, Workspace: d.workspace, Owner: "demo", Provider: d.parts.Providers[0].Name(),
		Policy: box.Policy{Idle: box.Duration(demoIdle)},
	}
	if err := create(ctx, d.client, spec, d.parts.Providers[0].Capabilities()); err != nil {
		return DemoResult{}, err
	}
	running, err := d.await(ctx, box.StateRunning)
	if err != nil {
		return DemoResult{}, err
	}
	boxDir := filepath.Join(d.cfg.Providers[0].Dir, "boxes", running.Ref.Name)
	if err := d.agentWorks(ctx, boxDir); err != nil {
		return DemoResult{}, err
	}
	suspended, err := d.await(ctx, box.StateSuspended)
	if err != nil {
		return DemoResult{}, err
	}
	d.verify("disk reclaimed, by statfs", suspended.Reclaimed > d.work.cacheBytes/2, "%s of %s of caches", size(suspended.Reclaimed), size(d.work.cacheBytes))
	d.verify("export taken before the suspend", suspended.ExportCovers, "%d conversations, %d events", suspended.Export.Conversations, suspended.Export.Events)
	_, left := os.Stat(filepath.Join(boxDir, cacheDir))
	d.verify("caches are gone from the box", os.IsNotExist(left), "%s", cacheDir)

	if err := d.comeBack(ctx); err != nil {
		return DemoResult{}, err
	}
	if err := d.expire(ctx); err != nil {
		return DemoResult{}, err
	}
	end, err := d.deleteBox(ctx)
	if err != nil {
		return DemoResult{}, err
	}
	_, left = os.Stat(boxDir)
	d.verify("the box's directory is gone", os.IsNotExist(left), "%s", boxDir)
	cost, err := d.history(ctx)
	if err != nil {
		return DemoResult{}, err
	}
	d.verify("the idle suspends came from timers", cost.timersFired >= 2 && d.idleSuspends(ctx) == 2, "%d timers fired", cost.timersFired)
	conversations, total, err := d.readBack(ctx)
	if err != nil {
		return DemoResult{}, err
	}
	d.verify("a fresh process reads the history from the store alone", conversations == len(d.work.texts) && total == d.work.events(),
		"%d conversations, %d events, each as it was written", conversations, total)
	return DemoResult{
		Workspace: d.workspace, State: end.State, BytesReclaimed: end.Reclaimed, Conversations: conversations, Events: total,
		SHA256: end.Export.SHA256, Data: d.cfg.DataDir,
		HistoryEvents: cost.events, Actions: cost.actions, CycleEvents: cost.cycleEvents, CycleActions: cost.cycleActions,
		History: fmt.Sprintf("boxkeeperd box history %s --data %s", d.workspace, d.cfg.DataDir),
	}, nil
}

// agentWorks plays the part of an agent in the box, under a hold.
func (d *demo) agentWorks(ctx context.Context, boxDir string) error {
	hold := box.ConnectRequest{Request: d.request(), HolderID: "agent", Kind: box.HolderOperation, Origin: "demo agent"}
	if _, err := update[box.ConnectAnswer](ctx, d.client, d.workspace, box.UpdateConnect, hold); err != nil {
		return err
	}
	d.out.say("demo: an agent works in the box ...")
	var err error
	if d.work, err = doWork(boxDir); err != nil {
		return err
	}
	d.out.say("demo: it leaves %d conversations with %d events and %s of caches, and disconnects; idle timer %s",
		len(d.work.texts), d.work.events(), size(d.work.cacheBytes), demoIdle)
	return d.client.SignalWorkflow(ctx, box.WorkflowID(d.workspace), "", box.SignalRelease, box.ReleaseRequest{HolderID: "agent"})
}

// comeBack wakes the box by connecting, and lets it fall idle again.
func (d *demo) comeBack(ctx context.Context) error {
	hold := box.ConnectRequest{Request: d.request(), HolderID: "tab", Origin: "demo person"}
	answer, err := update[box.ConnectAnswer](ctx, d.client, d.workspace, box.UpdateConnect, hold)
	if err != nil {
		return err
	}
	d.verify("connect answers at once", answer.State == box.StateSuspended, "state %s, ask again in %s", answer.State, answer.RetryAfter)
	if _, err := d.await(ctx, box.StateRunning); err != nil {
		return err
	}
	if err := d.client.SignalWorkflow(ctx, box.WorkflowID(d.workspace), "", box.SignalRelease, box.ReleaseRequest{HolderID: "tab"}); err != nil {
		return err
	}
	_, err = d.await(ctx, box.StateSuspended)
	return err
}

// expire lets the paused TTL pass, by the engine's clock.
func (d *demo) expire(ctx context.Context) error {
	d.out.say("demo: %s pass ... (the engine skips the time)", box.Duration(pausedTTL))
	if err := engine.FastForward(ctx, d.client, box.WorkflowID(d.workspace), pausedTTL+time.Minute); err != nil {
		return err
	}
	status, err := d.await(ctx, box.StateAwaitingConfirm)
	if err != nil {
		return err
	}
	why, err := query[box.Why](ctx, d.client, d.workspace, box.QueryWhy)
	if err != nil {
		return err
	}
	expired := why.Transitions[len(why.Transitions)-1].At
	d.verify("people were told before", d.notices.Load() >= 1, "%d notices", d.notices.Load())
	d.verify("the paused TTL is real", expired.Sub(status.SuspendedSince) >= pausedTTL, "%s on the engine's clock", box.Duration(expired.Sub(status.SuspendedSince).Round(time.Second)))
	return nil
}

// deleteBox asks what a deletion would lose, confirms it, and waits for the end.
func (d *demo) deleteBox(ctx context.Context) (box.Status, error) {
	loss, err := update[box.Loss](ctx, d.client, d.workspace, box.UpdateRequestDelete, box.RequestDeleteAsk{Request: d.request()})
	if err != nil {
		return box.Status{}, err
	}
	d.out.say("demo: deletion asked for; it shows %d conversations, %d events, export covers them: %v", loss.Conversations, loss.Events, loss.Covered)
	confirm := box.ConfirmDelete{Token: loss.Token, By: "demo person"}
	if err := d.client.SignalWorkflow(ctx, box.WorkflowID(d.workspace), "", box.SignalConfirmDelete, confirm); err != nil {
		return box.Status{}, err
	}
	if _, err := d.await(ctx, box.StateUndoWindow, box.StateExporting, box.StateDeleting, box.StateBoxArchived); err != nil {
		return box.Status{}, err
	}
	if err := engine.FastForward(ctx, d.client, box.WorkflowID(d.workspace), undoWindow+time.Minute); err != nil {
		return box.Status{}, err
	}
	return d.await(ctx, box.StateBoxArchived)
}

func (d *demo) request() box.Request {
	return box.Request{ID: uuid.NewString(), By: "demo person"}
}

// await prints transitions until the workspace is in one of the states. A state
// from which no time leads on is an error.
func (d *demo) await(ctx context.Context, states ...box.State) (box.Status, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	bound := time.NewTimer(d.opts.Patience)
	defer bound.Stop()
	late := func(why box.Why) error {
		return box.Errorf(box.ClassDeadlineExceeded, "the box did not become %s: it is %s, and next is %s, because %s", states[0], why.State, why.Next, why.NextReason.Text)
	}
	for {
		why, err := query[box.Why](ctx, d.client, d.workspace, box.QueryWhy)
		if err == nil {
			d.tell(why)
			status, err := query[box.Status](ctx, d.client, d.workspace, box.QueryStatus)
			if err == nil {
				for _, s := range states {
					if status.State == s {
						return status, nil
					}
				}
				switch status.State { //nolint:exhaustive // the others lead on
				case box.StateDeleteBlocked, box.StateLost, box.StateCreateFailed, box.StateBoxArchived:
					return status, box.Errorf(box.ClassFailedPrecondition, "the box is %s: %s", status.State, status.Reason.Text)
				}
			}
		}
		select {
		case <-ctx.Done():
			return box.Status{}, late(why)
		case <-bound.C:
			return box.Status{}, late(why)
		case <-d.engine.Done():
			return box.Status{}, box.Errorf(box.ClassUnavailable, "the engine failed: %v", d.engine.Err())
		case <-tick.C:
		}
	}
}

func (d *demo) tell(why box.Why) {
	for _, t := range why.Transitions {
		if !t.At.After(d.told) {
			continue
		}
		d.told = t.At
		d.out.say("%s", line(d.workspace, t))
		if d.opts.Saw != nil {
			d.opts.Saw(t)
		}
	}
}

// Listeners are none: the demo prints transitions by itself.
func (d *demo) Listeners() []box.Listener { return nil }

// Deliver prints a notice, as a mail would tell it.
func (d *demo) Deliver(_ context.Context, p box.Posting) ([]box.Delivery, error) {
	for _, e := range p.Events {
		d.notices.Add(1)
		d.out.say("demo: notice to %s: %s", p.Owner, e.Reason.Text)
	}
	return nil, nil
}

func (d *demo) verify(name string, ok bool, format string, args ...any) {
	d.checks = append(d.checks, check{name: name, found: fmt.Sprintf(format, args...), ok: ok})
}
