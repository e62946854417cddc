package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/providers"
)

// Ports of the engine that runs by itself, those that Temporal's tools expect.
const (
	defaultPort   = 7233
	defaultUIPort = 8233
)

// flags are what the engine is started with.
type flags struct {
	port, uiPort      int
	noUI              bool
	noDemo, noWorkers bool
	providers         []string // that are served; all that are configured when none is named
}

// Root returns the command tree of boxkeeperd. Run it with cli.Execute.
func Root(env cli.Env) *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "boxkeeperd",
		Short: "boxkeeper with an engine of its own: one process, one data directory.",
		Long: `boxkeeperd runs the engine (Temporal on SQLite), its Web UI and the workers in one
process, with everything below one data directory, and keeps going where it was after
a crash. "boxkeeperd demo" shows one box's whole life in about 20 seconds.

With -o json it writes one line when it is ready, with its addresses; what happens
goes to standard error.`,
		Example: "  boxkeeperd --data /var/lib/boxkeeper\n  boxkeeperd demo\n  boxkeeperd box list",
	}
	var shared *cli.Shared
	root.Args = noArguments
	root.RunE = func(c *cobra.Command, _ []string) error { return serve(c, shared, f) }
	shared = cli.Adopt(root, env)
	bindEngine(root, &f)
	root.Flags().BoolVar(&f.noDemo, "no-demo", false, "do not make the demo box")
	cli.BindProviders(root, &f.providers)
	root.Flags().BoolVar(&f.noWorkers, "no-workers", false, "run the engine only; start workers with \"boxkeeper worker\"")
	root.AddCommand(demoCommand(shared), backupCommand(shared), restoreCommand(shared))
	return root
}

func bindEngine(c *cobra.Command, f *flags) {
	c.Flags().IntVar(&f.port, "port", defaultPort, "port of the engine's API; 0 picks a free one")
	c.Flags().IntVar(&f.uiPort, "ui-port", defaultUIPort, "port of the Web UI; 0 picks a free one")
	c.Flags().BoolVar(&f.noUI, "no-ui", false, "run without the Web UI")
}

// SearchAttributes returns those of the contract, with their types.
func SearchAttributes() map[string]enumspb.IndexedValueType {
	return map[string]enumspb.IndexedValueType{
		box.SearchProvider:       enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		box.SearchState:          enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		box.SearchOwner:          enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		box.SearchNextActionAt:   enumspb.INDEXED_VALUE_TYPE_DATETIME,
		box.SearchSuspendedSince: enumspb.INDEXED_VALUE_TYPE_DATETIME,
		box.SearchEpoch:          enumspb.INDEXED_VALUE_TYPE_INT,
		box.SearchBlocked:        enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	}
}

// noArguments refuses arguments as a mistake of usage, as all commands do.
func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return box.Invalidf("arguments", "%q is one too many; see %s --help", args[0], c.CommandPath())
	}
	return nil
}

// serve runs boxkeeperd until it is told to end.
func serve(c *cobra.Command, shared *cli.Shared, f flags) error {
	ctx := c.Context()
	cfg, err := shared.Config(f.providers...)
	if err != nil {
		return err
	}
	asJSON := c.Flag("output").Value.String() == "json"
	out := c.OutOrStdout()
	if asJSON {
		out = c.ErrOrStderr()
	}
	_, _ = fmt.Fprintf(out, "boxkeeperd: starting in %s\n", cfg.DataDir)
	n, err := start(ctx, shared, cfg, nodeOptions{flags: f, health: !f.noWorkers}) // workers elsewhere serve it themselves
	if err != nil {
		return err
	}
	defer n.stop(ctx)
	lost := n.lost(ctx)
	announce(out, cfg, n, f)
	if n.set != nil {
		for _, text := range slices.Concat(n.parts.Off, cli.ProgramProblems(cfg)) {
			_, _ = fmt.Fprintf(out, "boxkeeperd: WARNING: %s\n", text)
		}
	}
	if asJSON {
		if err := json.NewEncoder(c.OutOrStdout()).Encode(n.serving(cfg, lost)); err != nil {
			return fmt.Errorf("write the addresses: %w", err)
		}
	}
	tellLost(out, lost)
	// A demo box that was lost is not begun anew: that would take its ledger's word away.
	if at := n.demoAt(); at != nil && !f.noWorkers && !f.noDemo && !slices.Contains(lost, demoWorkspace) {
		if err := n.demoBox(ctx, at); err != nil {
			return err
		}
		followed := make(chan struct{})
		go func() {
			defer close(followed)
			n.tell(ctx, out, demoWorkspace)
		}()
		defer func() { <-followed }()
	}
	var failed <-chan error // of workers that run here
	if n.set != nil {
		failed = n.set.Failed()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		_, _ = fmt.Fprintln(out, "boxkeeperd: stopping; what runs now gets up to 30 s to end, Ctrl-C again ends at once; boxes stay as they are and the next start carries on")
		return nil
	case <-n.engine.Done():
		return errors.Join(box.Errorf(box.ClassUnavailable, "the engine failed; nothing that was accepted is lost, start boxkeeperd again"), n.engine.Err())
	}
}

// serving is where a boxkeeperd can be reached, for programs.
type serving struct {
	Data    string   `json:"data"`
	Engine  string   `json:"engine"` // host:port
	WebUI   string   `json:"web_ui,omitzero"`
	Metrics string   `json:"metrics,omitzero"`
	Exports string   `json:"exports"`
	Workers bool     `json:"workers"`        // whether they run in this process
	Lost    []string `json:"lost,omitempty"` // in the ledgers without a workflow
}

func (n *node) serving(cfg config.Config, lost []string) serving {
	return serving{
		Data: cfg.DataDir, Engine: n.engine.Address(), WebUI: n.engine.UIURL(), Metrics: n.health.MetricsURL(),
		Exports: cfg.Exports, Workers: n.set != nil, Lost: lost,
	}
}

func announce(out io.Writer, cfg config.Config, n *node, f flags) {
	_, _ = fmt.Fprintf(out, "boxkeeperd: engine   %s\n", n.engine.Address())
	if url := n.engine.UIURL(); url != "" {
		_, _ = fmt.Fprintf(out, "boxkeeperd: web UI   %s\n", url)
	}
	if url := n.health.MetricsURL(); url != "" {
		_, _ = fmt.Fprintf(out, "boxkeeperd: metrics  %s\n", url)
	}
	_, _ = fmt.Fprintf(out, "boxkeeperd: exports  %s\n", cfg.Exports)
	if f.noWorkers {
		_, _ = fmt.Fprintln(out, "boxkeeperd: no workers here; start one with \"boxkeeper worker\"")
	}
	_, _ = fmt.Fprintln(out, "boxkeeperd: ready; Ctrl-C stops it")
}

const (
	demoWorkspace = "demo"
	driverLocal   = "local"
)

// demoAt is where the demo box is made: on this machine, where nobody is billed
// for it; nil where no local instance is served.
func (n *node) demoAt() *providers.Provider {
	for _, p := range n.parts.Providers {
		if p.Capabilities().Driver == driverLocal {
			return p
		}
	}
	return nil
}

// demoBox starts the demo box, or finds it. Its id stays closed once it was
// deleted, like any other.
func (n *node) demoBox(ctx context.Context, at *providers.Provider) error {
	spec := box.Spec{
		Version: box.WireVersion, Workspace: demoWorkspace, Owner: "demo", Provider: at.Name(),
		Policy: box.Policy{Idle: box.Duration(2 * time.Minute)},
	}
	err := create(ctx, n.client, spec, at.Capabilities())
	if box.ClassOf(err) == box.ClassAlreadyExists {
		return nil // of an earlier start; it carries on
	}
	return err
}

// tellEvery is how often the demo box's workflow is asked. The box is not.
const tellEvery = time.Second

// tell prints each transition of a workspace until ctx ends or it is
// box-archived.
func (n *node) tell(ctx context.Context, out io.Writer, workspace string) {
	_, _ = fmt.Fprintf(out, "%s: see %s\n", workspace, orNothing(n.engine.WorkflowURL(box.WorkflowID(workspace)), "\"boxkeeperd box why "+workspace+"\""))
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	var last time.Time
	for {
		why, err := query[box.Why](ctx, n.client, workspace, box.QueryWhy)
		if err == nil {
			for _, t := range why.Transitions {
				if t.At.After(last) {
					last = t.At
					_, _ = fmt.Fprintln(out, line(workspace, t))
				}
			}
			if why.State == box.StateBoxArchived || why.State == box.StateAbandoned {
				_, _ = fmt.Fprintf(out, "%s: closed; read it with \"boxkeeperd box history %s\"\n", workspace, workspace)
				return
			}
		} else if ctx.Err() == nil {
			n.parts.Logger.Debug("the demo box was not asked", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-n.engine.Done():
			return
		case <-tick.C:
		}
	}
}

func orNothing(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// line is one transition as people read it.
func line(workspace string, t box.Transition) string {
	return fmt.Sprintf("%s  %s  %-22s %s", t.At.UTC().Format("2006-01-02 15:04:05"), workspace, t.To, t.Reason.Text)
}
