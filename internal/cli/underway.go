package cli

import (
	"slices"
	"strings"
	"time"

	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/converter"

	"github.com/openhands/boxkeeper/internal/config"
)

// silentFor is how long a step may say nothing before that is worth a line.
const silentFor = 15 * time.Second

// underWay says what is known of a step that a worker is at, before the workflow
// hears of it at its end: why its last try failed, what it waits for, or at which
// address nothing answers. Empty when there is nothing to say.
func (a *Shared) underWay(step *workflowpb.PendingActivityInfo, provider string) string {
	if why := step.GetLastFailure().GetMessage(); why != "" {
		text := "a try of the step that is under way failed: " + strings.TrimSuffix(inCommands(why), ".")
		if at := step.GetNextAttemptScheduleTime(); at.IsValid() && at.AsTime().After(a.env.Now()) {
			return text + "; it is tried again " + a.moment(at.AsTime())
		}
		return text + "; it is being tried again"
	}
	if told := step.GetHeartbeatDetails().GetPayloads(); len(told) > 0 {
		var text string // that of a transfer is a number
		if converter.GetDefaultDataConverter().FromPayload(told[0], &text) == nil && text != "" {
			return text
		}
		return ""
	}
	began := step.GetLastStartedTime()
	if !began.IsValid() || a.env.Now().Sub(began.AsTime()) < silentFor {
		return ""
	}
	name := step.GetActivityType().GetName()
	if !slices.Contains([]string{"Create", "Adopt", "Observe", "Suspend", "Resume", "Deepen", "Delete"}, name) {
		return ""
	}
	return strings.ToLower(name) + " is under way since " + a.moment(began.AsTime()) + " and has not answered" + a.where(provider)
}

// where says at which address this machine's configuration has an instance. The
// worker's may have it elsewhere.
func (a *Shared) where(provider string) string {
	cfg, err := a.Config()
	if err != nil {
		return ""
	}
	p, ok := cfg.Provider(provider)
	if !ok {
		return ""
	}
	at := ""
	switch p.Driver {
	case config.DriverDocker:
		if engine, err := cfg.DockerEngine(p); err == nil {
			at = engine.Shown()
		}
	case config.DriverRuntimeAPI:
		at = p.Set[config.SettingURL]
	}
	return ifText("; by this machine's configuration "+provider+" is at ", printable(at))
}
