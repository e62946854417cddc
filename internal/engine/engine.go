package engine

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/datafile"
)

const (
	// readyWithin bounds the wait until a started server is usable.
	readyWithin = 60 * time.Second
	// stopWithin bounds the server's own shutdown, which takes a second as a
	// rule and would wait for minutes on a stuck part.
	stopWithin = 30 * time.Second
)

// Engine is a running engine. Its methods are safe for concurrent use.
type Engine struct {
	opts    Options
	address string
	server  *server
	ui      *webUI // nil when there is none
	lock    *datafile.Lock
	stop    sync.Once
}

// Lock is the right to serve one data directory.
type Lock = datafile.Lock

// Acquire takes the lock of a data directory, for Options. FailedPrecondition
// names the process that holds it.
func Acquire(dataDir string) (*Lock, error) { return datafile.Acquire(dataDir) }

// Start runs an engine on o.DataDir and returns once its namespace is usable
// and has every search attribute.
//
// Invalid names an option at fault, a port that is taken among them.
// FailedPrecondition says that the data directory cannot be served as it is:
// another process holds it, a newer engine made its file, or a search
// attribute has another type there. Nothing keeps running after an error.
func Start(ctx context.Context, o Options) (_ *Engine, err error) {
	e := &Engine{lock: o.Lock}
	defer func() {
		if err != nil {
			e.Stop()
		}
	}()
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	e.opts = o
	if e.lock == nil {
		if e.lock, err = datafile.Acquire(o.DataDir); err != nil {
			return nil, err
		}
	}
	grpcPort, err := listen(o.Host, o.GRPCPort, "port")
	if err != nil {
		return nil, err
	}
	defer func() { _ = grpcPort.Close() }() // closed earlier, right before the server takes the port
	e.address = grpcPort.Addr().String()
	if !o.NoUI {
		if e.ui, err = newWebUI(o, e.address); err != nil {
			return nil, err
		}
	}

	prepared, err := datafile.Prepare(ctx, o.DataDir, schemaOf())
	if err != nil {
		return nil, err
	}
	logPrepared(o.Logger, o.DataDir, prepared)
	if e.server, err = startServer(ctx, o, grpcPort); err != nil {
		return nil, err
	}
	readyCtx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err = reconcile(readyCtx, o, e.address, e.server.fault); err != nil {
		if errors.Is(readyCtx.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
			err = box.Errorf(box.ClassUnavailable,
				"the engine was not usable within %s; look at its log, then start it again: %w", readyWithin, err)
		}
		return nil, err
	}
	if e.ui != nil {
		e.ui.serve(e.server.fault)
	}
	o.Logger.Info("engine is ready", zap.String("address", e.address), zap.String("ui", e.UIURL()))
	return e, nil
}

// Address returns the host and port of the engine's gRPC API.
func (e *Engine) Address() string { return e.address }

// UIURL returns the address of the web UI, empty when there is none.
func (e *Engine) UIURL() string {
	if e.ui == nil {
		return ""
	}
	return "http://" + e.ui.address()
}

// WorkflowURL returns the page of one workflow in the web UI, empty when there
// is none.
func (e *Engine) WorkflowURL(workflowID string) string {
	if e.ui == nil {
		return ""
	}
	return e.UIURL() + "/namespaces/" + url.PathEscape(e.opts.Namespace) + "/workflows/" + url.PathEscape(workflowID)
}

// Done is closed when the engine fails by itself; Err then tells why. The
// process should stop its other parts, call Stop, and end: nothing that was
// accepted is lost, and the next start carries on.
func (e *Engine) Done() <-chan struct{} { return e.server.fault.Done() }

// Err returns why the engine failed, nil while it has not.
func (e *Engine) Err() error { return e.server.fault.Err() }

// Stop ends the engine and frees its ports, its file and its data directory.
// It may be called twice; the second call waits for the first. Workflows go on
// at the next start.
func (e *Engine) Stop() {
	e.stop.Do(func() {
		if e.ui != nil {
			e.ui.stop()
		}
		// A server that cannot be stopped may still write, so it keeps the
		// lock, which ends with the process.
		if e.server != nil && !e.server.stop() {
			e.opts.Logger.Error("the engine did not stop; its data directory stays locked until this process ends",
				zap.Duration("waited", stopWithin))
			return
		}
		if e.lock != nil {
			e.lock.Release()
		}
	})
}

func logPrepared(logger *zap.Logger, dataDir string, p datafile.Prepared) {
	switch {
	case p.Created:
		logger.Info("made a new data file", zap.String("file", datafile.Path(dataDir)))
	case p.Backup != "":
		logger.Info("brought the data file to the newest schema",
			zap.String("from", p.From), zap.String("to", p.To), zap.String("backup", p.Backup))
	}
}
