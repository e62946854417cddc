package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/telemetry"
	"github.com/openhands/boxkeeper/providers"
	"github.com/openhands/boxkeeper/providers/all"
	"github.com/openhands/boxkeeper/providers/docker"
)

// openProviders opens every configured instance. One without credentials, or whose
// engine is not to be found out, is not served, and off says so, a line for each; it is an error where none is left.
func openProviders(cfg config.Config, here config.Installation, logger *zap.Logger, redactor *telemetry.Redactor) (opened []*providers.Provider, off []string, err error) {
	keys, err := providers.NewKeySource(here.Secret)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range cfg.Providers {
		settings, err := settingsOf(cfg, p, logger.With(zap.String("provider", p.Name)), redactor)
		if box.ClassOf(err) == box.ClassNotFound {
			off = append(off, "provider "+p.Name+" is off: "+err.Error())
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		instance, err := all.Open(p.Name, p.Driver, settings, &providers.Options{Installation: here.ID, Keys: keys})
		if err != nil {
			return nil, nil, err
		}
		opened = append(opened, instance)
	}
	if len(opened) == 0 && len(off) > 0 {
		return nil, nil, box.Errorf(box.ClassFailedPrecondition, "no provider instance is left to serve: %s", strings.Join(off, "; "))
	}
	return opened, off, nil
}

// settingsOf are the settings of an instance, with its credentials, which redactor
// masks from then on. NotFound: it has none, or no engine.
func settingsOf(cfg config.Config, p config.Provider, logger *zap.Logger, redactor *telemetry.Redactor) (all.Settings, error) {
	settings, err := rowSettings(p)
	if err != nil {
		return settings, err
	}
	if p.Driver == config.DriverDocker {
		engine, err := cfg.DockerEngine(p)
		if err != nil {
			return settings, err
		}
		logger.Info("the Docker engine is "+engine.Shown(), zap.String("from", engine.From))
		warn(logger, engine.Warning)
		settings.Docker.Host, settings.Docker.OwnTLS, settings.Docker.TLS = engine.Host, engine.OwnTLS, engine.TLS
	}
	found, err := cfg.ProviderCredentials(p)
	if err != nil {
		return settings, err
	}
	redactor.Add(found.Secret)
	if found.From != "" {
		logger.Info("credentials were found", zap.String("from", found.From))
	}
	warn(logger, found.Warning)
	settings.RuntimeAPI.APIKey, settings.DigitalOcean.Token = found.Secret, found.Secret
	log := telemetry.Slog(logger)
	settings.Local.Logger, settings.Docker.Logger, settings.RuntimeAPI.Logger, settings.DigitalOcean.Logger = log, log, log, log
	return settings, nil
}

func warn(logger *zap.Logger, text string) {
	if text != "" {
		logger.Warn(text)
	}
}

// offHere says why this machine cannot serve an instance that it knows: it has no
// credentials for it, or no engine. Nil where it can, or where something else is
// wrong.
func offHere(cfg config.Config, p config.Provider) error {
	if _, err := settingsOf(cfg, p, zap.NewNop(), &telemetry.Redactor{}); box.ClassOf(err) == box.ClassNotFound {
		return err
	}
	return nil
}

// checkSettings refuses the settings of an instance as the start of a worker
// does, and asks its provider nothing. Credentials that this machine does not
// have are not missed: off says that the instance is off then, as offHere does.
func checkSettings(cfg config.Config, p config.Provider) (off, err error) {
	settings, err := settingsOf(cfg, p, zap.NewNop(), &telemetry.Redactor{})
	if box.ClassOf(err) == box.ClassNotFound {
		off = err
		settings, err = rowSettings(p)
	}
	if err != nil {
		return off, err
	}
	return off, all.Check(p.Name, p.Driver, settings)
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
	settings, err := rowSettings(p)
	if err != nil {
		return box.Capabilities{}, err
	}
	return all.Row(p.Driver, settings), nil
}

// off says why this machine cannot serve an instance that it knows: it has no
// credentials. Empty where it has them, or needs none.
func (a *Shared) off(name string) (string, error) {
	cfg, err := a.Config()
	if err != nil {
		return "", err
	}
	p, ok := cfg.Provider(name)
	if !ok {
		return "", nil
	}
	return cfg.LacksCredentials(p), nil
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

// fingerprintWithin bounds the wait for where one instance is.
const fingerprintWithin = 5 * time.Second

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
		checkProgram(p, out)
		if _, err := os.Stat(p.Dir); p.Dir != "" && errors.Is(err, fs.ErrNotExist) {
			out.warn("provider "+p.Name, "there is no directory %s yet; the first worker makes it", p.Dir)
			continue
		}
		if why := offHere(cfg, p); why != nil {
			out.off(p.Name, why, "")
			continue
		}
		there.Providers = append(there.Providers, p)
	}
	opened, _, err := openProviders(there, here, zap.NewNop(), &telemetry.Redactor{})
	if err != nil {
		out.fail("providers", err)
		return
	}
	for _, p := range opened {
		// Each has its own time: one that hangs says nothing about the others.
		within, cancel := context.WithTimeout(ctx, fingerprintWithin)
		where, err := p.Fingerprint(within)
		cancel()
		if err != nil {
			out.fail("provider "+p.Name(), err)
			continue
		}
		row := p.Capabilities()
		out.ok("provider "+p.Name(), "%s at %s%s", row.Driver, where, ifText("; not tested live: ", row.Untested))
	}
}

// checkProgram looks for the program that runs in the boxes of an instance: without
// it they are not made, or stay as they are made and only their own log says why.
func checkProgram(p config.Provider, out *checks) {
	found, err := program(p)
	switch {
	case err != nil:
		out.fail(found.what+" of "+p.Name, err)
	case found.path != "":
		out.ok(found.what+" of "+p.Name, "%s is there and can be run", found.path)
	}
}

// inBoxes is a program of this machine that runs in the boxes of an instance.
type inBoxes struct {
	what string
	path string // empty where this machine has none
}

// program looks for it. A bare name of an agent-server is found by the PATH of a
// box, not by ours, and the agent-server of a container in its image.
func program(p config.Provider) (inBoxes, error) {
	switch {
	case p.Driver == config.DriverDocker:
		boxd, err := boxdFor(p)
		if err != nil {
			return inBoxes{what: boxdWord}, err
		}
		found := inBoxes{what: boxdWord, path: boxd[0]}
		if err := docker.CheckBoxd(found.path); err != nil {
			return found, box.Errorf(box.ClassFailedPrecondition, "no box can be made: %w (CGO_ENABLED=0 go build ./cmd/boxd); %s says where it is", err, p.Field(config.SettingBoxd))
		}
		return found, nil
	case p.Driver == config.DriverLocal && len(p.AgentServer) > 0 && filepath.IsAbs(p.AgentServer[0]):
		found := inBoxes{what: "agent-server", path: p.AgentServer[0]}
		if _, err := exec.LookPath(found.path); err != nil {
			return found, box.Errorf(box.ClassFailedPrecondition, "it cannot be run, so no box becomes running; install it, or set %s to where it is: %w", p.Field(config.SettingAgentServer), err)
		}
		return found, nil
	}
	return inBoxes{}, nil
}

// ProgramProblems says of each instance what cannot be run in its boxes, as
// "check" does: a program that starts workers says it at once.
func ProgramProblems(cfg config.Config) []string {
	var out []string
	for _, p := range cfg.Providers {
		if found, err := program(p); err != nil {
			out = append(out, found.what+" of "+p.Name+": "+err.Error())
		}
	}
	return out
}
