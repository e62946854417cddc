package local

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

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
	SuspendStop   SuspendKind = "stop"   // processes end, the directory stays
	SuspendFreeze SuspendKind = "freeze" // processes stand still and keep their memory; needs Linux
)

// Options configures an instance. Dir and Command are required.
type Options struct {
	// Dir is the absolute path of the instance's directory. It is made if it is
	// not there.
	Dir string
	// Command is the argv that starts boxd; its first word is an absolute path.
	// "--root <dir> --listen 127.0.0.1:0" is added.
	Command []string
	// AgentServer is the argv of an agent-server that boxd runs behind itself;
	// empty lets boxd stand alone.
	AgentServer []string
	// Suspend is the kind of suspend; a box suspended in one kind is resumed
	// rightly after a change.
	Suspend SuspendKind
	// StartTimeout bounds the wait until a started box answers, 60 s by default.
	StartTimeout time.Duration
	// StopTimeout is how long an orderly end may take before it is forced, 20 s
	// by default.
	StopTimeout time.Duration
	// Path is the PATH of boxes; the usual system directories by default.
	Path string
	// Logger hears what no answer can carry; nil is silent.
	Logger *slog.Logger
}

const (
	defaultStart = 60 * time.Second
	defaultStop  = 20 * time.Second
	defaultPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// forced bounds the wait for processes that were killed: they end at once
	// unless the kernel holds them in a call.
	forced = 10 * time.Second
)

// Driver keeps the boxes of one installation in one directory. It holds no
// state that another driver on the same directory would miss, except why a
// process that it started itself has ended.
type Driver struct {
	installation string
	opts         Options
	place        place

	mu       sync.Mutex
	children map[string]*child // by box name
}

// New opens the directory, and makes it when it is not there. It refuses one
// that was moved, emptied or is not mounted.
func New(installation string, opts Options) (*Driver, error) {
	if !driver.ValidInstallation(installation) {
		return nil, box.Invalidf("installation", "must be 8 lower-case hex digits")
	}
	if err := opts.Check(); err != nil {
		return nil, err
	}
	if opts.Suspend == "" {
		opts.Suspend = SuspendStop
	}
	if opts.StartTimeout == 0 {
		opts.StartTimeout = defaultStart
	}
	if opts.StopTimeout == 0 {
		opts.StopTimeout = defaultStop
	}
	if opts.Path == "" {
		opts.Path = defaultPath
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	at, err := openPlace(opts.Dir)
	if err != nil {
		return nil, err
	}
	return &Driver{installation: installation, opts: opts, place: at, children: map[string]*child{}}, nil
}

// Check refuses options as New does, with the field named, and makes nothing.
func (o Options) Check() error {
	switch {
	case !filepath.IsAbs(o.Dir):
		return box.Invalidf("dir", "%q is not an absolute path", o.Dir)
	case len(o.Command) == 0 || !filepath.IsAbs(o.Command[0]):
		return box.Invalidf("command", "must begin with the absolute path of a program that serves a box")
	case o.Suspend != "" && o.Suspend != SuspendStop && o.Suspend != SuspendFreeze:
		return box.Invalidf("suspend", "%q is not known; use \"stop\" or \"freeze\"", o.Suspend)
	case o.Suspend == SuspendFreeze && !canFreeze:
		return box.Invalidf("suspend", "\"freeze\" needs Linux; use \"stop\" on this system")
	case o.StartTimeout < 0:
		return box.Invalidf("start_timeout", "must not be negative")
	case o.StopTimeout < 0:
		return box.Invalidf("stop_timeout", "must not be negative")
	}
	return nil
}

// Row returns what the driver claims with opts, without opening anything.
func Row(opts Options) box.Capabilities {
	row := box.Capabilities{
		Driver:             "local",
		Suspend:            box.Yes,
		MemoryKept:         box.No,
		SameIdentity:       box.Yes,
		URLStable:          box.No,
		KeyStable:          box.Yes,
		LookingIsUse:       box.No,
		List:               box.Yes,
		Watch:              box.No,
		ExportNeedsRunning: box.Yes,
		Fence:              box.Yes,
		NativeIdle:         box.No,
		Adopt:              box.Yes,
		NativeAdjust:       box.No,
		Deepen:             box.No,
		Lead:               box.LeadOurs,
		ResumeWait:         box.Span(opts.StartTimeout),
		SuspendProof:       "no process of the box left, its directory there",
		DeleteProof:        "directory and processes gone, on the same machine and engine id",
	}
	if canWatch {
		row.Watch = box.Yes
	}
	if row.ResumeWait == 0 {
		row.ResumeWait = box.Span(defaultStart)
	}
	if opts.Suspend == SuspendFreeze {
		row.MemoryKept, row.Deepen = box.Yes, box.Yes
		row.SuspendProof = "every process of the box stopped, its directory there"
	}
	return row
}

// Capabilities returns the row.
func (d *Driver) Capabilities() box.Capabilities { return Row(d.opts) }

// Fingerprint reads the ids of the directory and of the machine afresh.
func (d *Driver) Fingerprint(ctx context.Context) (string, error) {
	if err := driver.Ended(ctx); err != nil {
		return "", err
	}
	return d.place.fingerprint()
}

// List returns the boxes that a record names. A record that cannot be read is
// an error: the list would be partial.
func (d *Driver) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	if err := driver.Ended(ctx); err != nil {
		return nil, err
	}
	if installation != d.installation {
		return nil, box.Errorf(box.ClassFailedPrecondition, "this driver is of installation %s, not %s", d.installation, installation)
	}
	print, err := d.place.fingerprint()
	if err != nil {
		return nil, err
	}
	found, err := d.found(ctx)
	if err != nil {
		return nil, err
	}
	table, err := d.scan() // one for all, and younger than the records
	if err != nil {
		return nil, err
	}
	var out []driver.Listed
	for _, rec := range found {
		if err := driver.Ended(ctx); err != nil {
			return nil, err
		}
		name := rec.Identity.Name()
		seen, err := d.see(name, rec, table)
		if err != nil {
			return nil, err
		}
		now, err := d.place.read(name)
		if err != nil {
			return nil, err
		}
		if !rec.same(now) {
			// Changed since the table was read: a reading of its own.
			if seen, now, err = d.look(name); err != nil {
				return nil, err
			}
		}
		if now != nil {
			out = append(out, driver.Listed{Identity: now.Identity, Observation: d.observation(now.ref(print), seen)})
		}
	}
	return out, nil
}

// found reads the records of this installation.
func (d *Driver) found(ctx context.Context) ([]*record, error) {
	names, err := d.place.records()
	if err != nil {
		return nil, err
	}
	var out []*record
	for _, name := range names {
		if err := driver.Ended(ctx); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(name, "bk-"+d.installation+"-") {
			continue
		}
		rec, err := d.place.read(name)
		if err != nil {
			return nil, err
		}
		if rec != nil { // nil: deleted since the directory was read
			out = append(out, rec)
		}
	}
	return out, nil
}

// ErrorClass maps the errors of this driver.
func (d *Driver) ErrorClass(err error) (box.Class, time.Duration) { return driver.ClassOf(err) }

// own checks that ref is this installation's and was made here. present is
// false for an id that this directory never gives.
func (d *Driver) own(ctx context.Context, ref box.Ref) (present bool, err error) {
	if err := driver.Ended(ctx); err != nil {
		return false, err
	}
	identity, ok := driver.IdentityOf(ref)
	if !ok || identity.Installation != d.installation {
		return false, box.Errorf(box.ClassFailedPrecondition, "box %q, epoch %d, is not of installation %s", ref.Name, ref.Epoch, d.installation)
	}
	print, err := d.place.fingerprint()
	if err != nil {
		return false, err
	}
	if print != ref.Fingerprint {
		return false, box.Errorf(box.ClassFailedPrecondition, "the box was made in %q, this is %q", ref.Fingerprint, print)
	}
	return ref.ID == ref.Name, nil
}

// ioError wraps a failed file operation of ours. None of them means that a box
// is gone.
func ioError(what string, err error) error {
	class := box.ClassUnknown
	switch {
	case errors.Is(err, fs.ErrPermission):
		class = box.ClassUnauthorized
	case isFull(err):
		class = box.ClassExhausted
	}
	return box.Errorf(class, "%s: %w", what, err)
}
