package box_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// TestSpanReadsOldHistories: the numbers of nanoseconds are what workflows that
// are still running have in their histories.
func TestSpanReadsOldHistories(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{`60000000000`: time.Minute, `"1m"`: time.Minute, `0`: 0, `"0s"`: 0, `""`: 0} {
		var s box.Span
		require.NoError(t, json.Unmarshal([]byte(text), &s), text)
		require.Equal(t, want, s.Std(), text)
	}
	for _, text := range []string{`1.5`, `"5"`, `"-1m"`, `true`, `{}`} {
		var s box.Span
		require.Error(t, json.Unmarshal([]byte(text), &s), text)
	}
	for span, want := range map[box.Span]string{0: `"0s"`, box.Span(90 * time.Second): `"1m30s"`, -5: `"0s"`, box.Span(4000 * day): `"3650d"`} {
		text, err := json.Marshal(span)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		require.NoError(t, json.Unmarshal(text, new(box.Span)), "what is written can be read")
	}
	text, err := json.Marshal(box.Observation{Phase: box.PhaseRunning, Age: box.Span(time.Minute)})
	require.NoError(t, err)
	require.Contains(t, string(text), `"age":"1m"`)
}
