package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/telemetry"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/all"
	"github.com/openhands/boxkeeper/providers/local"
)

// openProviders opens every configured instance.
func openProviders(cfg config.Config, here config.Installation, logger *zap.Logger) ([]*providers.Provider, error) {
	keys, err := providers.NewKeySource(here.Secret)
	if err != nil {
		return nil, err
	}
	var out []*providers.Provider
	for _, p := range cfg.Providers {
		settings, err := settingsOf(p)
		if err != nil {
			return nil, err
		}
		settings.Local.Logger = telemetry.Slog(logger.With(zap.String("provider", p.Name)))
		instance, err := all.Open(p.Name, p.Driver, settings, &providers.Options{Installation: here.ID, Keys: keys})
		if err != nil {
			return nil, err
		}
		out = append(out, instance)
	}
	return out, nil
}

// settingsOf are the settings of an instance. Boxes of a local one run this
// very program as boxd.
func settingsOf(p config.Provider) (all.Settings, error) {
	self, err := os.Executable()
	if err != nil {
		return all.Settings{}, box.Errorf(box.ClassInternal, "find the path of this program, which boxes run: %w", err)
	}
	kind := local.SuspendStop
	if p.Suspend == "freeze" {
		kind = local.SuspendFreeze
	}
	return all.Settings{Local: local.Options{
		Dir: p.Dir, Command: []string{self, "boxd"}, AgentServer: p.AgentServer, Suspend: kind,
	}}, nil
}

// capabilities returns the row of a configured instance, and an empty one, of
// which nothing is known, where this machine does not know the instance: the
// workers may.
func (a *Shared) capabilities(name string) (box.Capabilities, error) {
	cfg, err := a.Config()
	if err != nil {
		return box.Capabilities{}, err
	}
	p, ok := cfg.Provider(name)
	if !ok {
		return box.Capabilities{}, nil
	}
	settings, err := settingsOf(p)
	if err != nil {
		return box.Capabilities{}, err
	}
	return local.Row(settings.Local), nil
}

// plan is [box.Plan] as far as this machine knows the provider. Of one that it does
// not know it cannot say that its own idle timer cannot lead: the workers refuse
// that, with the field named.
func plan(p box.Policy, row box.Capabilities) (box.Arrangement, error) {
	if row.Driver == "" && !p.Idle.IsNever() {
		p.Lead = ""
	}
	return box.Plan(p, row)
}

// checkProviders asks each instance where it is. It makes no key and no
// directory: without them there are no boxes yet.
func (a *Shared) checkProviders(ctx context.Context, cfg config.Config, out *checks) {
	here, err := cfg.ReadInstallation()
	if err != nil {
		out.warn("providers", "not looked at: they need the installation key")
		return
	}
	there := cfg
	there.Providers = nil
	for _, p := range cfg.Providers {
		checkAgentServer(p, out)
		if _, err := os.Stat(p.Dir); errors.Is(err, fs.ErrNotExist) {
			out.warn("provider "+p.Name, "there is no directory %s yet; the first worker makes it", p.Dir)
			continue
		}
		there.Providers = append(there.Providers, p)
	}
	opened, err := openProviders(there, here, zap.NewNop())
	if err != nil {
		out.fail("providers", err)
		return
	}
	for _, p := range opened {
		where, err := p.Fingerprint(ctx)
		if err != nil {
			out.fail("provider "+p.Name(), err)
			continue
		}
		row := p.Capabilities()
		out.ok("provider "+p.Name(), "%s at %s%s", row.Driver, where, ifText("; not tested live: ", row.Untested))
	}
}

// checkAgentServer looks for the program that runs in the boxes of an instance:
// without it they stay as they are made, and only their own log says why. A bare
// name is found by the PATH of a box, not by ours.
func checkAgentServer(p config.Provider, out *checks) {
	if len(p.AgentServer) == 0 || !filepath.IsAbs(p.AgentServer[0]) {
		return
	}
	what := "agent-server of " + p.Name
	if err := findAgentServer(p); err != nil {
		out.fail(what, err)
		return
	}
	out.ok(what, "%s is there and can be run", p.AgentServer[0])
}

func findAgentServer(p config.Provider) error {
	if _, err := exec.LookPath(p.AgentServer[0]); err != nil {
		return box.Errorf(box.ClassFailedPrecondition, "it cannot be run, so no box becomes running; install it, or set providers.%s.agent_server to where it is: %w", p.Name, err)
	}
	return nil
}

// AgentServerProblems says of each instance whose agent-server cannot be run that
// it cannot, as "check" does: a program that starts workers says it at once.
func AgentServerProblems(cfg config.Config) []string {
	var out []string
	for _, p := range cfg.Providers {
		if len(p.AgentServer) == 0 || !filepath.IsAbs(p.AgentServer[0]) {
			continue
		}
		if err := findAgentServer(p); err != nil {
			out = append(out, "agent-server of "+p.Name+": "+err.Error())
		}
	}
	return out
}
