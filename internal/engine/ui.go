package engine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/temporalio/ui-server/v2/server/api"
	"github.com/temporalio/ui-server/v2/server/auth"
	"github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/csrf"
	"github.com/temporalio/ui-server/v2/server/headers"
	"github.com/temporalio/ui-server/v2/server/route"
	"github.com/temporalio/ui-server/v2/ui"
	"go.temporal.io/api/workflowservice/v1"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/engine/fault"
)

// closeWithin bounds how long open pages may hold up a stop.
const closeWithin = time.Second

// webUI serves Temporal's web UI. It is put together from the UI's own
// handlers rather than started as its server, which would end the process on a
// taken port, could not be stopped whole, and answers any host name.
type webUI struct {
	listener net.Listener
	conn     *grpc.ClientConn
	http     *http.Server
}

// newWebUI takes the port and builds the UI for the engine at address. Nothing
// is answered before serve; stop must be called in any case.
func newWebUI(o Options, address string) (*webUI, error) {
	listener, err := listen(o.Host, o.UIPort, "ui-port")
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(refuseTerminate),
	)
	if err != nil {
		_ = listener.Close()
		return nil, box.Errorf(box.ClassInternal, "connect the web UI: %w", err)
	}
	u := &webUI{listener: listener, conn: conn}
	handler, err := uiHandler(o, address, conn)
	if err != nil {
		u.stop()
		return nil, err
	}
	u.http = &http.Server{
		Handler:           loopbackHostsOnly(handler),
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      5 * time.Minute, // a whole history may be downloaded
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          zap.NewStdLog(o.Logger.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	return u, nil
}

func (u *webUI) address() string { return u.listener.Addr().String() }

// serve answers requests until stop. f gets a failure in between.
func (u *webUI) serve(f *fault.Fault) {
	go func() {
		if err := u.http.Serve(u.listener); !errors.Is(err, http.ErrServerClosed) {
			f.Set(box.Errorf(box.ClassInternal, "serve the web UI: %w", err))
		}
	}()
}

func (u *webUI) stop() {
	if u.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		if err := u.http.Shutdown(ctx); err != nil {
			_ = u.http.Close() // pages that wait for news are cut off
		}
	}
	_ = u.listener.Close() // it may never have been served
	_ = u.conn.Close()
}

func uiHandler(o Options, address string, conn *grpc.ClientConn) (http.Handler, error) {
	provider, err := config.NewConfigProviderWithRefresh(&config.Config{
		TemporalGRPCAddress: address,
		Host:                o.Host,
		EnableUI:            true,
		DefaultNamespace:    o.Namespace,
		DisableNewsFetch:    true,
		HideLogs:            true,
		// These end a workflow without its last steps: its box would go on
		// costing money with nobody left to end it.
		WorkflowTerminateDisabled: true,
		WorkflowCancelDisabled:    true,
		// It would take back what was recorded of a box, and not the box.
		WorkflowResetDisabled: true,
		// A paused workflow watches no box.
		WorkflowPauseDisabled: true,
		BatchActionsDisabled:  true,
		// The cookie against forged requests must reach plain http, which
		// loopback is.
		CORS: config.CORS{CookieInsecure: true},
	})
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "configure the web UI: %w", err)
	}
	all, err := ui.Assets()
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "read the web UI: %w", err)
	}
	assets, err := fs.Sub(all, "local")
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "read the web UI: %w", err)
	}

	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Use(middleware.Recover(), middleware.Gzip(), middleware.Secure(),
		csrf.EnsureTokenCookie(false),
		middleware.CSRFWithConfig(csrf.MiddlewareConfig(provider, false)))

	forwarded := []api.Middleware{headers.WithForwardHeaders([]string{auth.AuthorizationExtrasHeader, "Caller-Type"})}
	v1 := e.Group("/api/v1")
	v1.GET("/settings", api.GetSettings(provider))
	v1.GET("/ui-extensions", api.GetUIExtensions(provider, api.TemporalAccessCheck(conn, forwarded)))
	v1.GET(api.WorkflowRawHistoryUrl, api.WorkflowRawHistoryHandler(workflowservice.NewWorkflowServiceClient(conn)))
	// The UI's question for newer releases would leave this machine.
	v1.GET("/releases", func(c echo.Context) error {
		return c.JSON(http.StatusOK, api.LatestReleasesResponse{Releases: map[string]string{}})
	})
	v1.Any("/*", api.TemporalAPIHandler(provider, forwarded, conn))
	route.SetHealthRoute(e)
	if err := route.SetUIRoutes(e, "", assets, provider); err != nil {
		return nil, box.Errorf(box.ClassInternal, "read the web UI: %w", err)
	}
	route.SetRenderRoute(e, "/")
	return e, nil
}

// refuseTerminate holds what the UI's settings say for whoever calls its API.
func refuseTerminate(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	switch method {
	case workflowservice.WorkflowService_TerminateWorkflowExecution_FullMethodName,
		workflowservice.WorkflowService_RequestCancelWorkflowExecution_FullMethodName,
		workflowservice.WorkflowService_ResetWorkflowExecution_FullMethodName,
		workflowservice.WorkflowService_PauseWorkflowExecution_FullMethodName,
		workflowservice.WorkflowService_DeleteWorkflowExecution_FullMethodName,
		workflowservice.WorkflowService_StartBatchOperation_FullMethodName:
		return status.Error(codes.PermissionDenied,
			"this would leave the workflow's box with no owner, or with one that forgot what it did; delete the box instead")
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// loopbackHostsOnly refuses requests under a name that is not this machine's:
// a page elsewhere can make its own name point to 127.0.0.1 and then read what
// a server there answers. Other ports are fine, as through a tunnel.
func loopbackHostsOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.Trim(host, "[]")
		if ip := net.ParseIP(host); !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "the web UI answers only as localhost or 127.0.0.1; reach it through a tunnel",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
