package daemon

import (
	"context"
	"sync/atomic"

	"go.temporal.io/sdk/client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/openhands/boxkeeper/activities"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/engine"
	"github.com/openhands/boxkeeper/internal/telemetry"
	"github.com/openhands/boxkeeper/workers"
)

// node is a running engine, and the workers on it unless they run elsewhere.
type node struct {
	engine *engine.Engine
	up     atomic.Pointer[engine.Engine] // engine, for those who ask while it starts
	parts  *cli.Parts
	client client.Client
	set    *workers.Set
	health cli.Health
}

// Change alters the workers before they start: tests sabotage a part with it.
type Change func(parts *cli.Parts, cfg config.Config, o *workers.Options) error

// nodeOptions is what differs between serving and the demo.
type nodeOptions struct {
	flags
	timeSkipping bool
	health       bool // health and metrics are served, where the configuration says
	progress     func(workspace string, p exports.Progress)
	notify       activities.Notifier // nil is what the configuration says
	change       Change
}

// start brings the parts up in the order in which they need each other. On an
// error nothing is left running.
func start(ctx context.Context, shared *cli.Shared, cfg config.Config, o nodeOptions) (_ *node, err error) {
	n := &node{}
	defer func() {
		if err != nil {
			n.stop(ctx)
		}
	}()
	lock, err := claim(ctx, cfg, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if lock != nil {
			lock.Release()
		}
	}()
	if n.parts, err = shared.OpenParts(ctx, cfg); err != nil {
		return nil, err
	}
	if o.timeSkipping {
		for _, p := range n.parts.Providers {
			if p.Capabilities().Driver != driverLocal {
				return nil, box.Invalidf("providers."+p.Name(), "time cannot be skipped with a real provider: its clock does not skip")
			}
		}
	}
	if o.health { // first: a taken port is said before anything begins to work
		if n.health, err = n.parts.Serve(ctx, cfg, n.healthy); err != nil {
			return nil, err
		}
	}
	held := lock
	lock = nil // the engine's from here on
	n.engine, err = engine.Start(ctx, engine.Options{
		DataDir: cfg.DataDir, Lock: held, GRPCPort: o.port, UIPort: o.uiPort, NoUI: o.noUI,
		SearchAttributes: SearchAttributes(), TimeSkipping: o.timeSkipping, Logger: quieter(n.parts.Logger.Named("engine"), zap.ErrorLevel),
	})
	if err != nil {
		return nil, err
	}
	n.up.Store(n.engine)
	if o.noWorkers {
		return n, nil
	}
	n.client, err = client.DialContext(ctx, client.Options{
		HostPort: n.engine.Address(), Namespace: engine.DefaultNamespace,
		Logger: telemetry.TemporalLogger(quieter(n.parts.Logger.Named("sdk"), zap.WarnLevel)), MetricsHandler: n.parts.Metrics.Temporal(),
	})
	if err != nil {
		return nil, box.Errorf(box.ClassUnavailable, "connect to the engine of this process: %w", err)
	}
	options := workers.Options{
		Installation: n.parts.Installation.ID, Namespace: engine.DefaultNamespace,
		Providers: n.parts.Providers, Store: n.parts.Store, Secret: n.parts.Secret, Steps: n.parts.Metrics.Steps(),
		Logger: n.parts.Logger, Progress: o.progress, Notify: o.notify, Transfers: cfg.Transfers,
	}
	if options.Notify == nil {
		options.Notify = n.parts.Notices
	}
	if o.change != nil {
		if err := o.change(n.parts, cfg, &options); err != nil {
			return nil, err
		}
	}
	if n.set, err = workers.New(n.client, options); err != nil {
		return nil, err
	}
	if err = n.set.Start(); err != nil {
		return nil, err
	}
	return n, nil
}

// quieter raises the level of a part that talks more than people want to read;
// with debug everything is kept.
func quieter(l *zap.Logger, level zapcore.Level) *zap.Logger {
	if l.Core().Enabled(zap.DebugLevel) || !l.Core().Enabled(level) {
		return l // all is wanted, or less than this already
	}
	return l.WithOptions(zap.IncreaseLevel(level))
}

// stop ends what runs: workers first, so that they can say so to the engine.
func (n *node) stop(ctx context.Context) {
	if n.set != nil {
		n.set.Stop()
	}
	if n.client != nil {
		n.client.Close()
	}
	if n.engine != nil {
		n.engine.Stop()
	}
	_ = n.health.Close(ctx)
	if n.parts != nil {
		_ = n.parts.Close(context.WithoutCancel(ctx))
	}
}

// healthy reports whether the engine still runs.
func (n *node) healthy(context.Context) error {
	running := n.up.Load()
	if running == nil {
		return box.Errorf(box.ClassUnavailable, "the engine starts")
	}
	select {
	case <-running.Done():
		return box.Errorf(box.ClassUnavailable, "the engine failed")
	default:
		return nil
	}
}
