package idlelock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// The files by which an agent-server owns a conversation that it has loaded.
const (
	leaseName = "owner_lease.json"
	lockName  = ".owner_lease.lock"
	stateName = "base_state.json"
)

// maxLease and maxState bound what is read of them, in bytes.
const (
	maxLease = 64 << 10
	maxState = 64 << 20
)

// lease is what owner_lease.json says. Servers of before the crash recovery
// wrote neither host nor pid.
type lease struct {
	owner   string
	expires time.Time
	host    string
	pid     int
}

// parseLease reads a lease. It is stricter than the agent-server, which takes
// one that does not parse for none: here that is an error, and so in use.
func parseLease(text []byte) (lease, error) {
	fields, err := topLevel(text)
	if err != nil {
		return lease{}, err
	}
	var out lease
	var seconds float64
	var generation int64
	if err := errors.Join(
		required(fields, "owner_instance_id", &out.owner),
		required(fields, "generation", &generation),
		required(fields, "expires_at", &seconds),
	); err != nil {
		return lease{}, err
	}
	if out.expires, err = moment(seconds); err != nil {
		return lease{}, err
	}
	// As upstream: of another type they count as missing.
	if json.Unmarshal(fields["owner_host"], &out.host) != nil {
		out.host = ""
	}
	if json.Unmarshal(fields["owner_pid"], &out.pid) != nil {
		out.pid = 0
	}
	return out, nil
}

// moment turns seconds since 1970 into a time; later than the year 9999 is as
// late as that.
func moment(seconds float64) (time.Time, error) {
	if math.IsNaN(seconds) || math.IsInf(seconds, 0) {
		return time.Time{}, errors.New("expires_at is no time")
	}
	const last = 253402300799
	seconds = min(max(seconds, -last), last)
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9)).UTC(), nil
}

func required(fields map[string]json.RawMessage, name string, out any) error {
	raw, ok := fields[name]
	if !ok || string(raw) == "null" {
		return fmt.Errorf("no %s", name)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s is of another type", name)
	}
	return nil
}

// topLevel returns the members of a JSON object by their exact names. Decoding
// into a struct would take a name in other letter case for the same.
func topLevel(text []byte) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	var fields map[string]json.RawMessage
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	if fields == nil {
		return nil, errors.New("no object")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	return fields, nil
}

// statusOf returns the execution_status of a state; what an agent-server takes a
// missing one for is idle.
func statusOf(text []byte) (string, error) {
	fields, err := topLevel(text)
	if err != nil {
		return "", err
	}
	raw, ok := fields["execution_status"]
	if !ok {
		return "idle", nil
	}
	var status string
	if json.Unmarshal(raw, &status) != nil || status == "" {
		return "", errors.New("execution_status is no word")
	}
	return status, nil
}
