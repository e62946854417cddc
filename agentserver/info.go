package agentserver

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// ServerInfo is what a server says of itself.
type ServerInfo struct {
	Version      string
	Uptime       time.Duration
	IdleTime     time.Duration // process memory and wall clock: clamp it to the time since the last resume
	Capabilities []string
}

// Has reports whether the server advertises the capability.
func (i ServerInfo) Has(capability string) bool { return slices.Contains(i.Capabilities, capability) }

// Ready returns nil when the server takes requests, and otherwise why not:
// ClassUnavailable while it starts. It does not move the idle clock.
func (c *Client) Ready(ctx context.Context) error {
	var answer struct {
		Status string `json:"status"`
	}
	if err := c.do(ctx, call{method: http.MethodGet, path: "/ready", bound: quickCall, open: true}, &answer); err != nil {
		return err
	}
	if answer.Status != "ready" {
		return box.Errorf(box.ClassUnavailable, "the agent-server says it is %q, not ready", box.OneLine(answer.Status, 40))
	}
	return nil
}

// Info returns the server's description; fields it does not have are zero. It
// does not move the idle clock.
func (c *Client) Info(ctx context.Context) (ServerInfo, error) {
	var answer struct {
		Version      string            `json:"version"`
		Uptime       *float64          `json:"uptime"`
		IdleTime     *float64          `json:"idle_time"`
		Capabilities []json.RawMessage `json:"capabilities"`
	}
	if err := c.do(ctx, call{method: http.MethodGet, path: "/server_info", bound: quickCall, open: true}, &answer); err != nil {
		return ServerInfo{}, err
	}
	// Another service's JSON must not read as a box that was used just now.
	if answer.Uptime == nil || answer.IdleTime == nil {
		return ServerInfo{}, box.Errorf(box.ClassUnknown, "GET /server_info has no uptime or idle_time; is this the address of an agent-server?")
	}
	info := ServerInfo{Version: answer.Version}
	var err error
	if info.Uptime, err = seconds("uptime", *answer.Uptime); err != nil {
		return ServerInfo{}, err
	}
	if info.IdleTime, err = seconds("idle_time", *answer.IdleTime); err != nil {
		return ServerInfo{}, err
	}
	for _, raw := range answer.Capabilities {
		var name string
		if json.Unmarshal(raw, &name) == nil && name != "" {
			info.Capabilities = append(info.Capabilities, name)
		}
	}
	return info, nil
}

// seconds turns a number of seconds into a duration. A negative one comes from
// a clock that was set back and counts as zero: in use just now.
func seconds(field string, n float64) (time.Duration, error) {
	const century = 100 * 365 * 24 * 3600
	if math.IsNaN(n) || n > century {
		return 0, box.Errorf(box.ClassUnknown, "the agent-server's %s of %g seconds makes no sense", field, n)
	}
	return time.Duration(max(0, n) * float64(time.Second)), nil
}
