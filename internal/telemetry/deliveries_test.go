package telemetry_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/internal/telemetry"
)

func TestDeliveriesAreServedUnderTheirNames(t *testing.T) {
	t.Parallel()
	m, err := telemetry.NewMetrics()
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(t.Context()) })
	m.Deliveries().Record("ops", "ok", 40*time.Millisecond)
	m.Deliveries().Record("ops", "failed", time.Second)
	m.Temporal().Counter("boxkeeper_deliveries_dropped").Inc(3) // as the workflow counts them
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		`boxkeeper_deliveries_total{outcome="ok",webhook="ops"} 1`,
		`boxkeeper_deliveries_total{outcome="failed",webhook="ops"} 1`,
		`boxkeeper_delivery_seconds_count{webhook="ops"} 2`,
		`boxkeeper_deliveries_dropped_total 3`,
	} {
		assert.Contains(t, answer.Body.String(), line)
	}
}
