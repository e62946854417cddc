package docker

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Lister   = (*Driver)(nil)
	_ driver.Watcher  = (*Driver)(nil)
	_ driver.Adopter  = (*Driver)(nil)
	_ driver.Deepener = (*Driver)(nil)
)

// SuspendKind is what suspending a box means.
type SuspendKind string

// The kinds. The zero value is SuspendStop.
const (
	SuspendStop  SuspendKind = "stop"  // processes end, the files stay
	SuspendPause SuspendKind = "pause" // processes stand still and keep their memory
)

// PullPolicy says when an image is asked of its registry.
type PullPolicy string

// The policies. The zero value is PullMissing. No credentials are sent: an image
// of a private registry is pulled by the operator.
const (
	PullMissing PullPolicy = "missing" // when the engine does not have it
	PullAlways  PullPolicy = "always"  // before each creation
	PullNever   PullPolicy = "never"
)

// Limits bound one box; zero is no limit.
type Limits struct {
	MemoryBytes int64
	CPUs        float64
	Processes   int64
	// LayerBytes is how much a box may write outside of its volume. Few engines can
	// hold it (overlay2 on xfs with project quotas, btrfs, zfs): others refuse
	// to create the box.
	LayerBytes int64
}

// Ports is a range of ports of the engine's machine, the last one included; zero
// lets the engine choose at each start.
type Ports struct{ First, Last uint16 }

// Options configures an instance. Boxd is required.
type Options struct {
	// Host is the engine's address: unix:///path, tcp://host:port, http:// or
	// https://. Empty takes it from DOCKER_HOST, and the usual socket after that.
	// DOCKER_TLS_VERIFY, DOCKER_CERT_PATH and DOCKER_API_VERSION count in both
	// cases; without the last one the version is agreed with the engine.
	Host string
	// OwnTLS makes TLS all that counts, instead of DOCKER_TLS_VERIFY and
	// DOCKER_CERT_PATH, which are not about this engine. It needs Host. A nil TLS is
	// none.
	OwnTLS bool
	TLS    *tls.Config
	// Boxd is the absolute path, here, of a static program for the system of the
	// boxes, Linux, and the words that make it boxd: the program itself needs
	// none, boxkeeper needs "boxd".
	Boxd []string
	// AgentServer is the argv of an agent-server in the image that boxd runs behind
	// itself; empty lets boxd stand alone.
	AgentServer []string
	// DefaultImage is for boxes whose spec names none.
	DefaultImage string
	Pull         PullPolicy
	// Network is the network that boxes join, the engine's default when empty.
	Network string
	// PublishOn is the address of the engine's machine on which a box's port is
	// published: 127.0.0.1 by default. For an engine on another machine it must be
	// given, since the port speaks plain HTTP.
	PublishOn string
	// Reach is the host name or address under which this worker reaches published
	// ports; by default PublishOn, or the engine's host.
	Reach string
	Ports Ports
	// Suspend is the kind of suspend; a box suspended in one kind is resumed
	// rightly after a change.
	Suspend SuspendKind
	// Snapshot commits the layer of a container that a suspend stopped as an image,
	// of which a container that somebody removed is made again. A commit takes time
	// and disk. Snapshots that are there are used, and removed with their box, with
	// or without it.
	Snapshot bool
	Limits   Limits
	// StartTimeout bounds the wait until a started box answers, 60 s by default.
	StartTimeout time.Duration
	// StopTimeout is how long an orderly end may take before it is forced, 20 s by
	// default; whole seconds count.
	StopTimeout time.Duration
	// Logger hears what no answer can carry; nil is silent.
	Logger *slog.Logger
}

const (
	defaultStart = 60 * time.Second
	defaultStop  = 20 * time.Second
)

// Driver keeps the boxes of one installation on one engine. It holds no state
// that another driver on the same engine would miss.
type Driver struct {
	installation string
	opts         Options
	publishOn    netip.Addr
	reach        string // empty: where the port is published

	locks driver.Locks
	mu    sync.Mutex
	conn  connection
}

// New returns a driver. It reads the environment for the engine's address, and
// asks the engine nothing.
func New(installation string, opts Options) (*Driver, error) {
	if err := opts.check(installation); err != nil {
		return nil, err
	}
	opts.setDefaults()
	d := &Driver{installation: installation, opts: opts}
	api, err := d.open()
	if err != nil {
		return nil, noEngine(err)
	}
	defer func() { _ = api.Close() }()
	if err := d.placePorts(api.DaemonHost()); err != nil {
		return nil, err
	}
	return d, nil
}

func (o *Options) check(installation string) error {
	switch {
	case !driver.ValidInstallation(installation):
		return box.Invalidf("installation", "must be 8 lower-case hex digits")
	case len(o.Boxd) == 0 || !filepath.IsAbs(o.Boxd[0]):
		return box.Invalidf("boxd", "must begin with the absolute path of a static boxd or boxkeeper for Linux")
	case o.OwnTLS && o.Host == "" || o.TLS != nil && !o.OwnTLS:
		return box.Invalidf("host", "TLS that is given is for a host that is given, and nothing else counts then")
	case o.Suspend != "" && o.Suspend != SuspendStop && o.Suspend != SuspendPause:
		return box.Invalidf("suspend", "%q is not known; use \"stop\" or \"pause\"", o.Suspend)
	case o.Pull != "" && o.Pull != PullMissing && o.Pull != PullAlways && o.Pull != PullNever:
		return box.Invalidf("pull", "%q is not known; use \"missing\", \"always\" or \"never\"", o.Pull)
	case o.Network == "none" || o.Network == "host" || strings.HasPrefix(o.Network, "container:"):
		return box.Invalidf("network", "no port is published in %q; name a bridge network, or leave it out", o.Network)
	case o.Ports.First == 0 != (o.Ports.Last == 0) || o.Ports.First > o.Ports.Last:
		return box.Invalidf("ports", "%d-%d is not a range; give the first and the last port, or neither", o.Ports.First, o.Ports.Last)
	case o.Limits.MemoryBytes < 0 || o.Limits.CPUs < 0 || o.Limits.Processes < 0 || o.Limits.LayerBytes < 0:
		return box.Invalidf("limits", "must not be negative")
	case o.StartTimeout < 0:
		return box.Invalidf("start_timeout", "must not be negative")
	case o.StopTimeout < 0 || o.StopTimeout > 0 && o.StopTimeout < time.Second:
		return box.Invalidf("stop_timeout", "must be a second or more, or 0 for the default")
	}
	return nil
}

func (o *Options) setDefaults() {
	if o.Suspend == "" {
		o.Suspend = SuspendStop
	}
	if o.Pull == "" {
		o.Pull = PullMissing
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStart
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = defaultStop
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// noEngine says what an address looks like, since the client's own words don't,
// and where one comes from that nobody set here.
func noEngine(err error) error {
	return box.Invalidf("host", "is not the address of an engine (%v); write it like unix:///run/docker.sock or tcp://HOST:PORT. Where it is not set, DOCKER_HOST counts", err)
}

// placePorts decides where ports are published and how they are reached.
func (d *Driver) placePorts(host string) error {
	at, err := client.ParseHostURL(host)
	if err != nil {
		return noEngine(err)
	}
	far := ""
	switch at.Scheme {
	case "unix", "npipe":
	case "tcp", "http", "https":
		far = hostOnly(at.Host)
		if address, err := netip.ParseAddr(far); far == "localhost" || err == nil && address.IsLoopback() {
			far = ""
		}
	default:
		return box.Invalidf("host", "%s:// is not spoken here; use unix:// or tcp://, for ssh with a forwarded socket (ssh -L)", at.Scheme)
	}
	d.publishOn = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	d.reach = d.opts.Reach
	switch {
	case d.opts.PublishOn != "":
		if d.publishOn, err = netip.ParseAddr(d.opts.PublishOn); err != nil {
			return box.Invalidf("publish_on", "%q is not an IP address of the engine's machine", d.opts.PublishOn)
		}
		if d.reach == "" && d.publishOn.IsUnspecified() {
			d.reach = far
		}
	case far != "":
		return box.Invalidf("publish_on", "the engine is on %s, so name the address there on which ports are published; they speak plain HTTP, so choose a private one", far)
	}
	return nil
}

// Row returns what the driver claims with opts, without opening anything.
func Row(opts Options) box.Capabilities {
	opts.setDefaults()
	row := box.Capabilities{
		Driver:             "docker",
		Suspend:            box.Yes,
		MemoryKept:         box.No,
		SameIdentity:       box.Yes,
		URLStable:          box.No,
		KeyStable:          box.Yes,
		LookingIsUse:       box.No,
		List:               box.Yes,
		Watch:              box.Yes,
		ExportNeedsRunning: box.Yes,
		// An engine has nothing that is written only if it was not newer: see
		// docs/providers/docker.md.
		Fence:        box.No,
		NativeIdle:   box.No,
		Adopt:        box.Yes,
		NativeAdjust: box.No,
		Deepen:       box.No,
		Lead:         box.LeadOurs,
		ResumeWait:   box.Span(opts.StartTimeout),
		SuspendProof: "the same container has exited since, its volume there",
		DeleteProof:  "no container, volume or snapshot with its labels, on the same engine and data directory",
		Untested:     "engines other than 20.10.24 (API 1.41); Docker Desktop, rootless engines, user namespaces; a restart of the machine",
	}
	if opts.Ports.First != 0 {
		row.URLStable = box.Yes
	}
	if opts.Suspend == SuspendPause {
		row.MemoryKept, row.Deepen = box.Yes, box.Yes
		row.SuspendProof = "the same container is paused, its volume there"
	}
	return row
}

// Capabilities returns the row.
func (d *Driver) Capabilities() box.Capabilities { return Row(d.opts) }

// Fingerprint reads the ids of the engine and of its data directory afresh.
func (d *Driver) Fingerprint(ctx context.Context) (string, error) {
	_, s, err := d.connect(ctx)
	if err != nil {
		return "", err
	}
	return s.print, nil
}

// ErrorClass maps the errors of this driver.
func (d *Driver) ErrorClass(err error) (box.Class, time.Duration) { return driver.ClassOf(err) }

// own returns the identity of a ref that is this installation's and was made
// on the engine that answers now.
func (d *Driver) own(ctx context.Context, ref box.Ref) (context.Context, *session, box.Identity, error) {
	if err := driver.Ended(ctx); err != nil {
		return ctx, nil, box.Identity{}, err
	}
	identity, ok := driver.IdentityOf(ref)
	if !ok || identity.Installation != d.installation {
		return ctx, nil, box.Identity{}, box.Errorf(box.ClassFailedPrecondition, "box %q, epoch %d, is not of installation %s", ref.Name, ref.Epoch, d.installation)
	}
	if ref.ID == "" || ref.ID != ref.Name && strings.Trim(ref.ID, "0123456789abcdef") != "" {
		return ctx, nil, identity, box.Errorf(box.ClassFailedPrecondition, "%q is no id of a container", ref.ID)
	}
	ctx, s, err := d.connect(ctx)
	if err != nil {
		return ctx, nil, identity, err
	}
	if s.print != ref.Fingerprint {
		return ctx, nil, identity, box.Errorf(box.ClassFailedPrecondition, "the box was made on %q, this is %q", ref.Fingerprint, s.print)
	}
	return ctx, s, identity, nil
}
