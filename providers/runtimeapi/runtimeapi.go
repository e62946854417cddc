package runtimeapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
	"github.com/openhands/boxkeeper/providers/driver/httpdriver"
)

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Lister = (*Driver)(nil)
)

// Options configures an instance. URL, APIKey and PausedLife are required.
type Options struct {
	// URL is the base address, such as https://runtime.all-hands.dev.
	URL string
	// APIKey is sent as X-API-Key. It decides whose boxes are seen.
	APIKey box.Secret
	// Account names whose boxes the key sees. Without it the fingerprint comes from
	// the key, so that the boxes of one key are out of reach under another. With it
	// the key can be changed; whoever sets it vouches that every key is of this
	// account. It must not change while there are boxes.
	Account string
	// Image is for boxes whose spec names none.
	Image string
	// Command starts the agent-server on port 60000; the default is that of the
	// public image.
	Command []string
	// WorkingDir is where it starts, "/" by default as in the public image.
	WorkingDir string
	// ResourceFactor is the size: 1, 2, 4 or 8; 1 by default.
	ResourceFactor int
	// RuntimeClass is such as "sysbox-runc"; empty takes the install's own.
	RuntimeClass string

	// What the install does by itself, which no call tells. IdleReaper is its
	// RUNTIME_IDLE_SECONDS, 20m by default [chart, 30 Jun 2026].
	IdleReaper box.Duration
	// PausedLife is its RUNTIME_DEAD_SECONDS: a box that was suspended for so long
	// is destroyed. There is no default, since installs differ: 60d in the chart
	// since 25 Jun 2026, 3d with Replicated, 1d before.
	PausedLife box.Duration
	// MaxRun is how long a box can be awake, 12h by default [docs, 2026; the chart
	// does not show it].
	MaxRun box.Duration
	// ListsFailed says that the install's /list shows boxes in status "error" too.
	// Only then is the list of all boxes claimed.
	ListsFailed bool

	// AllowHTTP permits http:// beyond this machine, for the service and for its
	// boxes: keys then travel in the clear.
	AllowHTTP bool
	// Transport replaces the driver's own.
	Transport http.RoundTripper
	// Logger hears what no answer can carry; nil is silent.
	Logger *slog.Logger
}

const (
	defaultIdle       = box.Duration(20 * time.Minute)
	chartPausedLife   = box.Duration(60 * 24 * time.Hour)
	defaultMaxRun     = box.Duration(12 * time.Hour)
	defaultWorkingDir = "/"
	// resumeWait is what public clients allow for a start [S: init_timeout].
	resumeWait = 300 * time.Second
)

// Driver keeps the boxes of one installation at one service. It keeps no key of
// a box; all that it remembers is which of its own creates ended unclear.
type Driver struct {
	installation string
	opts         Options
	place        string // fingerprint
	api          *client
	locks        driver.Locks

	mu     sync.Mutex
	doubts map[string]time.Time // box name: when its create ended unclear
	grace  time.Duration
	now    func() time.Time
}

var (
	accountForm      = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,39}$`)
	runtimeClassForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
)

// New checks the settings and sends nothing. Invalid names the field.
func New(installation string, opts Options) (*Driver, error) {
	if !driver.ValidInstallation(installation) {
		return nil, box.Invalidf("installation", "must be 8 lower-case hex digits")
	}
	base, err := opts.base()
	if err != nil {
		return nil, err
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	opts = opts.filled()
	d := &Driver{
		installation: installation,
		place:        fingerprint(base, opts),
		api:          newClient(base, opts),
		doubts:       map[string]time.Time{},
		grace:        startGrace,
		now:          time.Now,
	}
	opts.APIKey = "" // only the client needs it
	d.opts = opts
	return d, nil
}

// base reads the address of the service.
func (o Options) base() (*url.URL, error) {
	base, err := url.Parse(o.URL)
	switch {
	case o.URL == "":
		return nil, box.Invalidf("url", "is not set; give the base address, such as https://runtime.all-hands.dev")
	case err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http":
		return nil, box.Invalidf("url", "is not an http or https address")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, box.Invalidf("url", "must hold neither a user nor a query; the key goes into api_key")
	case base.Scheme == "http" && !o.AllowHTTP && !loopback(base.Hostname()):
		return nil, box.Invalidf("url", "http:// would send the API key in the clear; use https://, or set plain_http to allow")
	}
	base.Host = strings.ToLower(base.Host)
	base.Path, base.RawPath = strings.TrimRight(base.Path, "/"), ""
	return base, nil
}

func (o Options) check() error {
	unprintable := func(c rune) bool { return c <= ' ' || c >= 127 }
	switch {
	case o.APIKey == "":
		return box.Invalidf("api_key", "is not set")
	case strings.ContainsFunc(o.APIKey.Reveal(), unprintable):
		return box.Invalidf("api_key", "holds a space or a character that no header can carry")
	case o.Account != "" && !accountForm.MatchString(o.Account):
		return box.Invalidf("account", "%q is not a name for an account; use 1 to 40 of a-z, 0-9, \".\" and \"-\"", o.Account)
	case strings.ContainsFunc(o.Image, unprintable):
		return box.Invalidf("image", "holds a space or a character that no image has")
	case len(o.Command) > 0 && !strings.HasPrefix(o.Command[0], "/"):
		return box.Invalidf("agent_server", "must begin with the absolute path of a program in the image")
	case o.WorkingDir != "" && !strings.HasPrefix(o.WorkingDir, "/"):
		return box.Invalidf("working_dir", "%q is not an absolute path", o.WorkingDir)
	case !slices.Contains([]int{0, 1, 2, 4, 8}, o.ResourceFactor):
		return box.Invalidf("resource_factor", "%d is not a size; use 1, 2, 4 or 8", o.ResourceFactor)
	case o.RuntimeClass != "" && !runtimeClassForm.MatchString(o.RuntimeClass):
		return box.Invalidf("runtime_class", "%q is not the name of a runtime class, such as \"sysbox-runc\"", o.RuntimeClass)
	case o.PausedLife == 0:
		return box.Invalidf("paused_life", "is not set; give the install's RUNTIME_DEAD_SECONDS (60d in the chart since Jun 2026, 3d with Replicated, 1d before), or never")
	}
	for field, d := range map[string]box.Duration{"idle_reaper": o.IdleReaper, "paused_life": o.PausedLife, "max_run": o.MaxRun} {
		if d > 0 && d < box.Duration(time.Minute) || d < 0 && d != box.Never {
			return box.Invalidf(field, "%s is too short for what a provider does by itself; the least is 1m", time.Duration(d))
		}
	}
	return nil
}

// filled returns o with its defaults.
func (o Options) filled() Options {
	orElse := func(d *box.Duration, other box.Duration) {
		if *d == 0 {
			*d = other
		}
	}
	orElse(&o.IdleReaper, defaultIdle)
	orElse(&o.PausedLife, chartPausedLife)
	orElse(&o.MaxRun, defaultMaxRun)
	if len(o.Command) == 0 {
		o.Command = []string{"/usr/local/bin/openhands-agent-server", "--port", "60000"}
	}
	if o.WorkingDir == "" {
		o.WorkingDir = defaultWorkingDir
	}
	if o.ResourceFactor == 0 {
		o.ResourceFactor = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// fingerprint names the service and the account. The key is in it as a short
// digest that belongs to this use and this address alone.
func fingerprint(base *url.URL, o Options) string {
	if o.Account != "" {
		return base.String() + " account " + o.Account
	}
	sum := sha256.Sum256([]byte("boxkeeper runtime-api fingerprint 1\x00" + base.String() + "\x00" + o.APIKey.Reveal()))
	return base.String() + " key " + hex.EncodeToString(sum[:8])
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	at, err := netip.ParseAddr(host)
	return err == nil && at.IsLoopback()
}

// Row returns what the driver claims with opts, without sending anything.
// Without a PausedLife it is that of the public chart.
func Row(opts Options) box.Capabilities {
	o := opts.filled()
	row := box.Capabilities{
		Driver:       "runtimeapi",
		Suspend:      box.Yes,
		MemoryKept:   box.No, // the pod ends, its volume stays
		SameIdentity: box.Yes,
		URLStable:    box.Yes,
		KeyStable:    box.No, // each resume makes a new one [OpenHands PR 14001, 17 Apr 2026]
		// The reaper asks the agent-server itself; only what that counts as work moves
		// its clock [chart, 21 Aug 2026].
		LookingIsUse:       box.No,
		List:               box.No,
		Watch:              box.No,
		ExportNeedsRunning: box.Yes,
		Fence:              box.No,
		NativeIdle:         box.No,
		Adopt:              box.No, // a session cannot be renamed, and its name is the only mark
		NativeAdjust:       box.No,
		Deepen:             box.No,
		Lead:               box.LeadOurs,
		MaxRun:             box.Span(o.MaxRun.Std()),
		PausedLife:         box.Span(o.PausedLife.Std()),
		ResumeWait:         box.Span(resumeWait),
		SuspendProof:       "/sessions says paused, twice",
		DeleteProof:        "after /stop, /sessions says 404 or stopped twice under the same key, and /list does not show the box",
		Untested:           "all of it: there was no account; the fake is driven by the public Python client",
	}
	if o.ListsFailed {
		row.List = box.Yes
	}
	if !o.IdleReaper.IsNever() {
		// It is fixed by the install: least and most are the same.
		row.NativeIdle, row.Lead = box.Yes, box.LeadProvider
		row.NativeIdleLeast, row.NativeIdleMost = box.Span(o.IdleReaper), box.Span(o.IdleReaper)
	}
	return row
}

// Capabilities returns the row.
func (d *Driver) Capabilities() box.Capabilities { return Row(d.opts) }

// Fingerprint returns the address and the account, or a digest of the key. No
// call tells whose the key is, so nothing is read.
func (d *Driver) Fingerprint(ctx context.Context) (string, error) {
	if err := driver.Ended(ctx); err != nil {
		return "", err
	}
	return d.place, nil
}

// ErrorClass maps the errors of this driver.
func (d *Driver) ErrorClass(err error) (box.Class, time.Duration) { return driver.ClassOf(err) }

// own checks that ref is this installation's and was made here.
func (d *Driver) own(ctx context.Context, ref box.Ref) error {
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	identity, ok := driver.IdentityOf(ref)
	switch {
	case !ok || identity.Installation != d.installation:
		return box.Errorf(box.ClassFailedPrecondition, "box %q, epoch %d, is not of installation %s", ref.Name, ref.Epoch, d.installation)
	case ref.Fingerprint != d.place:
		return box.Errorf(box.ClassFailedPrecondition, "the box was made in %q, this is %q", ref.Fingerprint, d.place)
	case !httpdriver.PathSafe(ref.ID):
		return box.Errorf(box.ClassFailedPrecondition, "the ref of box %s lacks the service's own id, or holds one that is none", ref.Name)
	}
	return nil
}
