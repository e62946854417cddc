package telemetry

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/opentelemetry"

	"github.com/openhands/boxkeeper/box"
)

// Metrics are the measures of one process. Nothing is global: two in one
// process do not mix.
type Metrics struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider
	steps    *Steps
	webhooks *Deliveries
	temporal client.MetricsHandler
}

// NewMetrics returns empty measures. Close them at the end.
func NewMetrics() (*Metrics, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, box.Errorf(box.ClassInternal, "register metrics: %w", err)
		}
	}
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "make the metrics exporter: %w", err)
	}
	// The SDK's latencies are seconds; the library's buckets are for
	// milliseconds.
	latencies := sdkmetric.NewView(
		sdkmetric.Instrument{Name: "temporal_*latency*"},
		sdkmetric.Stream{Aggregation: sdkmetric.AggregationExplicitBucketHistogram{
			Boundaries: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}},
	)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithView(latencies))
	steps, err := newSteps(provider.Meter("boxkeeper"))
	if err != nil {
		return nil, err
	}
	webhooks, err := newDeliveries(provider.Meter("boxkeeper"))
	if err != nil {
		return nil, err
	}
	return &Metrics{
		registry: registry,
		provider: provider,
		steps:    steps,
		webhooks: webhooks,
		temporal: opentelemetry.NewMetricsHandler(opentelemetry.MetricsHandlerOptions{
			Meter: provider.Meter("temporal-sdk-go"), UseMonotonicCounters: true,
			OnError: func(error) {}, // a measure that cannot be made must not end the process
		}),
	}, nil
}

// Steps returns the recorder of steps.
func (m *Metrics) Steps() *Steps { return m.steps }

// Deliveries returns the recorder of requests to webhooks.
func (m *Metrics) Deliveries() *Deliveries { return m.webhooks }

// Temporal returns the handler for the Temporal SDK's own measures.
func (m *Metrics) Temporal() client.MetricsHandler { return m.temporal }

// Handler serves the measures in Prometheus' text form.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second, ErrorHandling: promhttp.ContinueOnError,
	})
}

// Close ends the measures; recording goes on without effect.
func (m *Metrics) Close(ctx context.Context) error {
	if err := m.provider.Shutdown(ctx); err != nil {
		return box.Errorf(box.ClassInternal, "close the metrics: %w", err)
	}
	return nil
}

// Steps counts and times the steps of boxes, by kind and provider instance,
// never by workspace or owner. It is safe for concurrent use.
type Steps struct {
	count     metric.Int64Counter
	seconds   metric.Float64Histogram
	reclaimed metric.Int64Counter
	exported  metric.Int64Counter
}

func newSteps(meter metric.Meter) (*Steps, error) {
	var s Steps
	var err error
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	var e error
	s.count, e = meter.Int64Counter("boxkeeper_steps",
		metric.WithDescription("Steps that ended, by kind, provider instance and outcome: ok, or the class of the error."))
	keep(e)
	s.seconds, e = meter.Float64Histogram("boxkeeper_step", metric.WithUnit("s"),
		metric.WithDescription("How long steps took, whatever their outcome."),
		metric.WithExplicitBucketBoundaries(.01, .05, .1, .5, 1, 5, 15, 30, 60, 120, 300, 900, 1800, 3600))
	keep(e)
	s.reclaimed, e = meter.Int64Counter("boxkeeper_reclaimed", metric.WithUnit("By"),
		metric.WithDescription("Disk space freed in boxes."))
	keep(e)
	s.exported, e = meter.Int64Counter("boxkeeper_exported", metric.WithUnit("By"),
		metric.WithDescription("Exported histories that were read back and proven."))
	keep(e)
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "make the measures of steps: %w", err)
	}
	return &s, nil
}

// Record counts one step that ended. An empty class is success. The bytes are
// those freed by a reclaim or held by an export; of other steps, and below
// zero, they are ignored.
func (s *Steps) Record(step box.StepKind, provider string, class box.Class, took time.Duration, bytes int64) {
	outcome := string(class)
	if class == "" {
		outcome = "ok"
	}
	ctx := context.Background() //nolint:forbidigo // measures outlive the request they are of
	kind := attribute.String("step", string(step))
	where := attribute.String("provider", provider)
	s.count.Add(ctx, 1, metric.WithAttributes(kind, where, attribute.String("outcome", outcome)))
	s.seconds.Record(ctx, took.Seconds(), metric.WithAttributes(kind, where))
	if bytes <= 0 {
		return
	}
	switch step { //nolint:exhaustive // the others move no bytes
	case box.StepReclaim:
		s.reclaimed.Add(ctx, bytes, metric.WithAttributes(where))
	case box.StepExport:
		s.exported.Add(ctx, bytes, metric.WithAttributes(where))
	}
}
