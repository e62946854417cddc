package digitalocean

import (
	"context"
	"strings"
	"time"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
)

// mostKnown bounds how many names of environments are remembered.
const mostKnown = 10_000

// made reports whether a session of a name of ours was made by this installation:
// from an environment of that box. Where its environment was deleted, by hand, that
// cannot be shown any more, and it is left alone; who holds its ref still can do
// everything.
func (d *Driver) made(ctx context.Context, s session) (bool, error) {
	if !validID(s.ConfigID) {
		return false, nil
	}
	d.mu.Lock()
	name, known := d.configs[s.ConfigID]
	d.mu.Unlock()
	if !known {
		read, err := d.api.environmentName(ctx, s.ConfigID)
		switch {
		case missing(err):
			return false, nil
		case err != nil:
			return false, err
		}
		name = read
		d.learn(environment{ID: s.ConfigID, Name: read})
	}
	return strings.HasPrefix(name, d.environmentPrefix(s.Name)), nil
}

// learn remembers names of environments, which never change.
func (d *Driver) learn(all ...environment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range all {
		if len(d.configs) >= mostKnown {
			clear(d.configs)
		}
		d.configs[e.ID] = e.Name
	}
}

// clear deletes the environments of a box that is gone, with the secrets in them,
// and the mark of one that was taken over. The sources contradict each other on
// whether the service refuses that while one is in use, so one that another session
// uses, such as somebody's fork, stays.
func (d *Driver) clear(ctx context.Context, ref box.Ref) error {
	all, err := d.api.environments(ctx)
	if err != nil {
		return err
	}
	var own []environment
	for _, e := range all {
		if (strings.HasPrefix(e.Name, d.environmentPrefix(ref.Name)) || e.Name == d.claimName(ref.ID, ref.Name)) && validID(e.ID) {
			own = append(own, e)
		}
	}
	used, err := d.usedByName(ctx, ref, own)
	if err != nil {
		return err
	}
	for _, e := range own {
		if used[e.ID] {
			d.opts.Logger.WarnContext(ctx, "an environment stays, since a later session of the same name uses it", "environment", e.ID, "box", ref.Name)
			continue
		}
		if err := d.drop(ctx, e, ref.ID); err != nil {
			return err
		}
	}
	d.sweep(ctx, all)
	return nil
}

// usedByName returns which environments another session uses that has the name of
// a box that is gone: a create of an earlier try that landed since. The list of an
// environment's sessions, which drop asks, may be behind; this is another one.
func (d *Driver) usedByName(ctx context.Context, ref box.Ref, own []environment) (map[string]bool, error) {
	used := map[string]bool{}
	if len(own) == 0 {
		return used, nil
	}
	named, err := d.api.sessions(ctx, "", godo.HostedAgentSessionListOptions{Name: ref.Name})
	if err != nil {
		return nil, err
	}
	for _, s := range named {
		used[s.ConfigID] = used[s.ConfigID] || s.ID != ref.ID && !over(s.Status)
	}
	return used, nil
}

const (
	// sweepEvery and sweepMost bound what a sweep costs: requests are few.
	sweepEvery = 6 * time.Hour
	sweepMost  = 10
	// sweepAge is how old an environment must be that nothing was made from: a
	// create may be about to use it.
	sweepAge = 24 * time.Hour
)

// sweep deletes environments of this installation that no session uses, such as
// those of creates that never came to a session: there are secrets in them. It is
// nobody's call, so what fails is only logged, and is tried again.
func (d *Driver) sweep(ctx context.Context, all []environment) {
	now := time.Now()
	d.mu.Lock()
	due := now.Sub(d.swept) >= sweepEvery
	if due {
		d.swept = now
	}
	d.mu.Unlock()
	var old []environment
	for _, e := range all {
		at, err := time.Parse(time.RFC3339Nano, e.CreatedAt)
		if strings.HasPrefix(e.Name, environmentMark+d.installation+"-") && validID(e.ID) && err == nil && now.Sub(at) > sweepAge {
			old = append(old, e)
		}
	}
	if !due || len(old) == 0 {
		return
	}
	used := map[string]bool{}
	found, err := d.shown(ctx)
	if err != nil {
		d.opts.Logger.WarnContext(ctx, "old environments were not looked for", "error", err)
		return
	}
	for _, s := range found {
		used[s.ConfigID] = true
	}
	dropped := 0
	for _, e := range old {
		if used[e.ID] || dropped == sweepMost {
			continue
		}
		dropped++
		if err := d.drop(ctx, e, ""); err != nil {
			d.opts.Logger.WarnContext(ctx, "an environment that nothing uses stays", "environment", e.ID, "error", err)
			return
		}
	}
}

// drop deletes an environment that no session was made from that is there. It is
// what shows that a session is ours, so it stays too while a list shows the one
// called gone. Unavailable: a list does, and a later call finds it out.
func (d *Driver) drop(ctx context.Context, e environment, gone string) error {
	made, err := d.api.sessions(ctx, e.ID, godo.HostedAgentSessionListOptions{Status: statusAll})
	if err == nil {
		for _, s := range made {
			if s.Status == godo.HostedAgentSessionStatusDestroyed {
				continue
			}
			if s.ID == gone {
				return box.Errorf(box.ClassUnavailable, "session %s is read as gone and is listed as %s, so environment %s stays; look again", s.ID, short(s.Status), e.ID)
			}
			d.opts.Logger.WarnContext(ctx, "an environment stays, since another session uses it", "environment", e.ID, "session", s.ID, "status", short(s.Status))
			return nil
		}
		err = d.api.deleteEnvironment(ctx, e.ID)
	}
	if missing(err) {
		return nil
	}
	return err
}
