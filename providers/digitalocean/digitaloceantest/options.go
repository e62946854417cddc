package digitaloceantest

import (
	"context"
	"io/fs"
	"net/http"
	"time"
)

// The defaults of the zero Options.
const (
	DefaultToken  = "dop_v1_fake"
	DefaultRegion = "ric1"
	// DefaultIdle is the idle timeout of a configuration that names none
	// [docs 21 Sep 2026].
	DefaultIdle = 15 * time.Minute
	// DefaultBoot is the vendor's figure from create to ready [21 Sep 2026].
	DefaultBoot = 886 * time.Millisecond
)

// Options shapes a [Server]. The zero value is one team in one region, without
// anything on port 8000. Durations are of the server's own clock unless a field
// says otherwise.
type Options struct {
	// Teams are who may call, one token each; without any there is one team
	// whose token is DefaultToken.
	Teams []Team
	// Regions are the slugs of the regions, the first one is the default;
	// without any there is DefaultRegion alone.
	Regions []string

	// Now is the clock. Without it the server has its own, which starts at
	// Start and moves only by Advance and Tick.
	Now   func() time.Time
	Start time.Time
	// Tick moves the server's own clock at each API request, so that a client
	// that polls makes progress without anybody calling Advance.
	Tick time.Duration

	// Boot is how long a session is PROVISIONING; zero means DefaultBoot,
	// negative not at all.
	Boot time.Duration
	// ResumeLag is how long a resumed session is still told as PAUSED.
	ResumeLag time.Duration
	// PortLag is how long port 8000 stays closed after each start and resume.
	PortLag time.Duration
	// Destroying is how long a deleted session is DESTROYING.
	Destroying time.Duration
	// Updating is how long a change of the live configuration takes.
	Updating time.Duration
	// Saving is how long a checkpoint, fork or rollback takes. The call blocks
	// until the clock has moved that far.
	Saving time.Duration
	// Releasing is how long a persistent workspace is RELEASING after the end
	// of its session.
	Releasing time.Duration
	// Turn is how long a run that was started by an input takes.
	Turn time.Duration
	// ListLag makes every list show what was there that long ago.
	ListLag time.Duration
	// Idle is the idle timeout of manifests without one, and MinIdle and
	// MaxIdle bound what a manifest may say; zero means no bound, since the
	// bounds of the service are unknown.
	Idle, MinIdle, MaxIdle time.Duration

	// IngressPolls is how many answers say PENDING before one says READY.
	IngressPolls int
	// Loopback gives each ingress URL a listener of its own on 127.0.0.1, for
	// clients that can't take the server's Transport. A revoked URL refuses
	// connections then, while the long names answer 404.
	Loopback bool
	// IngressOnAgentsOnly serves ingress below /v2/agents alone, which is where
	// it is documented [docs 13 Nov 2026].
	IngressOnAgentsOnly bool
	// TunnelTakesPaused accepts the WebSocket of a session that doesn't run and
	// closes it with 4001, instead of refusing the upgrade.
	TunnelTakesPaused bool

	// CreateStatus is the status of a successful create: 201, or 200 as in the
	// specification of July 2026.
	CreateStatus int
	// DeleteAgain is the status of deleting what is destroyed: 204 or 404; the
	// service's is unknown.
	DeleteAgain int
	// ForgetDestroyed answers 404 to a Get of what is destroyed; unknown too.
	ForgetDestroyed bool
	// KeepWarmPause is the status of pausing a session that is kept warm; 409
	// if zero, a guess.
	KeepWarmPause int
	// NoBalance is the status of calls that need a balance: 402 or 403.
	NoBalance int
	// HoldConfigs refuses to delete a configuration that live sessions use;
	// what the service does is told in two ways.
	HoldConfigs bool
	// EdgeErrors puts every error into the edge's envelope.
	EdgeErrors bool
	// PrefixedIDs makes ids like sess_..., as some pages print them, instead
	// of UUIDs.
	PrefixedIDs bool
	// EnforceRate answers 429 above 250 requests a minute or 5,000 an hour.
	EnforceRate bool

	// NoActivity switches off what resets the idle clock.
	NoActivity NoActivity

	// AgentServer returns what answers on port 8000 of a session; it is called
	// once for each sandbox, outside of any lock. Without it, and where it
	// returns nil, the port is closed.
	AgentServer func(Session) http.Handler
	// Exec runs a command; without it exec answers 501.
	Exec func(context.Context, Session, ExecRequest) ExecResult
	// Files is what is below /workspace of a session; without it downloads
	// answer 501.
	Files func(Session) fs.FS
}

// NoActivity switches off what resets the idle clock of a session; no page says
// what counts.
type NoActivity struct{ Ingress, Tunnel, Exec, Input bool }

// Team is one team, with the account that its token belongs to.
type Team struct {
	Token    string
	Name     string
	UUID     string
	UserUUID string
	Email    string
	ID       int64 // team_id in sessions
	Quota    int   // active sessions, paused ones too; zero means no limit
	// Scopes are what the token may do; nil means everything: agents:read,
	// agents:create (pause, resume and exec too), agents:delete, billing:read.
	Scopes    []string
	NoFeature bool // a good token that gets 403
	NoIngress bool // 403 for ingress alone
}

// Session tells hooks which session is meant.
type Session struct {
	ID        string
	Name      string
	Region    string
	ConfigID  string
	SandboxID string
	// Env is the environment in the sandbox, the values of secrets included.
	Env map[string]string
}

// ExecRequest is one command.
type ExecRequest struct {
	Argv           []string `json:"argv"`
	Workdir        string   `json:"workdir"`
	TimeoutSeconds int64    `json:"timeout_seconds"`
}

// ExecResult is its end. Each stream is cut at 1 MiB when it is sent.
type ExecResult struct {
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout,omitempty"`
	Stderr   string `json:"stderr,omitempty"`
}

func (o Options) withDefaults() Options {
	if len(o.Teams) == 0 {
		o.Teams = []Team{{}}
	}
	teams := make([]Team, len(o.Teams))
	for i, t := range o.Teams {
		number := int64(i + 1)
		if t.Token == "" {
			t.Token = DefaultToken
		}
		if t.ID == 0 {
			t.ID = 1000 + number
		}
		if t.UUID == "" {
			t.UUID = uuidOf("team", t.ID)
		}
		if t.UserUUID == "" {
			t.UserUUID = uuidOf("user", t.ID)
		}
		if t.Name == "" {
			t.Name = "team-" + t.UUID[:8]
		}
		if t.Email == "" {
			t.Email = t.Name + "@example.com"
		}
		teams[i] = t
	}
	o.Teams = teams
	if len(o.Regions) == 0 {
		o.Regions = []string{DefaultRegion}
	}
	if o.Start.IsZero() {
		o.Start = time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)
	}
	if o.Boot == 0 {
		o.Boot = DefaultBoot
	}
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	setStatus(&o.CreateStatus, http.StatusCreated)
	setStatus(&o.DeleteAgain, http.StatusNoContent)
	setStatus(&o.KeepWarmPause, http.StatusConflict)
	setStatus(&o.NoBalance, http.StatusPaymentRequired)
	return o
}

func setStatus(status *int, standard int) {
	if *status == 0 {
		*status = standard
	}
}
