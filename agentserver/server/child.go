package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/box"
)

const (
	stopBound   = 10 * time.Second // SIGTERM to SIGKILL
	firstPause  = 500 * time.Millisecond
	longPause   = 30 * time.Second
	steadyAfter = time.Minute // a run this long starts the back-off anew
)

// markName is the variable by which processes of a box are found again, however
// they detached themselves.
const markName = "BOXD_ROOT"

// child runs the agent-server, again whenever it ends, until its context ends.
type child struct {
	root   string
	argv   []string
	key    box.Secret
	env    func(string) string
	output io.Writer
	log    *slog.Logger

	mu    sync.Mutex
	base  *url.URL
	up    bool
	state agentserver.Process
}

// Target returns where the agent-server listens.
func (c *child) Target() (*url.URL, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base, c.up
}

// Process says how it is doing.
func (c *child) Process() agentserver.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// keep runs the agent-server until ctx ends, then ends it and all it left.
func (c *child) keep(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		start := time.Now()
		ended := c.run(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(start) > steadyAfter {
			pause = firstPause
		}
		c.log.Error("the agent-server ended", "how", ended, "again_in", pause)
		c.mu.Lock()
		c.up = false
		c.state.State, c.state.LastExit = "restarting", ended
		c.state.Restarts++
		c.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, longPause)
	}
	sweep(c.root, c.log)
}

// run starts the agent-server once and waits for its end; it returns how it
// ended, for people.
func (c *child) run(ctx context.Context) string {
	key := c.env("OH_SECRET_KEY")
	if key == "" {
		var err error
		if key, err = secretKey(c.root); err != nil {
			return err.Error()
		}
	}
	port, err := freePort()
	if err != nil {
		return err.Error()
	}
	command := exec.Command(c.argv[0], append(c.argv[1:len(c.argv):len(c.argv)], "--host", "127.0.0.1", "--port", strconv.Itoa(port))...) //nolint:gosec,noctx // the operator's command; it is ended in steps
	command.Dir = c.root
	command.Env = append(command.Environ(), c.environment(key)...)
	command.Stdout, command.Stderr = c.output, c.output
	command.WaitDelay = time.Second // what it left behind may hold its output open
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithUs(command.SysProcAttr)

	ended := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The kernel ends the child with the thread that made it, so this thread
		// lives as long as the child.
		runtime.LockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			ended <- command.Wait()
		}
		runtime.UnlockOSThread()
	}()
	if err := <-started; err != nil {
		return fmt.Sprintf("start %s: %v", filepath.Base(c.argv[0]), err)
	}
	c.mu.Lock()
	c.base, c.up = &url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}, true
	if c.state.State != "restarting" {
		c.state.State = "starting"
	}
	c.mu.Unlock()
	known, cancel := context.WithCancel(ctx)
	defer cancel()
	go c.awaitListening(known, port)
	select {
	case err := <-ended:
		return howEnded(command.ProcessState, err)
	case <-ctx.Done():
	}
	group := -command.Process.Pid
	_ = syscall.Kill(command.Process.Pid, syscall.SIGTERM)
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		c.log.Warn("the agent-server did not end in time and is killed", "after", stopBound)
		_ = syscall.Kill(group, syscall.SIGKILL)
		<-ended
	}
	_ = syscall.Kill(group, syscall.SIGKILL) // what it left in its group
	return "ended with us"
}

// awaitListening turns "starting" into "running" once the agent-server takes
// connections.
func (c *child) awaitListening(ctx context.Context, port int) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	dialer := net.Dialer{Timeout: time.Second}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			connection.Close()
			c.mu.Lock()
			defer c.mu.Unlock()
			if ctx.Err() == nil {
				c.state.State = "running"
			}
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// environment is what the agent-server gets over what we have.
func (c *child) environment(key string) []string {
	below := func(name string) string { return filepath.Join(c.root, name) }
	out := []string{
		markName + "=" + c.root,
		"HOME=" + below(homeDir),
		"TMUX_TMPDIR=" + below(tmpDir),
		"GIT_CEILING_DIRECTORIES=" + c.root,
		"OH_SECRET_KEY=" + key,
		"OH_CONVERSATIONS_PATH=" + below(conversationsDir),
		"OH_PERSISTENCE_DIR=" + below(persistenceDir),
		"OH_WORKSPACE_PATH=" + below(workspaceDir),
		"OH_BASH_EVENTS_DIR=" + below(bashEventsDir),
		"OH_CONVERSATION_WORKTREE_ROOT=" + below(worktreesDir),
	}
	if c.key != "" {
		out = append(out, keyVariable+"="+c.key.Reveal())
	}
	for _, name := range []string{"OH_ENABLE_VSCODE", "OH_PRELOAD_TOOLS"} {
		if c.env(name) == "" {
			out = append(out, name+"=false")
		}
	}
	return out
}

// freePort finds a loopback port for the child. Another process may take it in
// between; the child then ends, and the next try takes another.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local and instant
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("find a free port: no TCP address")
	}
	return address.Port, nil
}

func howEnded(state *os.ProcessState, err error) string {
	if state != nil {
		return state.String()
	}
	return err.Error()
}
