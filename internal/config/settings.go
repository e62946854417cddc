package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Setting is one row of the reference.
type Setting struct {
	// Key is the name in the file; "*" stands for the name of an instance.
	Key string `json:"key"`
	// Env is the environment variable that wins over the file.
	Env string `json:"env"`
	// Default is the value when nothing is set, in words where it is computed.
	Default string `json:"default"`
	// Form says how it is written, with the unit.
	Form string `json:"form"`
	// What says what it does, When says when to change it.
	What string `json:"what"`
	When string `json:"when_to_change"`

	kind kind
}

// kind is the type of a setting's value.
type kind int

const (
	kindText kind = iota
	kindPath
	kindList // of texts; in the environment a JSON array
	kindNumber
)

// Keys of the settings outside of instances.
const (
	settingData       = "data"
	settingExports    = "exports"
	settingSecrets    = "export_secrets"
	settingTransfers  = "transfers"
	settingSecret     = "installation_secret"
	settingListen     = "listen"
	settingLogLevel   = "log.level"
	settingLogFormat  = "log.format"
	settingRecipients = "encryption.recipients"
	settingIdentities = "encryption.identities"
	settingSpecEnv    = "specs.env"
	settingSpecFiles  = "specs.files"

	sectionProviders = "providers"
	sectionWebhooks  = "webhooks"

	instancePrefix      = sectionProviders + ".*."
	settingDriver       = "driver"
	settingDir          = "dir"
	settingSuspend      = "suspend"
	settingAgentServer  = "agent_server"
	instancePlaceholder = "<NAME>"

	webhookPrefix    = sectionWebhooks + ".*."
	settingURL       = "url"
	settingKeys      = "keys"
	settingEvents    = "events"
	settingPlainHTTP = "plain_http"
)

// Settings returns every setting in the order of the reference.
func Settings() []Setting {
	return []Setting{
		{
			Key: settingData, Env: "BOXKEEPER_DATA", Default: DefaultDataDir, Form: "directory", kind: kindPath,
			What: "Where this machine keeps what it writes: keys, boxes of local instances, the engine's data file, exports unless `exports` says otherwise.",
			When: "On a server: name a directory that is backed up.",
		},
		{
			Key: settingExports, Env: "BOXKEEPER_EXPORTS", Default: "file://<data>/exports", Form: "URL, file:///absolute/directory or s3://bucket?region=eu-central-1",
			What: "The store of exported histories and of the ledgers. Every worker of an installation and everyone who reads histories names the same one. See [Stores](#stores).",
			When: "When workers run on more than one machine, or exports must outlive this one.",
		},
		{
			Key: settingRecipients, Env: "BOXKEEPER_ENCRYPTION_RECIPIENTS", Default: "none: in the clear", Form: "list of public keys of age, which begin with age1", kind: kindList,
			What: "Who can read what is written to the export store, histories and ledgers alike. Names of objects stay readable: workspace ids, epochs, ids of conversations. What was written before stays as it was, and both are read.",
			When: "When others can read the store's disk or bucket. Make a key with `age-keygen`, and a second one that is kept elsewhere: what is lost with the last identity is lost for good.",
		},
		{
			Key: settingIdentities, Env: "BOXKEEPER_ENCRYPTION_IDENTITIES", Default: "none", Form: "list of references; each leads to an identity file of age, or to one AGE-SECRET-KEY-", kind: kindList,
			What: "The secret keys that open what was encrypted. Workers need one for the recipients that they write for: all is read back before it counts. So does everyone who reads histories. No spec can name them.",
			When: "With `encryption.recipients`. To change the key: add the new identity everywhere, then change the recipients; keep the old identity for as long as there are objects of its time.",
		},
		{
			Key: settingSecrets, Env: "BOXKEEPER_EXPORT_SECRETS", Default: string(box.SecretsKeep), Form: "keep, redact or block",
			What: "What is done about secrets that stand in a history or in files when they are exported, where a box's policy says nothing: stored as they are, masked, or the export is refused. A report beside each export says where they stand. In files nothing is masked: with redact a workspace that holds one is left out of the export, which says so.",
			When: "redact: when people read the store who must not see secrets. block: when none may come in; a box with one can't be deleted by its export then.",
		},
		{
			Key: settingTransfers, Env: "BOXKEEPER_TRANSFERS", Default: strconv.Itoa(DefaultTransfers), Form: fmt.Sprintf("a number from 1 to %d", maxTransfers), kind: kindNumber,
			What: "How many histories a worker moves at a time: exports, proofs of exports, restores. Each takes up to 64 MiB of memory and room for its largest conversation in the spool directory, and the others wait for their turn. Suspends and resumes don't.",
			When: "Less: on a worker with little memory or disk. More: where many boxes end at once and their network has room.",
		},
		{
			Key: settingSecret, Env: "BOXKEEPER_INSTALLATION_SECRET", Default: "file:<data>/" + keyFile,
			Form: "reference: file:/absolute/path, env:NAME or credential:NAME; at least 32 bytes",
			What: "The secret that the keys of all boxes are derived from. The default file is made with 32 random bytes when it is missing. Back it up: without it no box can be reached.",
			When: "When workers run on more than one machine: all need the same one. Never change it while boxes exist.",
		},
		{
			Key: settingListen, Env: "BOXKEEPER_LISTEN", Default: DefaultListen, Form: "host:port, port 0 for a free one, or off",
			What: "Where workers serve `/healthz`, `/readyz` and `/metrics`. There is no login: it shows counts and states of this process, never workspaces.",
			When: "In a container: `0.0.0.0:9464`. With two workers on one machine: another port.",
		},
		{
			Key: settingLogLevel, Env: "BOXKEEPER_LOG_LEVEL", Default: "info", Form: "debug, info, warn or error",
			What: "What is logged, to standard error. Commands other than workers log warnings and errors only, unless this says debug.",
			When: "To look into a fault: debug.",
		},
		{
			Key: settingLogFormat, Env: "BOXKEEPER_LOG_FORMAT", Default: "console", Form: "console or json",
			What: "How log lines are written.",
			When: "When a log collector reads them: json.",
		},
		{
			Key: settingSpecEnv, Env: "BOXKEEPER_SPECS_ENV", Default: "any, except BOXKEEPER_* and TEMPORAL_*", Form: "list of names; a name may end with *", kind: kindList,
			What: "Which environment variables of a worker a spec may refer to as env:NAME. An empty list allows none.",
			When: "Always, when people who create workspaces may not read the worker's whole environment.",
		},
		{
			Key: settingSpecFiles, Env: "BOXKEEPER_SPECS_FILES", Default: "any, except below data and /proc", Form: "list of absolute files or directories", kind: kindList,
			What: "Which files of a worker's machine a spec may refer to as file:PATH. An empty list allows none.",
			When: "Always, when people who create workspaces may not read every file that the worker can read.",
		},
		{
			Key: instancePrefix + settingDriver, Env: instanceEnv(sectionProviders, instancePlaceholder, settingDriver), Default: "local", Form: "name of a driver",
			What: "Which driver serves the instance. Without any instance in the file there is one called local.",
			When: "To add an instance: `[providers.NAME]` with its driver.",
		},
		{
			Key: instancePrefix + settingDir, Env: instanceEnv(sectionProviders, instancePlaceholder, settingDir), Default: "<data>/boxes/NAME", Form: "directory", kind: kindPath,
			What: "Local driver: where the boxes are, one directory each.",
			When: "When boxes need another disk. Never while boxes exist.",
		},
		{
			Key: instancePrefix + settingSuspend, Env: instanceEnv(sectionProviders, instancePlaceholder, settingSuspend), Default: "stop", Form: "stop or freeze",
			What: "Local driver: stop ends the processes of a suspended box and keeps its files; freeze keeps its memory too, for policy.deepen_after (1h by default) or until the machine restarts.",
			When: "When resumes must go on in the middle of what ran: freeze.",
		},
		{
			Key: instancePrefix + settingAgentServer, Env: instanceEnv(sectionProviders, instancePlaceholder, settingAgentServer), Default: "none", Form: "list: the command and its arguments", kind: kindList,
			What: "Local driver: the agent-server that runs in each box. Without one a box serves histories from disk and can't run agents.",
			When: "For real work: the command of an OpenHands agent-server.",
		},
		{
			Key: webhookPrefix + settingURL, Env: instanceEnv(sectionWebhooks, instancePlaceholder, settingURL), Default: "none", Form: "URL, https://host/path",
			What: "Who is told of notices and lifecycle events, as signed CloudEvents; see docs/events.md. There can be " + strconv.Itoa(maxWebhooks) + ". The one called " + defaultWebhook + " can be set by the environment alone. Every worker of an installation has the same webhooks. The URL may hold a token in its query, which is shown nowhere; a user or password in it is refused. Redirects are not followed.",
			When: "When people should be told before a box expires, or a program follows what happens to boxes. Without a webhook notices go to the log.",
		},
		{
			Key: webhookPrefix + settingKeys, Env: instanceEnv(sectionWebhooks, instancePlaceholder, settingKeys), Default: "none", Form: "list of one or two references; each names whsec_ and then 24 to 64 bytes in base64", kind: kindList,
			What: "The key that requests are signed with. With two, each request carries both signatures, so that the receiver can change over at any time.",
			When: "Always. To change a key: add the new one, change the receiver, take the old one out. No spec can name it.",
		},
		{
			Key: webhookPrefix + settingEvents, Env: instanceEnv(sectionWebhooks, instancePlaceholder, settingEvents), Default: "all", Form: "list of kinds of events", kind: kindList,
			What: "What it is told. A notice, which is " + string(box.EventExpiryNotice) + " or " + string(box.EventReminder) + ", must reach one of the webhooks that take it before a policy deletes anything.",
			When: "When a receiver wants notices only: `[\"" + string(box.EventExpiryNotice) + "\", \"" + string(box.EventReminder) + "\"]`.",
		},
		{
			Key: webhookPrefix + settingPlainHTTP, Env: instanceEnv(sectionWebhooks, instancePlaceholder, settingPlainHTTP), Default: "refuse", Form: "refuse or allow",
			What: "Whether an http:// URL may lead beyond this machine. What is sent is signed, and everyone on the way can read it.",
			When: "When the way to the receiver is protected by other means: allow.",
		},
	}
}

// instanceEnv returns the variable for one setting of an instance. Names hold
// no underscore, so no two settings share a variable.
func instanceEnv(section, instance, setting string) string {
	return "BOXKEEPER_" + strings.ToUpper(section+"_"+strings.ReplaceAll(instance, "-", "_")+"_"+setting)
}

// named reports whether a section holds things by name.
func named(section string) bool { return section == sectionProviders || section == sectionWebhooks }

// settingByKey returns the row of a key as it stands in a file, and the name of
// the instance if it is one's.
func settingByKey(key string) (row Setting, instance string, known bool) {
	lookFor := key
	if parts := strings.SplitN(key, ".", 3); len(parts) == 3 && named(parts[0]) {
		instance, lookFor = parts[1], parts[0]+".*."+parts[2]
	}
	for _, s := range Settings() {
		if s.Key == lookFor {
			return s, instance, true
		}
	}
	return Setting{}, "", false
}
