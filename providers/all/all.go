// Package all is the explicit list of the drivers: no import registers
// anything. The mains open configured instances with [Open], and the table of
// docs/providers.md comes from [Rows]. It holds no logic of any provider.
//
// The fake of package fakebox is not in the list: what it holds ends with the
// process, so a configuration must not be able to choose it. Tests and
// simulations make it themselves.
package all

import (
	"errors"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
)

// Settings are what an instance is configured with. Only the part that belongs
// to its driver is read.
type Settings struct {
	Local        local.Options
	Docker       docker.Options
	RuntimeAPI   runtimeapi.Options
	DigitalOcean digitalocean.Options
}

// Open returns the instance called name of the driver called driverName. It
// refuses unknown drivers and bad settings with the field named.
func Open(name, driverName string, settings Settings, opts *providers.Options) (*providers.Provider, error) {
	if opts == nil {
		return nil, box.Invalidf("installation", "is not set")
	}
	d, err := open(opts.Installation, driverName, settings)
	if err != nil {
		return nil, named(name, err)
	}
	return providers.New(name, d, opts)
}

// nobody is an installation that no box is of.
const nobody = "00000000"

// Check refuses settings as [Open] does, with the field named. It makes nothing
// and contacts nobody. A credential that is empty is not looked at.
func Check(name, driverName string, settings Settings) error {
	const some = "unknown" // a new driver asks for one, and keeps it to itself
	if settings.RuntimeAPI.APIKey == "" {
		settings.RuntimeAPI.APIKey = some
	}
	if settings.DigitalOcean.Token == "" {
		settings.DigitalOcean.Token = some
	}
	var err error
	if driverName == "local" { // a new one makes its directory
		err = settings.Local.Check()
	} else {
		_, err = open(nobody, driverName, settings)
	}
	if err != nil {
		return named(name, err)
	}
	return nil
}

// named says of which instance a setting is wrong.
func named(name string, err error) error {
	if wrong, ok := errors.AsType[*box.Error](err); ok && wrong.Field != "" {
		return &box.Error{Class: wrong.Class, Field: "providers." + name + "." + wrong.Field, Message: wrong.Message, Err: wrong.Err}
	}
	return box.Errorf(box.ClassOf(err), "open provider %s: %w", name, err)
}

func open(installation, driverName string, settings Settings) (driver.Driver, error) {
	switch driverName {
	case "local":
		return local.New(installation, settings.Local)
	case "docker":
		return docker.New(installation, settings.Docker)
	case "runtimeapi":
		return runtimeapi.New(installation, settings.RuntimeAPI)
	case "digitalocean":
		return digitalocean.New(installation, settings.DigitalOcean)
	}
	return nil, box.Invalidf("driver", "%q is not known; use one of: %s", driverName, strings.Join(Names(), ", "))
}

// Row returns what an instance of these settings claims, and an empty row, of
// which nothing is known, for a driver that there is not.
func Row(driverName string, settings Settings) box.Capabilities {
	switch driverName {
	case "local":
		return local.Row(settings.Local)
	case "docker":
		return docker.Row(settings.Docker)
	case "runtimeapi":
		return runtimeapi.Row(settings.RuntimeAPI)
	case "digitalocean":
		return digitalocean.Row(settings.DigitalOcean)
	}
	return box.Capabilities{}
}

// Names are those of the drivers.
func Names() []string {
	var out []string
	for _, row := range Rows() {
		if len(out) == 0 || out[len(out)-1] != row.Driver {
			out = append(out, row.Driver)
		}
	}
	return out
}

// Rows returns what every driver claims, one row for each kind of suspend.
func Rows() []box.Capabilities {
	return []box.Capabilities{
		local.Row(local.Options{Suspend: local.SuspendStop}),
		local.Row(local.Options{Suspend: local.SuspendFreeze}),
		docker.Row(docker.Options{Suspend: docker.SuspendStop}),
		docker.Row(docker.Options{Suspend: docker.SuspendPause}),
		runtimeapi.Row(runtimeapi.Options{}),
		digitalocean.Row(digitalocean.Options{}),
	}
}
