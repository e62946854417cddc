package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/config"
	"github.com/openhands/boxkeeper/internal/notices"
	"github.com/openhands/boxkeeper/internal/telemetry"
)

// outlet makes what carries notices and events. Keys are read at each request,
// so that a changed one needs no restart.
func outlet(cfg config.Config, installation string, redactor *telemetry.Redactor, logger *zap.Logger, record func(string, string, time.Duration)) *notices.Outlet {
	o := notices.Options{Installation: installation, Logger: logger, Record: record, Secret: func(reference string) (box.Secret, error) {
		secret, err := cfg.ResolveSecret(reference)
		redactor.Add(secret)
		return secret, err
	}}
	for _, w := range cfg.Webhooks {
		o.Webhooks = append(o.Webhooks, webhookOf(w))
	}
	return notices.New(o)
}

func webhookOf(w config.Webhook) notices.Webhook {
	return notices.Webhook{Name: w.Name, URL: w.URL, Keys: w.Keys, Kinds: w.Events}
}

// checkWebhooks sends each webhook a ping: nothing less shows that the address,
// the certificate and the key are right.
func (a *Shared) checkWebhooks(ctx context.Context, cfg config.Config, out *checks) {
	id := "unknown" // a check makes no installation
	if here, err := cfg.ReadInstallation(); err == nil {
		id = here.ID
	}
	sender := outlet(cfg, id, &telemetry.Redactor{}, zap.NewNop(), nil)
	defer sender.Close()
	for _, w := range cfg.Webhooks {
		what := "webhook " + w.Name
		if err := sender.Ping(ctx, webhookOf(w)); err != nil {
			out.fail(what, err)
			continue
		}
		out.ok(what, "%s took a ping", w.Address())
	}
	takesNotices := func(w config.Webhook) bool {
		return len(w.Events) == 0 || slices.Contains(w.Events, box.EventExpiryNotice)
	}
	switch {
	case len(cfg.Webhooks) == 0:
		out.ok("notices", "go to the log of the workers; no webhook is configured")
	case !slices.ContainsFunc(cfg.Webhooks, takesNotices):
		out.warn("notices", "no webhook takes %s: people are told before an expiry by the log of the workers only", box.EventExpiryNotice)
	}
}

func eventList(kinds []box.EventKind) string {
	names := make([]string, 0, len(kinds))
	for _, kind := range kinds {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

// webhooks shows the receivers of events that something is wrong with.
func (p *page) webhooks(a *Shared, s box.Status) {
	for _, w := range s.Webhooks {
		if w.Failed > 0 {
			p.linef("Webhook %s fails: %s, last: %s.%s", printable(w.Name), plural(w.Failed, "time"), printable(w.Problem), ifText(" It is tried again ", a.moment(w.RetryAt)))
		}
		if w.Dropped > 0 {
			p.linef("Webhook %s never got %s.", printable(w.Name), plural(w.Dropped, "event"))
		}
	}
	if s.NoticesUntold > 0 {
		p.linef("%s reached nobody in time.", plural(s.NoticesUntold, "notice"))
	}
}
