package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	operatorservicepb "go.temporal.io/api/operatorservice/v1"
	workflowservicepb "go.temporal.io/api/workflowservice/v1"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/notices"
)

const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"

	// skewMost is how far two clocks may be apart. The engine's clock is the
	// only one that decides; a wrong one here misleads people who read ages.
	skewMost = 30 * time.Second
)

// checked is one line of check.
type checked struct {
	What   string `json:"check"`
	Result string `json:"result"` // ok, warn or fail
	Text   string `json:"text"`

	code int
}

type checks struct {
	OK     bool      `json:"ok"`
	Checks []checked `json:"checks"`

	told map[string]bool // instances that were said to be off
}

// off says once that an instance cannot be served from this machine, and what
// more is known of it.
func (c *checks) off(instance string, why error, more string) {
	if !c.told[instance] {
		c.warn("provider "+instance, "it is off: %v%s", why, more)
	}
	if c.told == nil {
		c.told = map[string]bool{}
	}
	c.told[instance] = true
}

func (c *checks) ok(what, form string, values ...any) {
	c.Checks = append(c.Checks, checked{What: what, Result: checkOK, Text: fmt.Sprintf(form, values...)})
}

func (c *checks) warn(what, form string, values ...any) {
	c.Checks = append(c.Checks, checked{What: what, Result: checkWarn, Text: fmt.Sprintf(form, values...)})
}

func (c *checks) fail(what string, err error) {
	c.Checks = append(c.Checks, checked{What: what, Result: checkFail, Text: err.Error(), code: exitCode(err)})
}

func (a *Shared) checkCommand() *cobra.Command {
	var ask asking
	c := &cobra.Command{
		Use: "check", GroupID: groupRun, Short: "Check Temporal, workers, the export store, providers, webhooks, keys and clocks", Args: args("nothing", 0, 0),
		Long: "Looks at everything that a worker needs from this machine, and whether the workers that are up are of this machine's installation. " +
			"It makes nothing: to an export store that is there it writes one probe and takes it away again, and it sends each webhook one event of type " + notices.TypePing + ". The exit code is that of the first failure.",
	}
	ask.bindTimeout(c, "1m")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := a.Config()
		if err != nil {
			return err
		}
		ctx, cancel := ask.bound(c.Context())
		defer cancel()
		var out checks
		out.ok("configuration", "%s", orDefault(cfg.File, "defaults and environment"))
		a.checkTemporal(ctx, c, cfg, &out)
		a.checkStore(ctx, cfg, &out)
		a.checkInstallation(cfg, &out)
		a.checkProviders(ctx, cfg, &out)
		a.checkWebhooks(ctx, cfg, &out)
		out.OK = !slices.ContainsFunc(out.Checks, func(one checked) bool { return one.Result == checkFail })
		if err := a.show(c, out, func(p *page) { p.checks(out) }); err != nil {
			return err
		}
		for _, one := range out.Checks {
			if one.Result == checkFail {
				return &silent{one.code}
			}
		}
		return nil
	}
	return c
}

func (p *page) checks(out checks) {
	var rows [][]string
	for _, one := range out.Checks {
		rows = append(rows, []string{one.Result, one.What, one.Text})
	}
	p.table(rows)
}

func orDefault(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func (a *Shared) checkTemporal(ctx context.Context, c *cobra.Command, cfg config.Config, out *checks) {
	s, err := a.connect(c)
	if err != nil {
		out.fail("temporal", err)
		return
	}
	defer s.close()
	info, err := s.client.WorkflowService().GetSystemInfo(ctx, &workflowservicepb.GetSystemInfoRequest{})
	if err != nil {
		out.fail("temporal", s.engineError("ask Temporal for its version", err))
		return
	}
	out.ok("temporal", "%s, server %s", s.address, info.GetServerVersion())
	namespace, err := s.client.WorkflowService().DescribeNamespace(ctx, &workflowservicepb.DescribeNamespaceRequest{Namespace: s.namespace})
	if err != nil {
		out.fail("namespace", s.engineError("look at namespace "+s.namespace, err))
		return
	}
	kept := namespace.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
	out.ok("namespace", "%s, keeps closed workflows for %s", s.namespace, box.Duration(kept))
	s.checkAttributes(ctx, out)
	s.checkPollers(ctx, cfg, out)
}

// attributeTypes are the search attributes of the contract.
func attributeTypes() map[string]enumspb.IndexedValueType {
	return map[string]enumspb.IndexedValueType{
		box.SearchProvider: enumspb.INDEXED_VALUE_TYPE_KEYWORD, box.SearchState: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		box.SearchOwner: enumspb.INDEXED_VALUE_TYPE_KEYWORD, box.SearchNextActionAt: enumspb.INDEXED_VALUE_TYPE_DATETIME,
		box.SearchSuspendedSince: enumspb.INDEXED_VALUE_TYPE_DATETIME, box.SearchEpoch: enumspb.INDEXED_VALUE_TYPE_INT,
		box.SearchBlocked: enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	}
}

func (s *session) checkAttributes(ctx context.Context, out *checks) {
	const what = "search attributes"
	there, err := s.client.OperatorService().ListSearchAttributes(ctx, &operatorservicepb.ListSearchAttributesRequest{Namespace: s.namespace})
	if err != nil {
		out.fail(what, s.engineError("list search attributes", err))
		return
	}
	var wrong []string
	wanted := attributeTypes()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		have, ok := there.GetCustomAttributes()[name]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Sprintf("%s (%s) is missing", name, wanted[name]))
		case have != wanted[name]:
			wrong = append(wrong, fmt.Sprintf("%s is %s, not %s", name, have, wanted[name]))
		}
	}
	if len(wrong) > 0 {
		out.fail(what, box.Errorf(box.ClassFailedPrecondition, "%s; add them to namespace %s with Temporal's operator command \"search-attribute create\"", strings.Join(wrong, ", "), s.namespace))
		return
	}
	out.ok(what, "%d of %d are there", len(wanted), len(wanted))
}

func (s *session) checkPollers(ctx context.Context, cfg config.Config, out *checks) {
	of := owners{}
	look := func(what, queue string, kind enumspb.TaskQueueType, instance config.Provider) {
		seen, err := s.client.DescribeTaskQueue(ctx, queue, kind)
		switch {
		case err != nil:
			out.fail(what, s.engineError("look at task queue "+queue, err))
			return
		case len(seen.GetPollers()) == 0:
			if why := offHere(cfg, instance); why != nil {
				out.off(instance.Name, why, "; no worker elsewhere serves it either (task queue "+queue+")")
				break
			}
			out.warn(what, "no worker serves the task queue %s; start one with \"%s worker\"", queue, s.root.Name())
		default:
			out.ok(what, "%s served on %s", plural(len(seen.GetPollers()), "poller"), queue)
		}
		of.add(seen)
	}
	look("workers", box.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW, config.Provider{})
	for _, p := range cfg.Providers {
		look("workers of "+p.Name, box.ActivityQueue(p.Name), enumspb.TASK_QUEUE_TYPE_ACTIVITY, p)
	}
	checkOwners(cfg, of.ids(), out)
}

// checkOwners compares the installations whose workers serve this Temporal with
// each other and with the one of this machine: a worker of another one answers
// for boxes whose keys it does not have.
func checkOwners(cfg config.Config, of []string, out *checks) {
	const what = "installation of the workers"
	here, err := cfg.ReadInstallation()
	switch {
	case len(of) == 0: // no worker, or only older ones, which do not tell
	case len(of) > 1:
		out.fail(what, box.Errorf(box.ClassFailedPrecondition, "workers of the installations %s serve one namespace and take each other's work; %s", strings.Join(of, " and "), oneNamespace))
	case err != nil:
		out.ok(what, "%s; this machine has no installation key to compare it with", of[0])
	case here.ID != of[0]:
		out.fail(what, box.Errorf(box.ClassFailedPrecondition, "the workers are of installation %s, this machine's key is of %s: a worker started here would not find the boxes; use the data directory or the installation secret of %s, or another Temporal", of[0], here.ID, of[0]))
	default:
		out.ok(what, "%s, that of this machine", here.ID)
	}
}

func (a *Shared) checkStore(ctx context.Context, cfg config.Config, out *checks) {
	const what = "export store"
	if u, err := url.Parse(cfg.Exports); err == nil && u.Scheme == "file" && filepath.IsAbs(u.Path) {
		if _, err := os.Stat(u.Path); errors.Is(err, fs.ErrNotExist) {
			// Opening would make it, and looking makes nothing.
			out.warn(what, "there is no directory %s yet; the first worker makes it", filepath.Clean(u.Path))
			return
		}
	}
	store, err := openStore(ctx, cfg, exports.Options{}, nil)
	if err != nil {
		out.fail(what, err)
		return
	}
	defer store.Close() //nolint:errcheck // the check itself said what there is to say
	if err := store.Check(ctx); err != nil {
		out.fail(what, err)
		return
	}
	how := "in the clear"
	if len(cfg.Recipients) > 0 {
		how = "encrypted for " + plural(len(cfg.Recipients), "recipient")
	}
	out.ok(what, "%s takes, keeps and protects objects, %s", cfg.Exports, how)
	if open, yes := plainEndpoint(cfg.Exports); yes {
		out.warn(what, "%s is reached without TLS: everyone on the way can read and change what is stored; use https:// there", open)
	}
	a.checkClock(cfg, out)
}

// plainEndpoint returns the endpoint of a bucket that is reached over the network
// in the clear.
func plainEndpoint(rawURL string) (string, bool) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "s3" {
		return "", false
	}
	endpoint, err := url.Parse(u.Query().Get("endpoint"))
	if err != nil || endpoint.Scheme != "http" {
		return "", false
	}
	at := net.ParseIP(endpoint.Hostname())
	return endpoint.Host, endpoint.Hostname() != "localhost" && (at == nil || !at.IsLoopback())
}

// checkClock compares this process's clock with that of the file system that
// the exports are on, which is another machine's where it is a network one.
// Temporal's interface tells no time.
func (a *Shared) checkClock(cfg config.Config, out *checks) {
	const what = "clock"
	u, err := url.Parse(cfg.Exports)
	if err != nil || u.Scheme != "file" {
		out.warn(what, "nothing to compare with: only a file:// store tells its time")
		return
	}
	f, err := os.CreateTemp(u.Path, ".clock-*")
	if err != nil {
		out.fail(what, box.Errorf(box.ClassUnknown, "make a file in the export store: %w", err))
		return
	}
	defer os.Remove(f.Name())
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		out.fail(what, box.Errorf(box.ClassUnknown, "read the time of the export store: %w", err))
		return
	}
	apart := a.env.Now().Sub(info.ModTime()).Abs()
	if apart > skewMost {
		out.fail(what, box.Errorf(box.ClassFailedPrecondition, "this machine and the export store's file system (%s) are %s apart; set the clocks by NTP", filepath.Clean(u.Path), box.Duration(apart.Round(time.Second))))
		return
	}
	out.ok(what, "within %s of the export store's file system; Temporal tells no time to compare with", box.Duration(skewMost))
}

func (a *Shared) checkInstallation(cfg config.Config, out *checks) {
	const what = "installation key"
	here, err := cfg.ReadInstallation()
	switch {
	case box.ClassOf(err) == box.ClassNotFound:
		out.warn(what, "there is none yet; the first worker makes it as %s", cfg.InstallationSecret)
	case err != nil:
		out.fail(what, err)
	default:
		out.ok(what, "installation %s, from %s", here.ID, cfg.InstallationSecret)
	}
}
