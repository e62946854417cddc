package box

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time in policies and on the wire. It is written like
// "90s", "15m", "12h", "30d" or "1d12h" (a day is 24 hours), and "never" where
// the field allows it. The zero value means "not set": the default applies.
type Duration time.Duration

// Never switches the timer off, in the fields that document it.
const Never Duration = -1

const day = 24 * time.Hour

// maxDuration bounds every setting: the engine drops timers beyond 99 years,
// and nobody means more than ten.
const maxDuration = 3650 * day

// Std returns d as a time.Duration; Never is returned as zero, so callers ask
// IsNever first.
func (d Duration) Std() time.Duration {
	if d < 0 {
		return 0
	}
	return time.Duration(d)
}

// IsNever reports whether d switches its timer off.
func (d Duration) IsNever() bool { return d < 0 }

// String returns the form that ParseDuration reads: "never", "0s", "30d",
// "1d12h", "90s".
func (d Duration) String() string {
	if d.IsNever() {
		return "never"
	}
	rest := time.Duration(d)
	if rest == 0 {
		return "0s"
	}
	var b strings.Builder
	for _, u := range units {
		if n := int64(rest / u.size); n > 0 {
			b.WriteString(strconv.FormatInt(n, 10) + u.name)
			rest %= u.size
		}
	}
	return b.String()
}

var units = [...]struct { //nolint:gochecknoglobals // a constant table
	name string
	size time.Duration
}{
	{"d", day},
	{"h", time.Hour},
	{"m", time.Minute},
	{"s", time.Second},
	{"ms", time.Millisecond},
	{"us", time.Microsecond},
	{"ns", time.Nanosecond},
}

// ParseDuration reads the forms that [Duration] documents. Units come in
// falling order, each at most once. Signs, fractions, spaces, bare numbers and
// zero lengths are refused, so that nothing is ever "now" by accident; the
// error names field.
func ParseDuration(field, text string) (Duration, error) {
	if text == "never" {
		return Never, nil
	}
	refuse := func(why string) (Duration, error) {
		return 0, Invalidf(field, "%q is not a duration (%s); write it like 90s, 15m, 12h or 30d", text, why)
	}
	rest, total, next := text, time.Duration(0), 0
	for rest != "" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if digits == 0 {
			return refuse("a number must come before each unit")
		}
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil {
			return refuse("the number is too large")
		}
		rest = rest[digits:]
		letters := len(rest) - len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz"))
		unit := rest[:letters]
		rest = rest[letters:]
		at := next
		for at < len(units) && units[at].name != unit {
			at++
		}
		if at == len(units) {
			return refuse("units are d, h, m, s and ms, largest first")
		}
		if n > int64(maxDuration/units[at].size) {
			return refuse("the most is 3650d")
		}
		total += time.Duration(n) * units[at].size
		next = at + 1
	}
	switch {
	case text == "":
		return refuse("it is empty")
	case total == 0:
		return refuse("zero is not allowed")
	case total > maxDuration:
		return refuse("the most is 3650d")
	}
	return Duration(total), nil
}

// MarshalJSON writes the text form, so that histories are readable.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads the text form. Zero is accepted here and only here,
// because a stored value may be unset.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return Invalidf("duration", "%s is not a duration; write it like \"15m\" or \"30d\"", data)
	}
	if text == "0s" || text == "" {
		*d = 0
		return nil
	}
	parsed, err := ParseDuration("duration", text)
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
