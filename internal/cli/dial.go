package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/telemetry"
)

const (
	defaultAddress   = "127.0.0.1:7233"
	defaultNamespace = "default"
	dialWithin       = 5 * time.Second
	workerWithin     = 3 * time.Second // how long a worker may take to show up
	lookEvery        = 250 * time.Millisecond
)

// environ is the environment as Temporal's configuration reads it.
type environ struct{ env Env }

func (e environ) Environ() []string                    { return e.env.Environ }
func (e environ) LookupEnv(name string) (string, bool) { return e.env.lookup(name) }

// temporalProfile reads Temporal's own configuration: its file, then the
// environment.
func (a *Shared) temporalProfile() (envconfig.ClientConfigProfile, error) {
	return envconfig.LoadClientConfigProfile(envconfig.LoadClientConfigProfileOptions{ConfigFileProfile: a.profile, EnvLookup: environ{a.env}})
}

// temporalSecrets returns what lets us in at Temporal, wherever it was read from:
// a service may repeat it in what it answers. A configuration that cannot be read
// has none; who connects with it is told why.
func (a *Shared) temporalSecrets() []box.Secret {
	profile, err := a.temporalProfile()
	if err != nil {
		return nil
	}
	secrets := []box.Secret{box.Secret(profile.APIKey)}
	for _, value := range profile.GRPCMeta { // which of the headers lets us in only the service knows
		_, bare, _ := strings.Cut(value, " ") // behind a scheme
		secrets = append(secrets, box.Secret(value), box.Secret(bare))
	}
	return secrets
}

// temporalRedactor masks what lets us in at Temporal.
func (a *Shared) temporalRedactor() *telemetry.Redactor {
	redactor := &telemetry.Redactor{}
	redactor.Add(a.temporalSecrets()...)
	return redactor
}

// masked is an error of Temporal's without the keys that it may repeat.
type masked struct {
	error
	words string
}

func (m masked) Error() string { return m.words }
func (m masked) Unwrap() error { return m.error }

func (a *Shared) masked(err error) error {
	return masked{err, a.temporalRedactor().Redact(err.Error())}
}

// ClientOptions returns how to reach Temporal: Temporal's own configuration
// file and environment, then the flags.
func (a *Shared) ClientOptions() (client.Options, error) {
	var o client.Options
	profile, err := a.temporalProfile()
	if err == nil {
		o, err = profile.ToClientOptions(envconfig.ToClientOptionsRequest{})
	}
	if err != nil {
		return o, box.Invalidf("temporal", "read the configuration of the connection: %v; check TEMPORAL_* and Temporal's configuration file", err)
	}
	if a.address != "" {
		o.HostPort = a.address
	}
	if a.namespace != "" {
		o.Namespace = a.namespace
	}
	if o.HostPort == "" {
		o.HostPort = defaultAddress
	}
	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	o.ConnectionOptions.GetSystemInfoTimeout = dialWithin
	return o, nil
}

// session is one connection to Temporal, for one run of a command.
type session struct {
	*Shared
	cmd       *cobra.Command
	client    client.Client
	address   string
	namespace string
	plain     bool // without TLS
	served    bool // a worker was seen
}

// connect opens a session; close it. A Temporal that cannot be reached is
// Unavailable.
func (a *Shared) connect(c *cobra.Command) (*session, error) {
	o, err := a.ClientOptions()
	if err != nil {
		return nil, err
	}
	level := "error"
	if text, ok := a.env.lookup("BOXKEEPER_LOG_LEVEL"); ok && text == "debug" {
		level = text
	}
	logger, err := telemetry.NewLogger(c.ErrOrStderr(), telemetry.LogOptions{Level: level, Redactor: a.temporalRedactor()})
	if err != nil {
		return nil, err
	}
	return a.connectWith(c, o, logger)
}

func (a *Shared) connectWith(c *cobra.Command, o client.Options, logger *zap.Logger) (*session, error) {
	o.Logger = telemetry.TemporalLogger(logger)
	s := &session{Shared: a, cmd: c, address: o.HostPort, namespace: o.Namespace, plain: o.ConnectionOptions.TLS == nil}
	ctx, cancel := context.WithTimeout(c.Context(), 2*dialWithin)
	defer cancel()
	var err error
	if s.client, err = a.env.Dial(ctx, o); err != nil {
		return nil, s.unreachable(err)
	}
	return s, nil
}

func (s *session) close() { s.client.Close() }

func (s *session) unreachable(err error) error {
	if s.cmd.Context().Err() != nil {
		return box.Errorf(box.ClassCanceled, "stopped while connecting to Temporal at %s", s.address)
	}
	switch code := serviceerror.ToStatus(err).Code(); code { //nolint:exhaustive // the rest means: not reached
	case codes.Unauthenticated, codes.PermissionDenied:
		return box.Errorf(box.ClassUnauthorized, "Temporal at %s refused the credentials; check TEMPORAL_API_KEY or TEMPORAL_TLS_*", s.address)
	}
	why := s.masked(err).Error()
	// gRPC's words for a server that hung up on what is no handshake; one that
	// answered in HTTP/1.1 is no Temporal.
	if s.plain && strings.Contains(why, "error reading server preface") && !strings.Contains(why, "HTTP/1.1") {
		return box.Errorf(box.ClassUnavailable, "Temporal cannot be reached at %s: %s; the server may want TLS: set TEMPORAL_TLS=true, and TEMPORAL_TLS_* for certificates; or name another address with --address", s.address, printable(why))
	}
	return box.Errorf(box.ClassUnavailable, "Temporal cannot be reached at %s: %s; start it, name another address with --address or TEMPORAL_ADDRESS, or see to TEMPORAL_TLS*", s.address, printable(why))
}

// needWorker fails with Unavailable when nobody serves the workflows, after a
// short wait for one that is just starting. It keeps a request from hanging,
// or from being held by the server where a crash loses it.
func (s *session) needWorker(ctx context.Context) error {
	if s.served {
		return nil
	}
	err := s.needPoller(ctx, box.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW)
	s.served = err == nil
	return err
}

// needPoller is needWorker for any task queue.
func (s *session) needPoller(ctx context.Context, queue string, kind enumspb.TaskQueueType) error {
	ctx, cancel := context.WithTimeout(ctx, workerWithin)
	defer cancel()
	answered := false // a last look that our own bound cut off says nothing
	for {
		seen, err := s.client.DescribeTaskQueue(ctx, queue, kind)
		answered = answered || err == nil
		switch {
		case err == nil && len(seen.GetPollers()) > 0:
			return nil
		case err != nil && ctx.Err() == nil:
			if _, denied := errors.AsType[*serviceerror.PermissionDenied](err); denied {
				return nil // who may not look finds out by asking
			}
			return s.engineError("look for workers", err)
		}
		if !sleep(ctx, lookEvery) {
			if s.cmd.Context().Err() != nil {
				return box.Errorf(box.ClassCanceled, "stopped while looking for a worker")
			}
			if !answered {
				return box.Errorf(box.ClassUnavailable, "Temporal at %s does not answer; nothing was sent; look at it with \"%s check\"", s.address, s.root.Name())
			}
			return box.Errorf(box.ClassUnavailable, "no worker serves the task queue %s at %s; nothing was sent; start one with \"%s worker\"", queue, s.address, s.root.Name())
		}
	}
}

// engineError says what Temporal's refusal of a request means.
func (s *session) engineError(doing string, err error) error {
	if _, done := errors.AsType[*box.Error](err); done {
		return err
	}
	if e, ok := errors.AsType[*serviceerror.NamespaceNotFound](err); ok {
		return box.Errorf(box.ClassFailedPrecondition, "Temporal at %s has no namespace %q; create it, or name another with --namespace", s.address, e.Namespace)
	}
	if strings.Contains(err.Error(), "no mapping defined for search attribute") || strings.Contains(err.Error(), "invalid search attribute") {
		return box.Errorf(box.ClassFailedPrecondition, "namespace %q lacks the search attributes of boxes; \"%s check\" names them: %w", s.namespace, s.root.Name(), s.masked(err))
	}
	class := box.ClassUnknown
	switch serviceerror.ToStatus(err).Code() { //nolint:exhaustive // the rest is not known
	case codes.Unavailable:
		return box.Errorf(box.ClassUnavailable, "%s: Temporal at %s does not answer; start it, or name another address with --address", doing, s.address)
	case codes.Unauthenticated, codes.PermissionDenied:
		return box.Errorf(box.ClassUnauthorized, "%s: Temporal at %s refused the credentials; check TEMPORAL_API_KEY or TEMPORAL_TLS_*", doing, s.address)
	case codes.ResourceExhausted:
		class = box.ClassExhausted
	case codes.DeadlineExceeded:
		class = box.ClassDeadlineExceeded
	case codes.Canceled:
		class = box.ClassCanceled
	case codes.InvalidArgument:
		class = box.ClassInternal // what a person gave was checked before
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		class = box.ClassDeadlineExceeded
	case errors.Is(err, context.Canceled):
		class = box.ClassCanceled
	}
	return box.Errorf(class, "%s: %w", doing, s.masked(err))
}

// sleep waits and reports whether it waited to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
