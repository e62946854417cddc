package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/log"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/telemetry"
)

func TestSecretsAreMaskedHoweverTheyAreWritten(t *testing.T) {
	t.Parallel()
	secrets := []box.Secret{"plain-secret-value", `quo"ted<&>\secret`, "with space/and+slash", "line\nbreak-secret", "plain-secret"}
	for _, format := range []string{"console", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			redactor := &telemetry.Redactor{}
			l, err := telemetry.NewLogger(&out, telemetry.LogOptions{Format: format, Level: "debug", Redactor: redactor}, secrets[0])
			require.NoError(t, err)
			l.Info("canary plain-secret-value")
			require.NotContains(t, out.String(), "plain-secret-value")
			require.Contains(t, out.String(), "canary [redacted]")

			l.Info("before " + secrets[3].Reveal()) // not yet known
			require.Contains(t, out.String(), "break-secret", "the test can see a leak")
			out.Reset()
			redactor.Add(secrets...)
			for _, s := range secrets {
				v := s.Reveal()
				l.Info("message "+v, zap.String("field", v), zap.Error(fmt.Errorf("wrapped: %w", errors.New(v))),
					zap.Any("any", map[string]string{"inner": v}), zap.ByteString("bytes", []byte(v)), zap.Stringer("masked", s))
				l.With(zap.String("kept", v)).Warn("with")
				l.Named(v).Error("named")
				telemetry.TemporalLogger(l).Error("temporal "+v, "Error", errors.New(v), v, v)
				telemetry.Slog(l).With("a", v).WithGroup("g").Error("slog", "b", errors.New(v))
				l.Info("url http://x/?q=" + url.QueryEscape(v) + " " + url.PathEscape(v))
			}
			for _, part := range []string{"plain-secret", "ted<", `ted\u003c`, "break-secret", "and+slash", "and%2Bslash"} {
				assert.NotContains(t, out.String(), part)
			}
		})
	}
}

func TestLogLinesStayLinesAndCannotDriveATerminal(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"console", "json"} {
		var out bytes.Buffer
		l, err := telemetry.NewLogger(&out, telemetry.LogOptions{Format: format})
		require.NoError(t, err)
		l.Info("one\n2026-01-01\tERROR\tforged\x1b[2J\u202e", zap.String("field", "a\nb\x1b[2J"))
		assert.Equal(t, 1, strings.Count(out.String(), "\n"), "%q", out.String())
		for _, bad := range []string{"\x1b", "\u202e"} {
			assert.NotContains(t, out.String(), bad)
		}
	}
}

func TestLevelsAndFormatsAreStrict(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l, err := telemetry.NewLogger(&out, telemetry.LogOptions{Level: "warn", Format: "json"})
	require.NoError(t, err)
	l.Info("too quiet")
	telemetry.TemporalLogger(l).Debug("too quiet")
	telemetry.Slog(l).Info("too quiet")
	assert.Empty(t, out.String())
	for _, o := range []telemetry.LogOptions{{Level: "loud"}, {Level: "fatal"}, {Format: "xml"}} {
		_, err := telemetry.NewLogger(&out, o)
		assert.Equal(t, box.ClassInvalid, box.ClassOf(err))
	}
}

func TestTemporalLoggerKeepsEveryPair(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	z, err := telemetry.NewLogger(&out, telemetry.LogOptions{Level: "debug", Format: "json"})
	require.NoError(t, err)
	l := telemetry.TemporalLogger(z)
	log.With(l, "WorkflowID", "box/x").Info("hello", "Attempt", 2, 7, "seven", "odd")
	line := decode(t, out.Bytes())
	for key, want := range map[string]any{"WorkflowID": "box/x", "Attempt": 2.0, "value": "seven", "msg": "hello"} {
		assert.Equal(t, want, line[key], key)
	}
	assert.Contains(t, out.String(), `"odd"`)
	assert.Contains(t, line["caller"], "telemetry_test.go")

	out.Reset()
	func() { log.Skip(l, 1).Warn("from a helper") }()
	assert.Contains(t, decode(t, out.Bytes())["caller"], "telemetry_test.go")
	for level, say := range map[string]func(string, ...any){"debug": l.Debug, "info": l.Info, "warn": l.Warn, "error": l.Error} {
		out.Reset()
		say("x")
		assert.Equal(t, level, decode(t, out.Bytes())["level"])
	}
}

func decode(t *testing.T, line []byte) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal(line, &out), "%s", line)
	return out
}

func TestSlogKeepsGroupsLevelsAndCaller(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	z, err := telemetry.NewLogger(&out, telemetry.LogOptions{Format: "json"})
	require.NoError(t, err)
	l := telemetry.Slog(z)
	l.With("a", 1).WithGroup("g").With("b", 2).Warn("hello", slog.Group("h", "c", 3), "d", 4)
	line := decode(t, out.Bytes())
	for key, want := range map[string]any{"a": 1.0, "g.b": 2.0, "g.h.c": 3.0, "g.d": 4.0, "level": "warn"} {
		assert.Equal(t, want, line[key], key)
	}
	assert.Contains(t, line["caller"], "telemetry_test.go")
	assert.False(t, l.Enabled(t.Context(), slog.LevelDebug))
}

func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	require.NoError(t, err)
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func TestMetricsAreServedUnderTheirNames(t *testing.T) {
	t.Parallel()
	m, err := telemetry.NewMetrics()
	require.NoError(t, err)
	m.Steps().Record(box.StepReclaim, "local", "", 200*time.Millisecond, 4096)
	m.Steps().Record(box.StepExport, "local", "", 2*time.Second, 100)
	m.Steps().Record(box.StepExport, "local", box.ClassUnavailable, time.Second, -5)
	m.Steps().Record(box.StepSuspend, "local", "", time.Second, 999)
	m.Temporal().WithTags(map[string]string{"task_queue": "boxkeeper"}).Counter("temporal_request").Inc(3)
	m.Temporal().Timer("temporal_request_latency").Record(20 * time.Millisecond)
	s, err := telemetry.Serve(t.Context(), "127.0.0.1:0", func(context.Context) error { return nil }, m.Handler())
	require.NoError(t, err)
	status, body := get(t, s.Address(), "/metrics")
	require.Equal(t, http.StatusOK, status)
	for _, line := range []string{
		`boxkeeper_steps_total{outcome="ok",provider="local",step="export"} 1`,
		`boxkeeper_steps_total{outcome="Unavailable",provider="local",step="export"} 1`,
		`boxkeeper_reclaimed_bytes_total{provider="local"} 4096`,
		`boxkeeper_exported_bytes_total{provider="local"} 100`,
		`boxkeeper_step_seconds_bucket{provider="local",step="export",le="1"} 1`,
		`boxkeeper_step_seconds_count{provider="local",step="export"} 2`,
		`temporal_request_total{task_queue="boxkeeper"} 3`,
		`temporal_request_latency_seconds_bucket{le="0.025"} 1`,
		`go_goroutines `,
	} {
		assert.Contains(t, body, line)
	}
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, m.Close(t.Context()))
	m.Steps().Record(box.StepReclaim, "local", "", time.Second, 1) // after the end: nothing happens

	other, err := telemetry.NewMetrics()
	require.NoError(t, err, "two in one process do not collide")
	require.NoError(t, other.Close(t.Context()))
}

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	m, err := telemetry.NewMetrics()
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(context.Background()) }) //nolint:forbidigo // the test's context has ended by then
	var mu sync.Mutex
	fail := errors.New("Temporal does not answer\x1b[2J")
	s, err := telemetry.Serve(t.Context(), "127.0.0.1:0", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return fail
	}, m.Handler())
	require.NoError(t, err)
	status, body := get(t, s.Address(), "/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Equal(t, "not ready: Temporal does not answer\\x1b[2J\n", body)
	status, _ = get(t, s.Address(), "/healthz")
	assert.Equal(t, http.StatusOK, status)
	mu.Lock()
	fail = nil
	mu.Unlock()
	status, _ = get(t, s.Address(), "/readyz")
	assert.Equal(t, http.StatusOK, status)
	status, _ = get(t, s.Address(), "/other")
	assert.Equal(t, http.StatusNotFound, status)

	_, err = telemetry.Serve(t.Context(), s.Address(), nil, nil)
	require.Equal(t, box.ClassInvalid, box.ClassOf(err))
	assert.Contains(t, err.Error(), s.Address())
	require.NoError(t, s.Close(t.Context()))
	l, err := net.Listen("tcp", s.Address()) //nolint:noctx // closed at once
	require.NoError(t, err, "the port is free again")
	require.NoError(t, l.Close())
}

func TestCloseCutsAnAnswerThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	s, err := telemetry.Serve(t.Context(), "127.0.0.1:0", func(context.Context) error {
		close(entered)
		<-leave
		return nil
	}, http.NotFoundHandler())
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+s.Address()+"/readyz", nil) //nolint:forbidigo // must not end with the test
		if err != nil {
			return
		}
		if resp, err := (&http.Client{Timeout: time.Minute}).Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, s.Close(ctx))
	<-done
	close(leave)
}
