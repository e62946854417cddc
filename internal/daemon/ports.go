package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/engine"
)

// claim takes the data directory and looks at all ports, before anything is made:
// a second start in one directory hears of the first, and a failed one leaves
// nothing behind. A directory that is not there yet nobody holds; it is made
// after the ports were looked at.
func claim(ctx context.Context, cfg config.Config, o nodeOptions) (*engine.Lock, error) {
	ports := wantedPorts(cfg, o)
	if _, err := os.Lstat(cfg.DataDir); errors.Is(err, os.ErrNotExist) {
		if err := freePorts(ctx, ports); err != nil {
			return nil, err
		}
		return engine.Acquire(cfg.DataDir)
	}
	lock, err := engine.Acquire(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	if err := freePorts(ctx, ports); err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}

// wanted is an address to listen on, and what chooses another.
type wanted struct{ address, change string }

func wantedPorts(cfg config.Config, o nodeOptions) []wanted {
	local := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	out := []wanted{{local(o.port), "--port"}}
	if !o.noUI {
		out = append(out, wanted{local(o.uiPort), "--ui-port"})
	}
	if o.health && cfg.Listen != config.ListenOff {
		out = append(out, wanted{cfg.Listen, "BOXKEEPER_LISTEN"})
	}
	return out
}

// freePorts names all addresses that cannot be listened on in one error: who
// changes one must not run into the next.
func freePorts(ctx context.Context, ports []wanted) error {
	var lc net.ListenConfig
	var taken []string
	for _, one := range ports {
		listener, err := lc.Listen(ctx, "tcp", one.address)
		if err != nil {
			if e, ok := errors.AsType[*net.OpError](err); ok {
				err = e.Err
			}
			taken = append(taken, one.address+" ("+one.change+"): "+err.Error())
			continue
		}
		defer listener.Close() // after the last: two of them must not be one
	}
	if len(taken) == 0 {
		return nil
	}
	return box.Invalidf("ports", "cannot listen on %s; stop the program that does, or choose others with what stands in brackets, port 0 for a free one", strings.Join(taken, ", nor on "))
}
