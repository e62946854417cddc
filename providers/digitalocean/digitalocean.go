package digitalocean

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/godo"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

var (
	_ driver.Driver  = (*Driver)(nil)
	_ driver.Lister  = (*Driver)(nil)
	_ driver.Adopter = (*Driver)(nil)
)

// Options configures an instance. Token is required.
type Options struct {
	// Token is a personal access token of the team. It needs the scopes
	// agents:read, agents:create and agents:delete, and account:read for the
	// fingerprint.
	Token box.Secret
	// Region is the slug of the region, such as "mem1"; empty is "ric1", which the
	// host without a region serves. A box lives in the region that it was made in
	// and is a 404 in every other, so a change leaves the boxes behind.
	Region string
	// BaseURL replaces both hosts of the API, for tests; it has no path.
	BaseURL string
	// Template is the sandbox template, "openhands" by default; a box whose spec
	// names an image gets that instead. Only an OpenHands template serves an
	// agent-server on port 8000.
	Template string
	// Size is the slug of the sandbox size; empty leaves it to the service, which
	// takes mars-2vcpu-4gb [docs Nov 2026].
	Size string
	// AgentKind is the agent of the manifest, "openhands" by default. No setting of
	// an instance sets it or what is below; they are for tests and for programs
	// that embed the driver.
	AgentKind string
	// Transport carries the requests; the default has timeouts for connecting.
	Transport http.RoundTripper
	// PollEvery is how often a session is read while a call waits for it, and how
	// long an address is given again without asking: 2 s by default, since a token
	// has 250 requests a minute for all boxes.
	PollEvery time.Duration
	// TunnelIdle is how long a tunnel is kept that nobody uses, 5 min by default.
	TunnelIdle time.Duration
	// Logger hears what no answer can carry; nil is silent.
	Logger *slog.Logger
}

const (
	// defaultRegion is what the host without a region stands for [godo 1.240.0].
	defaultRegion     = "ric1"
	defaultTemplate   = "openhands"
	defaultAgent      = "openhands"
	defaultPoll       = 2 * time.Second
	defaultTunnelIdle = 5 * time.Minute
	// resumeWait bounds a resume until the agent-server answers: 120 s for the
	// call, as the clients of the service allow, and a minute for the server.
	resumeWait = 3 * time.Minute
	// accountLife is how long the team of the token is remembered. A token belongs
	// to one team for its whole life and the host never changes, so this is only
	// for what nobody expects; before a box is said to be gone it is read afresh.
	accountLife = 5 * time.Minute
)

var (
	slugForm = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$`)
	wordForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$`)
)

// Driver keeps the boxes of one installation in one region of one team. It holds
// no state that another worker would miss.
type Driver struct {
	installation string
	opts         Options
	region       string
	api          *api
	names        driver.Locks
	addresses    addresses
	tunnels      tunnels

	mu      sync.Mutex
	account account
	swept   time.Time            // when environments were last looked through
	configs map[string]string    // names of environments by id; they never change
	marks   map[string]time.Time // when a session that we took over was last seen to be ours
}

// account is what was read of the token's team.
type account struct {
	print string
	at    time.Time
}

// New returns the instance of an installation. It sends nothing. Invalid names
// the field.
func New(installation string, o Options) (*Driver, error) {
	if !driver.ValidInstallation(installation) {
		return nil, box.Invalidf("installation", "must be 8 lower-case hex digits")
	}
	o.Region = strings.ToLower(strings.TrimSpace(o.Region))
	for _, text := range []struct {
		field, value string
		form         *regexp.Regexp
	}{{"region", o.Region, slugForm}, {"template", o.Template, wordForm}, {"size", o.Size, wordForm}, {"agent_kind", o.AgentKind, wordForm}} {
		if text.value != "" && !text.form.MatchString(text.value) {
			return nil, box.Invalidf(text.field, "%q is not a name that DigitalOcean gives", text.value)
		}
	}
	switch {
	case o.Token == "":
		return nil, box.Invalidf("token", "is empty; give a personal access token of the team")
	case strings.ContainsFunc(o.Token.Reveal(), func(c rune) bool { return c <= ' ' || c > '~' }):
		return nil, box.Invalidf("token", "holds spaces or other characters that no token has")
	case o.PollEvery < 0:
		return nil, box.Invalidf("poll_every", "must not be negative")
	case o.TunnelIdle < 0:
		return nil, box.Invalidf("tunnel_idle", "must not be negative")
	}
	if o.BaseURL != "" {
		at, err := url.Parse(o.BaseURL)
		if err != nil || at.Host == "" || at.User != nil || at.RawQuery != "" || (at.Path != "" && at.Path != "/") || (at.Scheme != "https" && at.Scheme != "http") {
			// Its session calls start at the root of the host, whatever path the base has [godo 1.240.0].
			return nil, box.Invalidf("base_url", "must be the root of a host, such as https://api.example.com, with no path")
		}
	}
	setDefault(&o.Template, defaultTemplate)
	setDefault(&o.AgentKind, defaultAgent)
	setDefault(&o.PollEvery, defaultPoll)
	setDefault(&o.TunnelIdle, defaultTunnelIdle)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	region := o.Region
	setDefault(&region, defaultRegion)
	calls, err := newAPI(installation, o)
	if err != nil {
		return nil, err
	}
	d := &Driver{installation: installation, opts: o, region: region, api: calls, configs: map[string]string{}, marks: map[string]time.Time{}}
	d.tunnels.open = map[string]*tunnel{}
	return d, nil
}

func setDefault[T comparable](value *T, to T) {
	if zero := *new(T); *value == zero {
		*value = to
	}
}

// Row returns what the driver claims, the same for all options.
func Row(Options) box.Capabilities {
	return box.Capabilities{
		Driver:       "digitalocean",
		Suspend:      box.Yes,
		MemoryKept:   box.Yes,
		SameIdentity: box.Yes,
		URLStable:    box.No, // the ingress host goes with the suspend
		KeyStable:    box.Yes,
		// No page says what counts as use; requests through the ingress and tunnel
		// dials were seen to [docs and clients, Oct 2026], so each is taken for one.
		LookingIsUse:       box.Yes,
		List:               box.Yes,
		Watch:              box.No, // a pause makes no event
		ExportNeedsRunning: box.Yes,
		Fence:              box.No,
		NativeIdle:         box.Yes,
		Adopt:              box.Yes,
		NativeAdjust:       box.No,
		Deepen:             box.No, // a session is paused in one way
		Lead:               box.LeadOurs,
		ResumeWait:         box.Span(resumeWait),
		SuspendProof:       "the session is PAUSED; the reason that the service gives is told with it",
		DeleteProof:        "the session is DESTROYED, or a 404 in the right region with a token of the right team, twice",
		Untested:           "everything: it was only run against a fake of the service; whether the ingress keeps the team's token from the box",
	}
}

// Capabilities returns the row.
func (d *Driver) Capabilities() box.Capabilities { return Row(d.opts) }

// Fingerprint returns the team of the token and the region. Unauthorized: the
// token is not valid, or it lacks the scope account:read.
func (d *Driver) Fingerprint(ctx context.Context) (string, error) {
	if err := driver.Ended(ctx); err != nil {
		return "", err
	}
	d.mu.Lock()
	known := d.account
	d.mu.Unlock()
	if known.print != "" && time.Since(known.at) < accountLife {
		return known.print, nil
	}
	return d.freshFingerprint(ctx)
}

func (d *Driver) freshFingerprint(ctx context.Context) (string, error) {
	at := time.Now()
	id, err := d.api.team(ctx)
	if err != nil {
		return "", err
	}
	print := "digitalocean/" + id + "/" + d.region
	d.mu.Lock()
	defer d.mu.Unlock()
	d.account = account{print: print, at: at}
	return print, nil
}

// List returns the sessions of this installation: the live ones, suspended ones
// included, and those that failed.
func (d *Driver) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	if err := driver.Ended(ctx); err != nil {
		return nil, err
	}
	if installation != d.installation {
		return nil, box.Errorf(box.ClassFailedPrecondition, "this driver is of installation %s, not %s", d.installation, installation)
	}
	print, err := d.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	shown, err := d.shown(ctx)
	if err != nil {
		return nil, err
	}
	environments, err := d.api.environments(ctx)
	if err != nil {
		return nil, err
	}
	d.learn(environments...)
	marks := claims(environments)
	var out []driver.Listed
	for _, s := range shown {
		if !validID(s.ID) || s.Status == godo.HostedAgentSessionStatusDestroyed {
			continue
		}
		identity, mine, err := d.whose(ctx, marks, s)
		if err != nil {
			return nil, err
		}
		if mine {
			ref := box.Ref{ID: s.ID, Name: identity.Name(), Epoch: identity.Epoch, Fingerprint: print}
			out = append(out, driver.Listed{Identity: identity, Observation: d.observation(ref, s)})
		}
	}
	return out, nil
}

// shown returns the sessions of the team that are there: the live ones and those
// that failed. The plain list leaves out what failed [docs 13 Nov 2026], and the
// filter for all would bring every session that the team ever had.
func (d *Driver) shown(ctx context.Context) ([]session, error) {
	live, err := d.api.sessions(ctx, "", godo.HostedAgentSessionListOptions{})
	if err != nil {
		return nil, err
	}
	failed, err := d.api.sessions(ctx, "", godo.HostedAgentSessionListOptions{Status: godo.HostedAgentSessionStatusFailed})
	if err != nil {
		return nil, err
	}
	return once(append(live, failed...)), nil
}

// once keeps the last of what is listed twice: a page moved, or it failed between
// the two lists.
func once(all []session) []session {
	at := map[string]int{}
	var out []session
	for _, s := range all {
		if i, twice := at[s.ID]; twice {
			out[i] = s
			continue
		}
		at[s.ID] = len(out)
		out = append(out, s)
	}
	return out
}

// whose returns the identity of a session of ours, made or taken over.
func (d *Driver) whose(ctx context.Context, marks map[string]claim, s session) (box.Identity, bool, error) {
	identity, ok := d.identityOf(s.Name)
	if !ok {
		return d.adopted(ctx, marks, s)
	}
	if s.ConfigID == "" { // a list without a box of ours is read as its end
		return box.Identity{}, false, box.Errorf(box.ClassUnknown, "session %s has a name of ours and does not say from which environment it was made; look again", s.ID)
	}
	mine, err := d.made(ctx, s)
	return identity, mine, err
}

// ErrorClass maps the errors of this driver.
func (d *Driver) ErrorClass(err error) (box.Class, time.Duration) { return driver.ClassOf(err) }

// own checks that ref is this installation's, was made here, and has an id that
// may be put into a path: godo escapes none.
func (d *Driver) own(ctx context.Context, ref box.Ref) error {
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	identity, ok := driver.IdentityOf(ref)
	switch {
	case !ok || identity.Installation != d.installation:
		return box.Errorf(box.ClassFailedPrecondition, "box %q, epoch %d, is not of installation %s", ref.Name, ref.Epoch, d.installation)
	case !validID(ref.ID):
		return box.Errorf(box.ClassFailedPrecondition, "%q is not the id of a session", ref.ID)
	}
	print, err := d.Fingerprint(ctx)
	if err != nil {
		return err
	}
	if print != ref.Fingerprint {
		return box.Errorf(box.ClassFailedPrecondition, "the box was made in %q, this is %q; point the instance back", ref.Fingerprint, print)
	}
	return nil
}

// wait is until the next look, or until ctx ends.
func (d *Driver) wait(ctx context.Context) error {
	timer := time.NewTimer(d.opts.PollEvery)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return driver.Ended(ctx)
	case <-timer.C:
		return nil
	}
}
