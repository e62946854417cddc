package cli

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/docker/go-units"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/providers/all"
	"github.com/openhands/boxkeeper/providers/digitalocean"
	"github.com/openhands/boxkeeper/providers/docker"
	"github.com/openhands/boxkeeper/providers/local"
	"github.com/openhands/boxkeeper/providers/runtimeapi"
)

// rowSettings are the settings of an instance without its credentials: all that
// its row depends on. A mistake is Invalid and names the setting.
func rowSettings(p config.Provider) (all.Settings, error) {
	var (
		out all.Settings
		err error
	)
	switch p.Driver {
	case config.DriverLocal:
		out.Local, err = localOptions(p)
	case config.DriverDocker:
		out.Docker, err = dockerOptions(p)
	case config.DriverRuntimeAPI:
		out.RuntimeAPI, err = runtimeAPIOptions(p)
	case config.DriverDigitalOcean:
		out.DigitalOcean = digitalocean.Options{
			Region: p.Set[config.SettingRegion], Template: p.Set[config.SettingTemplate], Size: p.Set[config.SettingSize],
		}
	}
	return out, err
}

// localOptions: boxes of this machine run this very program as boxd.
func localOptions(p config.Provider) (local.Options, error) {
	self, err := self()
	if err != nil {
		return local.Options{}, err
	}
	kind := local.SuspendStop
	if p.Suspend == config.SuspendFreeze {
		kind = local.SuspendFreeze
	}
	return local.Options{Dir: p.Dir, Command: []string{self, boxdWord}, AgentServer: p.AgentServer, Suspend: kind}, nil
}

// boxdWord is both the name of the program that is boxd and the word that
// makes this program boxd.
const boxdWord = "boxd"

func self() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", box.Errorf(box.ClassInternal, "find the path of this program, which boxes run: %w", err)
	}
	return path, nil
}

func dockerOptions(p config.Provider) (docker.Options, error) {
	program, err := boxdFor(p)
	if err != nil {
		return docker.Options{}, err
	}
	o := docker.Options{
		Host: p.Set[config.SettingHost], Boxd: program, AgentServer: p.AgentServer,
		DefaultImage: p.Set[config.SettingImage], Pull: docker.PullPolicy(p.Set[config.SettingPull]),
		Network: p.Set[config.SettingNetwork], PublishOn: p.Set[config.SettingPublishOn], Reach: p.Set[config.SettingReach],
		Suspend: docker.SuspendStop, Snapshot: p.Set[config.SettingSnapshot] == config.Yes,
	}
	if p.Suspend == config.SuspendFreeze {
		o.Suspend = docker.SuspendPause
	}
	if text, ok := p.Set[config.SettingPorts]; ok {
		if o.Ports, err = portRange(p.Field(config.SettingPorts), text); err != nil {
			return o, err
		}
	}
	if text, ok := p.Set[config.SettingMemory]; ok {
		if o.Limits.MemoryBytes, err = units.RAMInBytes(text); err != nil || o.Limits.MemoryBytes < leastMemory {
			return o, box.Invalidf(p.Field(config.SettingMemory), "%q is not a size of 64MiB or more, such as 4GiB", printable(text))
		}
	}
	if text, ok := p.Set[config.SettingCPUs]; ok {
		if o.Limits.CPUs, err = strconv.ParseFloat(text, 64); err != nil || !(o.Limits.CPUs >= leastCPUs && o.Limits.CPUs <= mostCPUs) {
			return o, box.Invalidf(p.Field(config.SettingCPUs), "%q is not a number of processors from %g to %g", printable(text), leastCPUs, mostCPUs)
		}
	}
	o.Limits.Processes = number(p, config.SettingProcesses)
	return o, nil
}

// What a box needs at least, and what no machine has.
const (
	leastMemory = 64 << 20
	leastCPUs   = 0.01
	mostCPUs    = 4096.0
)

// boxdFor is the program that is copied into boxes, and what makes it boxd.
func boxdFor(p config.Provider) ([]string, error) {
	path, given := p.Set[config.SettingBoxd]
	if !given {
		own, err := self()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(filepath.Dir(own), boxdWord)
		if _, err := os.Stat(path); err != nil {
			path = own
		}
	}
	if filepath.Base(path) == boxdWord {
		return []string{path}, nil
	}
	return []string{path, boxdWord}, nil
}

func portRange(field, text string) (docker.Ports, error) {
	first, last, found := strings.Cut(text, "-")
	if !found {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a == 0 || a > b {
		return docker.Ports{}, box.Invalidf(field, "%q is not a range of ports such as 20000-20999", printable(text))
	}
	return docker.Ports{First: uint16(a), Last: uint16(b)}, nil
}

func runtimeAPIOptions(p config.Provider) (runtimeapi.Options, error) {
	o := runtimeapi.Options{
		URL: p.Set[config.SettingURL], Account: p.Set[config.SettingAccount], Image: p.Set[config.SettingImage], Command: p.AgentServer, WorkingDir: p.Set[config.SettingWorkingDir],
		ResourceFactor: int(number(p, config.SettingResourceFactor)), RuntimeClass: p.Set[config.SettingRuntimeClass],
		AllowHTTP: p.Set[config.SettingPlainHTTP] == config.Allow, ListsFailed: p.Set[config.SettingListsFailed] == config.Yes,
	}
	for setting, into := range map[string]*box.Duration{
		config.SettingIdleReaper: &o.IdleReaper, config.SettingPausedLife: &o.PausedLife, config.SettingMaxRun: &o.MaxRun,
	} {
		text, ok := p.Set[setting]
		if !ok {
			continue
		}
		d, err := box.ParseDuration(p.Field(setting), text)
		if err != nil {
			return o, err
		}
		*into = d
	}
	return o, nil
}

// number is a setting that was checked to be one; zero where it is not set.
func number(p config.Provider, setting string) int64 {
	n, _ := strconv.ParseInt(p.Set[setting], 10, 64)
	return n
}
