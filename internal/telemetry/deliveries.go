package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/openhands/boxkeeper/box"
)

// Deliveries counts and times requests to webhooks, by the configured name and
// the outcome, never by workspace, owner or URL. It is safe for concurrent use.
type Deliveries struct {
	count   metric.Int64Counter
	seconds metric.Float64Histogram
}

func newDeliveries(meter metric.Meter) (*Deliveries, error) {
	var d Deliveries
	var err error
	if d.count, err = meter.Int64Counter("boxkeeper_deliveries",
		metric.WithDescription("Requests to webhooks, by webhook and outcome: ok, refused, gone or failed.")); err != nil {
		return nil, box.Errorf(box.ClassInternal, "make the measures of deliveries: %w", err)
	}
	if d.seconds, err = meter.Float64Histogram("boxkeeper_delivery", metric.WithUnit("s"),
		metric.WithDescription("How long webhooks took to answer, whatever they answered."),
		metric.WithExplicitBucketBoundaries(.01, .05, .1, .25, .5, 1, 2.5, 5, 10)); err != nil {
		return nil, box.Errorf(box.ClassInternal, "make the measures of deliveries: %w", err)
	}
	return &d, nil
}

// Record counts one request that ended.
func (d *Deliveries) Record(webhook, outcome string, took time.Duration) {
	ctx := context.Background() //nolint:forbidigo // measures outlive the request they are of
	name := attribute.String("webhook", webhook)
	d.count.Add(ctx, 1, metric.WithAttributes(name, attribute.String("outcome", outcome)))
	d.seconds.Record(ctx, took.Seconds(), metric.WithAttributes(name))
}
