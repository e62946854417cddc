package config

import "strings"

// Names of the drivers, as package all of the providers has them.
const (
	DriverLocal        = "local"
	DriverDocker       = "docker"
	DriverRuntimeAPI   = "runtimeapi"
	DriverDigitalOcean = "digitalocean"
)

// Words of settings with two values.
const (
	Yes    = "yes"
	No     = "no"
	Refuse = "refuse"
	Allow  = "allow"
)

// Drivers are the names of the drivers that an instance can be of.
func Drivers() []string {
	return []string{DriverLocal, DriverDocker, DriverRuntimeAPI, DriverDigitalOcean}
}

// Settings of an instance, by their names in its section.
const (
	SettingDriver      = "driver"
	SettingDir         = "dir"
	SettingSuspend     = "suspend"
	SettingAgentServer = "agent_server"
	SettingImage       = "image"

	SettingHost      = "host"
	SettingBoxd      = "boxd"
	SettingPull      = "pull"
	SettingNetwork   = "network"
	SettingPublishOn = "publish_on"
	SettingReach     = "reach"
	SettingPorts     = "ports"
	SettingMemory    = "memory"
	SettingCPUs      = "cpus"
	SettingProcesses = "processes"
	SettingSnapshot  = "snapshot"

	SettingURL            = "url"
	SettingAPIKey         = "api_key"
	SettingResourceFactor = "resource_factor"
	SettingRuntimeClass   = "runtime_class"
	SettingIdleReaper     = "idle_reaper"
	SettingPausedLife     = "paused_life"
	SettingMaxRun         = "max_run"
	SettingAccount        = "account"
	SettingWorkingDir     = "working_dir"
	SettingListsFailed    = "lists_failed"
	SettingPlainHTTP      = "plain_http"

	SettingToken    = "token"
	SettingRegion   = "region"
	SettingTemplate = "template"
	SettingSize     = "size"
)

// instanceSettings are the settings of an instance.
func instanceSettings() []Setting {
	rows := []Setting{
		{
			Key: SettingDriver, Default: DriverLocal, Form: "one of " + strings.Join(Drivers(), ", "),
			What: "Which driver serves the instance; docs/providers.md compares them. An instance that is called like a driver is of that driver, and can be added by its variable alone, such as BOXKEEPER_PROVIDERS_DOCKER_DRIVER=docker; others need the file. Without any instance there is one called local.",
			When: "To add an instance: `[providers.NAME]` with its driver.",
		},
		{
			Key: SettingDir, Default: "<data>/boxes/NAME", Form: "directory", kind: kindPath, Drivers: []string{DriverLocal},
			What: "Where the boxes are, one directory each.",
			When: "When boxes need another disk. Never while boxes exist.",
		},
		{
			Key: SettingSuspend, Default: SuspendStop, Form: SuspendStop + " or " + SuspendFreeze, Drivers: []string{DriverLocal, DriverDocker},
			What: "stop ends the processes of a suspended box and keeps its files; freeze keeps its memory too, for policy.deepen_after (1h by default) or until the machine or the engine restarts.",
			When: "When resumes must go on in the middle of what ran: freeze.",
		},
		{
			Key: SettingAgentServer, Default: "none", Form: "list: the command and its arguments", kind: kindList, Drivers: []string{DriverLocal, DriverDocker, DriverRuntimeAPI},
			What: "The agent-server that runs in each box. Without one a box of this machine or of Docker serves histories from disk and can't run agents; a runtime-api's runs what its image does.",
			When: "For real work: the command of an OpenHands agent-server.",
		},
		{
			Key: SettingImage, Default: "none: each spec names one", Form: "reference of an image", Drivers: []string{DriverDocker, DriverRuntimeAPI},
			What: "The image of boxes whose spec names none.",
			When: "Always, unless every caller names an image.",
		},
	}
	rows = append(rows, dockerSettings()...)
	rows = append(rows, runtimeAPISettings()...)
	rows = append(rows, digitalOceanSettings()...)
	for i := range rows {
		rows[i].Env = instanceEnv(sectionProviders, instancePlaceholder, rows[i].Key)
		rows[i].Key = instancePrefix + rows[i].Key
	}
	return rows
}

func dockerSettings() []Setting {
	of := []string{DriverDocker}
	return []Setting{
		{
			Key: SettingHost, Default: "DOCKER_HOST, else the current context of docker, else the usual socket", Form: "unix:///path, tcp://host:port or https://host:port", Drivers: of,
			What: "The engine. `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH` count as they do for docker itself, so not for one of a context: that has its own. The context is `DOCKER_CONTEXT`, else `currentContext` of `config.json` in `DOCKER_CONFIG` or `~/.docker`. A line at the start says which engine was taken.",
			When: "With several engines: one instance each. Where people change the current context.",
		},
		{
			Key: SettingBoxd, Default: "boxd beside this program, else this program", Form: "path", kind: kindPath, Drivers: of,
			What: "The program that is copied into each box and runs in front of its agent-server: boxd or boxkeeper for Linux, built without cgo.",
			When: "When neither is where it is looked for, or the boxes are of another architecture than this machine.",
		},
		{
			Key: SettingPull, Default: "missing", Form: "missing, always or never", Drivers: of,
			What: "When images are pulled. No credentials are sent: an image of a private registry is pulled by hand.",
			When: "always: when a tag moves and each new box should have the newest.",
		},
		{
			Key: SettingNetwork, Default: "the engine's", Form: "name of a network", Drivers: of,
			What: "The network that boxes join.",
			When: "When boxes need to reach something that others must not, or the other way round.",
		},
		{
			Key: SettingPublishOn, Default: "127.0.0.1", Form: "address", Drivers: of,
			What: "The address of the engine's machine on which the port of a box is published. It speaks plain HTTP, guarded by the key of the box.",
			When: "When the engine runs on another machine than the workers.",
		},
		{
			Key: SettingReach, Default: "publish_on, else the engine's host", Form: "host name or address", Drivers: of,
			What: "Where this worker finds the published ports.",
			When: "When the engine's machine has another address here than there, as from within a container.",
		},
		{
			Key: SettingPorts, Default: "any", Form: "a range such as 20000-20999", Drivers: of,
			What: "The ports that boxes get. Without a range the engine chooses anew at each start.",
			When: "When a firewall stands between workers and engine.",
		},
		{
			Key: SettingMemory, Default: "no limit", Form: "a size such as 4GiB", Drivers: of,
			What: "The most memory of a box.",
			When: "Always, where boxes of several people share a machine.",
		},
		{
			Key: SettingCPUs, Default: "no limit", Form: "a number such as 1.5", Drivers: of,
			What: "The most processors of a box.",
			When: "Always, where boxes of several people share a machine.",
		},
		{
			Key: SettingProcesses, Default: "no limit", Form: "a number", kind: kindNumber, Drivers: of,
			What: "The most processes of a box.",
			When: "Always, where boxes of several people share a machine: 4096 is plenty.",
		},
		{
			Key: SettingSnapshot, Default: No, Form: Yes + " or " + No, words: []string{Yes, No}, Drivers: of,
			What: "Whether a suspend that stops a box commits what was installed outside of its volume as an image. A box whose container somebody removed is made again of it. Only the newest is kept. A commit takes time and disk.",
			When: "When people install packages in their boxes, and containers are pruned: yes.",
		},
	}
}

func runtimeAPISettings() []Setting {
	of := []string{DriverRuntimeAPI}
	return []Setting{
		{
			Key: SettingURL, Default: "none", Form: "URL, https://host", Drivers: of,
			What: "The runtime-api.",
			When: "Always.",
		},
		{
			Key: SettingAPIKey, Default: "env:RUNTIME_API_KEY", Form: "reference: file:/absolute/path, env:NAME or credential:NAME", kind: kindSecret, Drivers: of,
			What: "The key that is sent as X-API-Key. Without it the instance is off, and a line says so. No spec can name it.",
			When: "When it is not in the environment.",
		},
		{
			Key: SettingWorkingDir, Default: "/", Form: "absolute path in the box", Drivers: of,
			What: "Where the agent-server starts.",
			When: "With an image whose server expects another directory.",
		},
		{
			Key: SettingResourceFactor, Default: "1", Form: "1, 2, 4 or 8", kind: kindNumber, Drivers: of,
			What: "How large a box is, in units of the installation.",
			When: "When work needs more memory than a unit has.",
		},
		{
			Key: SettingRuntimeClass, Default: "the installation's", Form: "name, such as sysbox-runc", Drivers: of,
			What: "What isolates the box.",
			When: "When agents need a container engine in the box.",
		},
		{
			Key: SettingIdleReaper, Default: "20m", Form: "duration, or never", kind: kindDuration, Drivers: of,
			What: "After how long the installation pauses an idle box by itself (RUNTIME_IDLE_SECONDS). It is told, not asked: the service has no call for it.",
			When: "When the installation differs from its chart.",
		},
		{
			Key: SettingPausedLife, Default: "none", Form: "duration, or never", kind: kindDuration, Drivers: of,
			What: "After how long the installation deletes a paused box by itself (RUNTIME_DEAD_SECONDS): 60d in its chart since June 2026, 1d before. Boxes are exported and woken before that.",
			When: "Always: ask whoever runs the installation. Too long a value loses boxes.",
		},
		{
			Key: SettingMaxRun, Default: "12h", Form: "duration, or never", kind: kindDuration, Drivers: of,
			What: "The longest time that a box may be awake there.",
			When: "When the installation has another cap, or none.",
		},
		{
			Key: SettingAccount, Default: "a digest of the key", Form: "1 to 40 of a-z, 0-9, \".\" and \"-\"", Drivers: of,
			What: "Whose boxes the key sees. Without it boxes that were made with one key are out of reach with another.",
			When: "Before the first box, where keys are changed from time to time. Never while boxes exist.",
		},
		{
			Key: SettingListsFailed, Default: No, Form: Yes + " or " + No, words: []string{Yes, No}, Drivers: of,
			What: "Whether the list of the installation shows boxes in status error too. Only then are boxes looked for that nobody owns.",
			When: "When whoever runs the installation says so.",
		},
		{
			Key: SettingPlainHTTP, Default: Refuse, Form: Refuse + " or " + Allow, words: []string{Refuse, Allow}, Drivers: of,
			What: "Whether http:// may lead beyond this machine, to the service and to its boxes. Keys travel in the clear then.",
			When: "When the way there is protected by other means: allow.",
		},
	}
}

func digitalOceanSettings() []Setting {
	of := []string{DriverDigitalOcean}
	return []Setting{
		{
			Key: SettingToken, Default: "env:DIGITALOCEAN_TOKEN, else env:DIGITALOCEAN_ACCESS_TOKEN, else doctl's", Form: "reference: file:/absolute/path, env:NAME or credential:NAME", kind: kindSecret, Drivers: of,
			What: "A personal access token of the team. doctl's is that of `DIGITALOCEAN_CONTEXT`, else of the current context, in `$XDG_CONFIG_HOME/doctl/config.yaml` or `~/.config/doctl/config.yaml` (macOS: `~/Library/Application Support/doctl/config.yaml`). Without any the instance is off, and a line says so. No spec can name it.",
			When: "When it is not in the environment, or with several teams: one instance each. Where people change doctl's context.",
		},
		{
			Key: SettingRegion, Default: "ric1", Form: "slug of a region", Drivers: of,
			What: "Where boxes are made and looked for. A box is not found in any other region.",
			When: "For another region. Never while boxes exist: add an instance.",
		},
		{
			Key: SettingTemplate, Default: "openhands", Form: "name of a template", Drivers: of,
			What: "The template of boxes whose spec names no image. Only one of OpenHands serves an agent-server.",
			When: "With a template of your own.",
		},
		{
			Key: SettingSize, Default: "the service's", Form: "slug of a size, such as mars-2vcpu-4gb", Drivers: of,
			What: "The size of a box.",
			When: "When work needs more, or the bill less.",
		},
	}
}
