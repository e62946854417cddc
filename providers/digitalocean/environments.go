package digitalocean

import (
	"context"
	"net/http"
	"strings"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
)

// mostKnown bounds how many names of environments are remembered.
const mostKnown = 10_000

// made reports whether a session of a name of ours was made by this installation:
// from an environment of that box. One whose environment was deleted is taken for
// ours, since its name holds the installation: what is forgotten is paid for.
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
		case statusOf(err) == http.StatusNotFound:
			return true, nil
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

// learnFor lists the environments once where several would have to be read one by
// one.
func (d *Driver) learnFor(ctx context.Context, sessions []session) error {
	d.mu.Lock()
	unknown := 0
	for _, s := range sessions {
		if _, known := d.configs[s.ConfigID]; !known {
			unknown++
		}
	}
	d.mu.Unlock()
	if unknown < 2 {
		return nil
	}
	all, err := d.api.environments(ctx)
	if err != nil {
		return err
	}
	d.learn(all...)
	return nil
}

// clear deletes the environments of a box that is gone, with the secrets in them.
// The sources contradict each other on whether the service refuses that while
// one is in use, so one that another session uses, such as somebody's fork, stays.
func (d *Driver) clear(ctx context.Context, ref box.Ref) error {
	all, err := d.api.environments(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		if !strings.HasPrefix(e.Name, d.environmentPrefix(ref.Name)) || !validID(e.ID) {
			continue
		}
		if err := d.drop(ctx, e, ref.ID); err != nil {
			return err
		}
	}
	return nil
}

// drop deletes an environment that no session but the one called gone was made
// from and lives.
func (d *Driver) drop(ctx context.Context, e environment, gone string) error {
	made, err := d.api.sessions(ctx, e.ID, godo.HostedAgentSessionListOptions{Status: statusAll})
	if err == nil {
		for _, s := range made {
			if s.Status != godo.HostedAgentSessionStatusDestroyed && s.ID != gone {
				d.opts.Logger.WarnContext(ctx, "an environment stays, since another session uses it", "environment", e.ID, "session", s.ID, "status", short(s.Status))
				return nil
			}
		}
		err = d.api.deleteEnvironment(ctx, e.ID)
	}
	if statusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}
