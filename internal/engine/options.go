package engine

import (
	"net"
	"path/filepath"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
)

const (
	// DefaultNamespace is where workflows run unless Options name another one.
	DefaultNamespace = "default"
	// DefaultRetention is how long a closed workflow's history is kept. The
	// server's own 24 hours would lose a box's history the day after its end.
	DefaultRetention = 90 * 24 * time.Hour

	defaultHost = "127.0.0.1"
	// minRetention is the server's own bound for a namespace of one cluster.
	minRetention = time.Hour
)

// Options say how an engine is run. Only DataDir is required.
type Options struct {
	// DataDir is the product's data directory; the engine keeps its file in
	// the directory "engine" below it, and copies in "backups".
	DataDir string
	// Lock is that of DataDir, of a caller who took it before other work; the
	// engine takes it when nil. It is the engine's from Start on, also where that
	// fails.
	Lock *Lock
	// Host is the loopback address to listen on; 127.0.0.1 when empty.
	Host string
	// GRPCPort and UIPort are the ports of the engine's API and of its web UI.
	// Zero picks a free one: Address and UIURL tell which.
	GRPCPort int
	UIPort   int
	// NoUI leaves the web UI out.
	NoUI bool
	// Namespace is created when it is missing; DefaultNamespace when empty.
	Namespace string
	// Retention is how long closed workflows are kept; DefaultRetention when
	// zero. A change applies to workflows that close after it.
	Retention time.Duration
	// SearchAttributes are added when they are missing. None is ever removed.
	SearchAttributes map[string]enumspb.IndexedValueType
	// TimeSkipping allows FastForward. Never set it for a data directory that
	// holds boxes of a real provider: their clocks do not skip.
	TimeSkipping bool
	// Logger gets what the server says at warning level or above, and one line
	// per step of the start at info level; nothing is logged when nil.
	Logger *zap.Logger
}

// withDefaults checks o and fills in what was left out.
func (o Options) withDefaults() (Options, error) {
	if o.DataDir == "" {
		return o, box.Invalidf("data", "name the data directory with --data")
	}
	abs, err := filepath.Abs(o.DataDir)
	if err != nil {
		return o, box.Errorf(box.ClassInvalid, "resolve the data directory %s: %w", o.DataDir, err)
	}
	o.DataDir = abs
	if o.Host == "" || o.Host == "localhost" {
		o.Host = defaultHost
	}
	if ip := net.ParseIP(o.Host); ip == nil || !ip.IsLoopback() {
		return o, box.Invalidf("host", "%q is not a loopback address: the engine has no login, so it listens on "+
			"127.0.0.1 or ::1 only; reach it from elsewhere through a tunnel or the gateway", o.Host)
	}
	for field, port := range map[string]int{"port": o.GRPCPort, "ui-port": o.UIPort} {
		if port < 0 || port > 65535 {
			return o, box.Invalidf(field, "%d is not a port: use 1 to 65535, or 0 for a free one", port)
		}
	}
	if !o.NoUI && o.GRPCPort != 0 && o.GRPCPort == o.UIPort {
		return o, box.Invalidf("ui-port", "%d is given to --port too: use another one, or 0 for a free one", o.UIPort)
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.Retention < minRetention {
		return o, box.Invalidf("retention", "%s is under the engine's least, %s", o.Retention, minRetention)
	}
	for name, kind := range o.SearchAttributes {
		if name == "" || kind == enumspb.INDEXED_VALUE_TYPE_UNSPECIFIED {
			return o, box.Invalidf("search-attributes", "attribute %q needs a name and a type", name)
		}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o, nil
}
