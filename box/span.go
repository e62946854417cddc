package box

import (
	"encoding/json"
	"time"
)

// Span is a length of time that somebody measured or that a provider has: an
// age, a bound of its own. It is written like a [Duration] and is no setting, so
// zero means what its field says, and nothing is refused: what is below zero is
// zero, and what is longer than 3650d is written as that.
type Span time.Duration

// Std returns s as a time.Duration.
func (s Span) Std() time.Duration { return time.Duration(s) }

// String returns the form of a [Duration].
func (s Span) String() string { return Duration(min(max(s, 0), Span(maxDuration))).String() }

// MarshalJSON writes the text form, so that histories are readable.
func (s Span) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads the text form, and the whole nanoseconds that histories
// held before there was one.
func (s *Span) UnmarshalJSON(data []byte) error {
	var ns int64
	if json.Unmarshal(data, &ns) == nil {
		*s = Span(ns)
		return nil
	}
	var d Duration
	if err := d.UnmarshalJSON(data); err != nil {
		return err
	}
	*s = Span(d.Std())
	return nil
}
