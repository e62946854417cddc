package agentserver

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Use returns how the box is used. Without boxd the answer has no digest and
// counts no events: reading those would load every conversation. It does not
// move the idle clock.
func (c *Client) Use(ctx context.Context) (box.Use, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return box.Use{}, err
	}
	if !info.Has(CapabilityUse) {
		return c.plainUse(ctx, info)
	}
	var answer struct {
		Use
		// A pointer tells a missing field from zero seconds.
		IdleSeconds *float64 `json:"idle_seconds"`
		Digest      *string  `json:"digest"`
	}
	if err := c.do(ctx, call{method: http.MethodGet, path: "/api/boxd/use", bound: slowCall}, &answer); err != nil {
		return box.Use{}, err
	}
	if answer.IdleSeconds == nil || answer.Digest == nil || answer.Running < 0 || answer.InFlight < 0 || answer.Conversations < 0 || answer.Events < 0 {
		return box.Use{}, box.Errorf(box.ClassUnknown, "GET /api/boxd/use lacks idle_seconds or digest, or holds a negative count")
	}
	idle, err := seconds("idle_seconds", *answer.IdleSeconds)
	if err != nil {
		return box.Use{}, err
	}
	use := answer.Use.Box()
	use.IdleFor, use.Digest = box.Span(idle), *answer.Digest
	return use, nil
}

// Process says how the agent-server is doing that a boxd runs, also while it
// answers nothing itself. ClassUnsupported when no boxd is in front. It does not
// move the idle clock.
func (c *Client) Process(ctx context.Context) (Process, error) {
	var answer Use
	if err := c.do(ctx, call{method: http.MethodGet, path: "/api/boxd/use", bound: slowCall}, &answer); err != nil {
		return Process{}, c.boxdOnly(err)
	}
	answer.Server.LastExit = box.OneLine(c.safe(answer.Server.LastExit), 200)
	return answer.Server, nil
}

// plainUse reads use from an agent-server that has no boxd in front.
func (c *Client) plainUse(ctx context.Context, info ServerInfo) (box.Use, error) {
	count := func(query url.Values) (int, error) {
		n := -1
		err := c.do(ctx, call{method: http.MethodGet, path: "/api/conversations/count", query: query, bound: quickCall}, &n)
		if err == nil && n < 0 {
			err = box.Errorf(box.ClassUnknown, "GET /api/conversations/count answered no number")
		}
		return n, err
	}
	all, err := count(nil)
	if err != nil {
		return box.Use{}, err
	}
	running, err := count(url.Values{"status": {"running"}})
	if err != nil {
		return box.Use{}, err
	}
	return box.Use{IdleFor: box.Span(info.IdleTime), Running: running, Conversations: all}, nil
}

// Drain shuts the box to new work until lease has passed, Undrain is called or
// the server ends; a repeated call renews the lease. Open WebSockets are
// closed. ClassUnsupported when no boxd is in front. It does not move the idle
// clock.
func (c *Client) Drain(ctx context.Context, lease time.Duration) error {
	if lease <= 0 || lease > MaxDrainLease {
		return box.Invalidf("lease", "%s is not between 0 and %s", lease, MaxDrainLease)
	}
	return c.boxdOnly(c.do(ctx, call{
		method: http.MethodPost, path: "/api/boxd/drain", bound: quickCall,
		body: Drain{LeaseSeconds: lease.Seconds()},
	}, nil))
}

// Undrain opens the box to new work; an open one stays open. ClassUnsupported
// when no boxd is in front. It does not move the idle clock.
func (c *Client) Undrain(ctx context.Context) error {
	return c.boxdOnly(c.do(ctx, call{method: http.MethodDelete, path: "/api/boxd/drain", bound: quickCall}, nil))
}

// PrepareForPause makes the server save and close every conversation and cancel
// what runs, which may write events: call it before anything is counted. Safe
// to repeat; a server too old to know it is not an error. The events it writes
// may move the idle clock.
func (c *Client) PrepareForPause(ctx context.Context) error {
	err := c.do(ctx, call{method: http.MethodPost, path: "/api/conversations/prepare-for-sandbox-pause", bound: slowCall}, nil)
	switch box.ClassOf(err) { //nolint:exhaustive // only these two mean "not there"
	case box.ClassNotFound, box.ClassUnsupported:
		return nil
	}
	return err
}

// boxdOnly turns "no such path" into ClassUnsupported.
func (c *Client) boxdOnly(err error) error {
	switch box.ClassOf(err) { //nolint:exhaustive // only these two mean "not there"
	case box.ClassNotFound, box.ClassUnsupported:
		return box.Errorf(box.ClassUnsupported, "this agent-server has no boxd in front: %w", err)
	}
	return err
}
