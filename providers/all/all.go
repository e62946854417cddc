// Package all is the explicit list of the drivers: no import registers
// anything. The mains open configured instances with [Open], and the table of
// docs/providers.md comes from [Rows]. It holds no logic of any provider.
//
// The fake of package fakebox is not in the list: what it holds ends with the
// process, so a configuration must not be able to choose it. Tests and
// simulations make it themselves.
package all

import (
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/local"
)

// Settings are what an instance is configured with. Only the part that belongs
// to its driver is read.
type Settings struct {
	Local local.Options
}

// Open returns the instance called name of the driver called driverName. It
// refuses unknown drivers and bad settings with the field named.
func Open(name, driverName string, settings Settings, opts *providers.Options) (*providers.Provider, error) {
	if opts == nil {
		return nil, box.Invalidf("installation", "is not set")
	}
	var d driver.Driver
	switch driverName {
	case "local":
		opened, err := local.New(opts.Installation, settings.Local)
		if err != nil {
			return nil, box.Errorf(box.ClassOf(err), "open provider %s: %w", name, err)
		}
		d = opened
	default:
		return nil, box.Invalidf("providers."+name+".driver", "%q is not known; use one of: %s", driverName, strings.Join(names(), ", "))
	}
	return providers.New(name, d, opts)
}

func names() []string {
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
	}
}
