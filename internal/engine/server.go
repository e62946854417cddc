package engine

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/common/resolver"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
	"github.com/openhands/boxkeeper/internal/engine/fault"
)

const (
	// clusterName is recorded in the data file at its first start and cannot
	// be changed later.
	clusterName = "active"
	// shards cannot be changed later either. More than one costs throughput on
	// SQLite and gains nothing.
	shards = 1
	// startAttempts bounds the retries after a port was taken between its
	// choice and its use.
	startAttempts = 3
	// idleWithin bounds the wait for the server's last statement at a stop.
	idleWithin = 5 * time.Second
)

// server is the Temporal server with what belongs to it.
type server struct {
	temporal temporal.Server
	level    zap.AtomicLevel
	conns    *datafile.Conns
	sql      config.SQL
	fault    *fault.Fault
	logger   *zap.Logger
	stopped  func() bool // set by tryServer, runs once
}

// startServer starts the server on the port that grpcPort holds, which it
// closes right before. With an error it returns a server only when that could
// not be stopped.
func startServer(ctx context.Context, o Options, grpcPort net.Listener) (*server, error) {
	port := grpcPort.Addr().(*net.TCPAddr).Port
	for attempt := 1; ; attempt++ {
		s, err := tryServer(o, grpcPort)
		if err == nil {
			return s, nil
		}
		if !s.stop() {
			return s, err // the caller keeps the directory locked
		}
		if attempt == startAttempts || !errors.Is(err, unix.EADDRINUSE) || ctx.Err() != nil {
			return nil, err
		}
		// Either one of the internal ports was taken, and others will do, or
		// the given one was, and this says so.
		if grpcPort, err = listen(o.Host, port, "port"); err != nil {
			return nil, err
		}
	}
}

// tryServer starts the server once. The caller stops what it returns, also
// after an error.
func tryServer(o Options, grpcPort net.Listener) (*server, error) {
	defer func() { _ = grpcPort.Close() }()
	conns := datafile.TrackConns()
	s := &server{
		level:  zap.NewAtomicLevelAt(zapcore.WarnLevel),
		conns:  conns,
		fault:  fault.New(),
		logger: o.Logger,
		sql: config.SQL{
			PluginName:        sqliteplugin.PluginName,
			DatabaseName:      datafile.URIPath(datafile.Path(o.DataDir)),
			ConnectAttributes: conns.Attributes(),
			// SQLite has one writer: a second connection makes both slower and
			// fails under load.
			MaxConns:     1,
			MaxIdleConns: 1,
		},
	}
	s.stopped = sync.OnceValue(s.stopOnce)
	ns, err := sqliteschema.NewNamespaceConfig(clusterName, o.Namespace, false, o.SearchAttributes)
	if err != nil {
		return s, box.Invalidf("search-attributes", "%v", err)
	}
	ns.Detail.Config.Retention = durationpb.New(o.Retention)
	// It leaves an existing namespace alone: reconcile brings that up to date.
	if err := sqliteschema.CreateNamespaces(&s.sql, ns); err != nil {
		return s, box.Errorf(box.ClassUnavailable, "make namespace %s: %w", o.Namespace, err)
	}
	internal, err := freePorts(o.Host, grpcPort)
	if err != nil {
		return s, err
	}
	err = s.fault.Guard(func() error {
		logger := log.NewZapLogger(s.fault.Logger(o.Logger, s.level))
		srv, err := temporal.NewServer(
			temporal.WithConfig(serverConfig(o, s.sql, internal)),
			temporal.ForServices(temporal.DefaultServices),
			// Without them a restart on the same file meets members of the
			// last run that are gone, and serves nothing.
			temporal.WithStaticHosts(internal.hosts(o.Host)),
			temporal.WithLogger(logger),
			temporal.WithDynamicConfigClient(settings(o)),
		)
		if err != nil {
			return err
		}
		s.temporal = srv
		return srv.Start()
	})
	if err != nil {
		if box.ClassOf(err) == box.ClassUnknown {
			err = box.Errorf(box.ClassInternal, "start the engine: %w", err)
		}
		return s, err
	}
	return s, nil
}

// stop ends the server and closes its file. It reports whether both are done,
// and does its work once.
func (s *server) stop() bool { return s.stopped() }

func (s *server) stopOnce() bool {
	s.fault.Retire()
	// What its parts say while they lose each other is noise.
	s.level.SetLevel(zapcore.FatalLevel)
	if s.temporal != nil {
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			if err := s.temporal.Stop(); err != nil {
				s.logger.Warn("stop the engine", zap.Error(err))
			}
		}()
		select {
		case <-stopped:
		case <-time.After(stopWithin):
			return false
		}
	}
	return s.closeFile()
}

// closeFile closes the server's only connection, which its pool never does. To
// be sure that no late goroutine is in the middle of a statement it takes the
// connection out of the pool, as a transaction that is never ended: its end
// would use the closed connection. What is left behind is that one object.
func (s *server) closeFile() bool {
	held := make(chan error, 1)
	go func() {
		db, err := sql.NewSQLDB(sqlplugin.DbKindMain, &s.sql, resolver.NewNoopResolver(),
			log.NewNoopLogger(), metrics.NoopMetricsHandler)
		if err == nil {
			// Not the caller's context: when it ended, so would the transaction.
			_, err = db.BeginTx(context.Background())
		}
		held <- err
	}()
	select {
	case err := <-held:
		if err != nil {
			s.conns.Seal()
			s.logger.Warn("the data file stays open until this process ends", zap.Error(err))
			return true
		}
	case <-time.After(idleWithin):
		s.conns.Seal()
		s.logger.Warn("the data file is still in use and stays open until this process ends")
		return false
	}
	if err := s.conns.Close(); err != nil {
		s.logger.Warn("the data file stays open until this process ends", zap.Error(err))
	}
	return true
}

// ports are where the server's services listen.
type ports map[primitives.ServiceName]int

// freePorts picks a free port for each internal service. All are held until
// all are chosen, the given one included, so that no two are the same.
func freePorts(host string, grpcPort net.Listener) (ports, error) {
	chosen := ports{primitives.FrontendService: grpcPort.Addr().(*net.TCPAddr).Port}
	// The server opens the ports itself, so there is a moment in which another
	// program can take one; startServer tries again then.
	defer func() { _ = grpcPort.Close() }()
	for _, service := range []primitives.ServiceName{
		primitives.HistoryService, primitives.MatchingService, primitives.WorkerService,
	} {
		l, err := listen(host, 0, "host")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		chosen[service] = l.Addr().(*net.TCPAddr).Port
	}
	return chosen, nil
}

func (p ports) hosts(host string) map[primitives.ServiceName]static.Hosts {
	hosts := make(map[primitives.ServiceName]static.Hosts, len(p))
	for service, port := range p {
		hosts[service] = static.SingleLocalHost(net.JoinHostPort(host, strconv.Itoa(port)))
	}
	return hosts
}

// listen takes a port. flag names the setting that chose it.
func listen(host string, port int, flag string) (net.Listener, error) {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	l, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, unix.EADDRINUSE):
		return nil, box.Invalidf(flag, "%s is taken by another program: stop that one, or choose another port with --%s "+
			"(0 picks a free one)", address, flag)
	case errors.Is(err, unix.EACCES):
		return nil, box.Invalidf(flag, "%s may not be used by this user: choose a port from 1024 on with --%s", address, flag)
	}
	return nil, box.Invalidf(flag, "%s cannot be listened on, choose another address or port with --%s: %v", address, flag, err)
}

func serverConfig(o Options, store config.SQL, p ports) *config.Config {
	frontend := net.JoinHostPort(o.Host, strconv.Itoa(p[primitives.FrontendService]))
	services := make(map[string]config.Service, len(p))
	for service, port := range p {
		services[string(service)] = config.Service{RPC: config.RPC{GRPCPort: port, BindOnIP: o.Host}}
	}
	return &config.Config{
		Global: config.Global{
			Membership: config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: o.Host},
		},
		Persistence: config.Persistence{
			DefaultStore:     sqliteplugin.PluginName,
			VisibilityStore:  sqliteplugin.PluginName,
			NumHistoryShards: shards,
			DataStores:       map[string]config.DataStore{sqliteplugin.PluginName: {SQL: &store}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{
				clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: frontend},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Services:            services,
		Archival: config.Archival{
			History:    config.HistoryArchival{State: "disabled"},
			Visibility: config.VisibilityArchival{State: "disabled"},
		},
		NamespaceDefaults: config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
			History:    config.HistoryArchivalNamespaceDefaults{State: "disabled"},
			Visibility: config.VisibilityArchivalNamespaceDefaults{State: "disabled"},
		}},
		PublicClient: config.PublicClient{HostPort: frontend},
	}
}

// settings returns what differs from the server's own defaults.
func settings(o Options) dynamicconfig.StaticClient {
	s := dynamicconfig.StaticClient{
		// A person may pause a box's workflow, as a way to stop everything.
		dynamicconfig.WorkflowPauseEnabled.Key(): true,
		// One owner's many boxes do not hold up those of others.
		dynamicconfig.MatchingEnableFairness.Key(): true,
		// An added search attribute counts at once. Meant for tests, since it
		// costs a read per use; here that read is local.
		dynamicconfig.ForceSearchAttributesCacheRefreshOnRead.Key(): true,
		// The defaults protect a shared database. This one has one user, and
		// 10 lists a second is less than two open dashboards ask for.
		dynamicconfig.FrontendPersistenceMaxQPS.Key():                           10_000,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():                            45_000,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():                           10_000,
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key():        200,
		dynamicconfig.FrontendMaxNamespaceVisibilityBurstRatioPerInstance.Key(): 2.0,
	}
	if o.TimeSkipping {
		s[dynamicconfig.WorkflowTimeSkippingEnabled.Key()] = true
		// The server holds a run back whose predecessor lived for less than
		// this, and adds the skipped time to that wait twice (1.32.1): a
		// workflow that continues as new would sleep through its own timers.
		s[dynamicconfig.WorkflowIdReuseMinimalInterval.Key()] = time.Duration(0)
		// A skipped timer fires after this long in real time; the default of a
		// second makes a month of hourly timers take 12 minutes.
		s[dynamicconfig.TimerProcessorMaxTimeShift.Key()] = 10 * time.Millisecond
	}
	return s
}
