package cli

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/notices"
	"github.com/openhands/boxkeeper/internal/telemetry"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/workers"
)

// closeWithin bounds the end of the health server and of the metrics.
const closeWithin = 5 * time.Second

func (a *Shared) workerCommand() *cobra.Command {
	var only []string
	c := &cobra.Command{
		Use: "worker", GroupID: groupRun, Short: "Run the workers against a Temporal, until SIGINT or SIGTERM", Args: args("nothing", 0, 0),
		Long: "Runs the workflows and the activities of the configured provider instances. What runs when it is told to end gets 30 seconds; " +
			"what does not end by then is done again by the next worker. Any number of workers may run, with the same installation secret and export store.",
		Example: "  TEMPORAL_ADDRESS=temporal.internal:7233 boxkeeper worker --data /var/lib/boxkeeper",
	}
	BindProviders(c, &only)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := a.Config(only...)
		if err != nil {
			return err
		}
		return a.work(c.Context(), c, cfg)
	}
	return c
}

// Parts are what the workers of one process stand on. Close them after the
// workers stopped.
type Parts struct {
	Logger       *zap.Logger
	Metrics      *telemetry.Metrics
	Installation config.Installation
	Providers    []*providers.Provider
	Off          []string // of instances that are configured and not served: which, and why
	Store        *exports.Store
	Notices      *notices.Outlet
	// Secret resolves references of specs; what it finds is masked in the log.
	Secret func(reference string) (box.Secret, error)
}

// OpenParts opens what cfg names: the installation and its key, the export
// store, the providers, the log and the metrics. On an error nothing is left
// open.
func (a *Shared) OpenParts(ctx context.Context, cfg config.Config) (_ *Parts, err error) {
	redactor := &telemetry.Redactor{}
	p := &Parts{}
	p.Logger, err = telemetry.NewLogger(a.root.ErrOrStderr(), telemetry.LogOptions{Level: cfg.Log.Level, Format: cfg.Log.Format, Redactor: redactor})
	if err != nil {
		return nil, err
	}
	if p.Installation, err = cfg.OpenInstallation(); err != nil {
		return nil, err
	}
	redactor.Add(p.Installation.Secret)
	redactor.Add(a.temporalSecrets()...)
	p.Secret = func(reference string) (box.Secret, error) {
		secret, err := cfg.SpecSecret(reference)
		redactor.Add(secret)
		return secret, err
	}
	// Conversations are spooled while they are checked; the system's own
	// directory for temporary files may be memory.
	spool := filepath.Join(cfg.DataDir, "spool")
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return nil, box.Errorf(box.ClassFailedPrecondition, "make the spool directory in %s: %w", cfg.DataDir, err)
	}
	fingerprints, err := hkdf.Key(sha256.New, []byte(p.Installation.Secret.Reveal()), nil, "boxkeeper fingerprints of secrets", 32)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "derive the key of fingerprints: %w", err)
	}
	if p.Store, err = openStore(ctx, cfg, exports.Options{
		SpoolDir: spool, Secrets: cfg.ExportSecrets, FingerprintKey: fingerprints,
	}, redactor); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close(context.WithoutCancel(ctx)))
		}
	}()
	if p.Providers, p.Off, err = openProviders(cfg, p.Installation, p.Logger, redactor); err != nil {
		return nil, err
	}
	if p.Metrics, err = telemetry.NewMetrics(); err != nil {
		return nil, err
	}
	p.Notices = outlet(cfg, p.Installation.ID, redactor, p.Logger, p.Metrics.Deliveries().Record)
	return p, nil
}

// openStore opens the export store with the keys that cfg names; redactor, if
// any, masks them in the log.
func openStore(ctx context.Context, cfg config.Config, opts exports.Options, redactor *telemetry.Redactor) (*exports.Store, error) {
	identities, err := cfg.StoreSecrets()
	if err != nil {
		return nil, err
	}
	if redactor != nil {
		for _, secret := range identities {
			for line := range strings.Lines(secret.Reveal()) {
				if !strings.HasPrefix(line, "#") { // the comment of an identity file names the public key
					redactor.Add(box.Secret(strings.TrimSpace(line)))
				}
			}
		}
	}
	if opts.Keys, err = exports.ParseKeys(cfg.Recipients, identities); err != nil {
		return nil, err
	}
	return exports.OpenWith(ctx, cfg.Exports, opts)
}

// Close closes what was opened.
func (p *Parts) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	var errs []error
	if p.Notices != nil {
		p.Notices.Close()
	}
	if p.Metrics != nil {
		errs = append(errs, p.Metrics.Close(ctx))
	}
	if p.Store != nil {
		errs = append(errs, p.Store.Close())
	}
	_ = p.Logger.Sync() // standard error may not be syncable, which loses nothing
	return errors.Join(errs...)
}

// workers makes the workers of these parts on a client of that namespace.
func (p *Parts) workers(c client.Client, namespace string, transfers int) (*workers.Set, error) {
	return workers.New(c, workers.Options{
		Installation: p.Installation.ID, Namespace: namespace,
		Providers: p.Providers, Store: p.Store, Secret: p.Secret, Steps: p.Metrics.Steps(), Logger: p.Logger, Notify: p.Notices,
		Transfers: transfers,
	})
}

// Serve serves health and metrics where cfg says. Close what it returns.
func (p *Parts) Serve(ctx context.Context, cfg config.Config, ready func(context.Context) error) (Health, error) {
	if cfg.Listen == config.ListenOff {
		return Health{}, nil
	}
	server, err := telemetry.Serve(ctx, cfg.Listen, ready, p.Metrics.Handler())
	if err != nil {
		return Health{}, err
	}
	p.Logger.Info("serving health and metrics", zap.String("address", server.Address()))
	return Health{server: server}, nil
}

// Health is where health and metrics are served; the zero value is nowhere.
type Health struct{ server *telemetry.Server }

// MetricsURL is empty where nothing is served.
func (h Health) MetricsURL() string {
	if h.server == nil {
		return ""
	}
	return "http://" + h.server.Address() + "/metrics"
}

// Close stops serving; what is being answered gets a moment, also when ctx is
// done. Call it once.
func (h Health) Close(ctx context.Context) error {
	if h.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	return h.server.Close(ctx)
}

// work runs the workers until ctx ends.
func (a *Shared) work(ctx context.Context, c *cobra.Command, cfg config.Config) (err error) {
	parts, err := a.OpenParts(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parts.Close(context.WithoutCancel(ctx))) }()
	options, err := a.ClientOptions()
	if err != nil {
		return err
	}
	options.MetricsHandler = parts.Metrics.Temporal()
	s, err := a.connectWith(c, options, parts.Logger)
	if err != nil {
		return err
	}
	defer s.close()
	health, err := parts.Serve(ctx, cfg, s.ready)
	if err != nil {
		return err
	}
	// Health is served until the workers have stopped: who watches must see the
	// end, not a silence.
	defer func() { err = errors.Join(err, health.Close(ctx)) }()
	set, err := parts.workers(s.client, s.namespace, cfg.Transfers)
	if err != nil {
		return err
	}
	if text := s.strangers(ctx, parts.Installation.ID); text != "" {
		parts.Logger.Warn(text)
	}
	if err := set.Start(); err != nil {
		return err
	}
	parts.Logger.Info("workers are up", zap.String("temporal", s.address), zap.String("namespace", s.namespace),
		zap.String("installation", parts.Installation.ID), zap.String("exports", cfg.Exports), zap.Strings("providers", instanceNames(parts.Providers)))
	for _, text := range slices.Concat(parts.Off, ProgramProblems(cfg)) {
		parts.Logger.Warn(text)
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-set.Failed():
	}
	parts.Logger.Info("stopping; what runs gets 30 seconds")
	set.Stop()
	parts.Logger.Info("stopped")
	return failed
}

func instanceNames(served []*providers.Provider) []string {
	var out []string
	for _, p := range served {
		out = append(out, p.Name())
	}
	return out
}

// ready reports whether Temporal answers.
func (s *session) ready(ctx context.Context) error {
	if _, err := s.client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return box.Errorf(box.ClassUnavailable, "Temporal does not answer")
	}
	return nil
}
