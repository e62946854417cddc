package docker

import (
	"context"
	"net"
	"net/netip"

	"github.com/moby/moby/api/types/network"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Endpoint looks up where the box's port is published now. The box keeps the key
// that it was started with, so none is in the answer. Unavailable: it is being
// started, or no port is published yet.
func (d *Driver) Endpoint(ctx context.Context, ref box.Ref) (driver.Endpoint, error) {
	ctx, s, id, err := d.own(ctx, ref)
	if err != nil {
		return driver.Endpoint{}, err
	}
	f, err := s.find(ctx, id)
	if err == nil {
		err = f.renamed(ref)
	}
	if err != nil {
		return driver.Endpoint{}, err
	}
	seen := f.judge()
	if err := driver.Unreachable(ref.Name, seen.phase, seen.evidence); err != nil {
		return driver.Endpoint{}, err
	}
	inside, _ := network.PortFrom(portIn, network.TCP)
	if f.container.NetworkSettings != nil {
		for _, at := range f.container.NetworkSettings.Ports[inside] {
			if at.HostPort != "" && at.HostPort != "0" {
				return driver.Endpoint{URL: "http://" + net.JoinHostPort(d.reached(at.HostIP), at.HostPort)}, nil
			}
		}
	}
	return driver.Endpoint{}, box.Errorf(box.ClassUnavailable, "no port of box %s is published yet; ask again", ref.Name)
}

// reached is the host under which a published port is reached.
func (d *Driver) reached(on netip.Addr) string {
	switch {
	case d.reach != "":
		return d.reach
	case !on.IsValid() || on.IsUnspecified():
		return "127.0.0.1"
	}
	return on.String()
}
