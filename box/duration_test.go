package box_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Malformed, negative and zero lengths are refused, and nothing is ever "now" or
// "for ever" by accident.
func TestScenario27And34ParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "15m": 15 * time.Minute, "12h": 12 * time.Hour, "30d": 30 * day, "1d12h": 36 * time.Hour,
		"1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond, "1us": time.Microsecond, "1ns": 1, "0d1s": time.Second,
		"3650d": 3650 * day, "never": -1, "100000s": 100000 * time.Second,
	} {
		if got, err := box.ParseDuration("policy.idle", text); err != nil || got != box.Duration(want) {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", " ", "0", "0s", "0d0h", "-1", "-1h", "-0s", "+1h", "1", "30", "30 days", "30days", "1.5h", "1,5h", "∞", "inf", "forever", "Never", "NEVER",
		"never ", " 15m", "15m ", "15 m", "15M", "1m1h", "1h1h", "1w", "1y", "m", "h1", "1h-1m", "1e3s", "0x1h", "١m", "3651d", "3650d1ns",
		"87601h", "9223372036854775807ns", "9223372036854775808ns", "99999999999999999999d", "1h\x00", "1h\n", "P1D", "1d1d", "1µs",
	} {
		got, err := box.ParseDuration("policy.idle", text)
		var e *box.Error
		if err == nil || got != 0 || !errors.As(err, &e) || e.Class != box.ClassInvalid || e.Field != "policy.idle" {
			t.Errorf("%q is %s, %v", text, got, err)
		}
	}
}

func TestDurationInJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]box.Duration{`"15m"`: box.Duration(15 * time.Minute), `"never"`: box.Never, `"0s"`: 0, `""`: 0} {
		var got box.Duration
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s is %s, %v", text, got, err)
		}
	}
	for _, text := range []string{`15`, `-1`, `0`, `1e9`, `"-1h"`, `"30 days"`, `["15m"]`, `{}`, `true`, `"∞"`} {
		p := box.Policy{Idle: 7}
		if err := json.Unmarshal([]byte(`{"idle":`+text+`}`), &p); err == nil || p.Idle != 7 {
			t.Errorf("%s became %s, %v", text, p.Idle, err)
		}
	}
	for _, d := range []box.Duration{0, 1, box.Never, box.Duration(36 * time.Hour), box.Duration(3650 * day)} {
		data, err := json.Marshal(d)
		var back box.Duration
		if err != nil || json.Unmarshal(data, &back) != nil || back != d {
			t.Errorf("%d became %s became %d", d, data, back)
		}
	}
	if data, _ := json.Marshal(box.Policy{Idle: box.Duration(36 * time.Hour)}); string(data) != `{"idle":"1d12h"}` {
		t.Errorf("a policy is written %s", data)
	}
}

func TestDurationNever(t *testing.T) {
	t.Parallel()
	if !box.Never.IsNever() || box.Duration(0).IsNever() || box.Never.Std() != 0 || box.Never.String() != "never" || box.Duration(0).String() != "0s" {
		t.Error("never and unset are mixed up")
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, seed := range []string{"15m", "1d12h", "never", "-1h", "0s", "30 days", "∞", "99999999999999999999d", "1h1m1s1ms1us1ns", "3650d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := box.ParseDuration("x", text)
		if err != nil {
			if d != 0 || box.ClassOf(err) != box.ClassInvalid || !strings.HasPrefix(err.Error(), "x: ") {
				t.Fatalf("%q: %d with %v", text, d, err)
			}
			return
		}
		if d == 0 || strings.ContainsAny(text, "-+. ") || (d.IsNever() != (text == "never")) || d.Std() > 3650*day {
			t.Fatalf("%q was read as %d", text, d)
		}
		if again, err := box.ParseDuration("x", d.String()); err != nil || again != d {
			t.Fatalf("%q became %s became %s, %v", text, d, again, err)
		}
	})
}

func FuzzDurationString(f *testing.F) {
	for _, seed := range []int64{1, -1, int64(time.Hour), int64(3650 * day), 1<<62 + 1, -1 << 63} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		d := box.Duration(n)
		again, err := box.ParseDuration("x", d.String())
		switch {
		case n == 0 || n > int64(3650*day):
			if err == nil {
				t.Fatalf("%d was read back as %s", n, again)
			}
		case err != nil || again != max(d, box.Never):
			t.Fatalf("%d became %s became %s, %v", n, d, again, err)
		}
	})
}
