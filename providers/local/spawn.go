package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	keyVariable = "OH_SESSION_API_KEYS_0"
	markBox     = "BOXKEEPER_BOX"
	markEngine  = "BOXKEEPER_ENGINE"

	addressFile = "run/address"
	logFile     = "run/boxd.log"
	// logLimit is where the log of a box is moved aside, at its next start.
	logLimit = 16 << 20
)

// child is a process that this driver started itself, and so may wait for.
type child struct {
	process process
	done    chan struct{} // closed when it has ended
	reason  string        // how; read only after done
}

// environ is what boxd is started with: nothing of the worker's own.
func (d *Driver) environ(name string, start driver.Start) ([]string, error) {
	engine, err := d.place.id()
	if err != nil {
		return nil, err
	}
	dir := d.place.box(name)
	fixed := map[string]string{
		"HOME":     dir + "/home",
		"TMPDIR":   dir + "/tmp",
		markBox:    name,
		markEngine: engine,
	}
	if start.SessionKey != "" {
		fixed[keyVariable] = start.SessionKey.Reveal()
	}
	given, err := start.Variables(fixed)
	if err != nil {
		return nil, err
	}
	all := map[string]string{"PATH": d.opts.Path, "LANG": "C.UTF-8"}
	maps.Copy(all, given)
	maps.Copy(all, fixed)
	out := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, name+"="+all[name])
	}
	return out, nil
}

// spawn starts boxd for a box whose record intends to run, under its lock. A
// process that an earlier worker started and did not live to record is taken
// over instead.
func (d *Driver) spawn(ctx context.Context, rec *record, env []string) error {
	name := rec.Identity.Name()
	boot, err := currentBoot()
	if err != nil {
		return ioError("read the boot id", err)
	}
	_, found, err := d.members(name, rec, nil)
	if err != nil {
		return err
	}
	if found != nil {
		rec.Process = &process{PID: found.pid, Start: found.start, Boot: boot}
		rec.Started, rec.StartedAt = true, time.Now().UTC()
		return d.place.write(rec)
	}
	if err := driver.Ended(ctx); err != nil {
		return err
	}
	log, err := d.prepare(name)
	if err != nil {
		return err
	}
	defer log.Close()
	argv := append(slices.Clone(d.opts.Command), "--root", d.place.box(name), "--listen", "127.0.0.1:0",
		"--own-passes=false") // boxkeeper suspends the box, and asks before it does
	if len(d.opts.AgentServer) > 0 {
		argv = append(append(argv, "--"), d.opts.AgentServer...)
	}
	// The box outlives the call, the worker's request and the worker.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...) //nolint:gosec // the operator's command
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, d.place.box(name), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		class := box.ClassFailedPrecondition
		if isFull(err) {
			class = box.ClassExhausted
		}
		return box.Errorf(class, "start %s; does the program exist and may it be run? %w", argv[0], err)
	}
	// Nobody waits for the child yet, so its pid cannot have been used again.
	self, err := processOf(cmd.Process.Pid)
	c := &child{done: make(chan struct{})}
	if err == nil {
		c.process = process{PID: self.pid, Start: self.start, Boot: boot}
	}
	d.mu.Lock()
	d.children[name] = c
	d.mu.Unlock()
	go d.reap(name, cmd, c)
	if err != nil {
		return ioError("read the start time of a process", err)
	}
	rec.Process = &c.process
	rec.Started, rec.StartedAt = true, time.Now().UTC()
	return d.place.write(rec)
}

// reap waits for a child, which would stay in the process table otherwise.
func (d *Driver) reap(name string, cmd *exec.Cmd, c *child) {
	err := cmd.Wait()
	c.reason = fmt.Sprintf("process %d ended: %s", c.process.PID, cmd.ProcessState)
	if cmd.ProcessState == nil {
		c.reason = fmt.Sprintf("process %d ended: %v", c.process.PID, err)
	}
	close(c.done)
	d.opts.Logger.Info("box process ended", "box", name, "how", c.reason)
}

// prepare makes what a start needs in the box's directory, and opens its log.
// What is in the directory is the box's: no link in it may lead us out.
func (d *Driver) prepare(name string) (*os.File, error) {
	root, err := os.OpenRoot(d.place.box(name))
	if err != nil {
		return nil, ioError("open the directory of box "+name, err)
	}
	defer root.Close()
	refuse := func(what string, err error) error {
		if isFull(err) {
			return ioError(what, err)
		}
		return box.Errorf(box.ClassFailedPrecondition, "%s in the directory of box %s; move it away: %w", what, name, err)
	}
	for _, dir := range []string{"home", "tmp", "run"} {
		if err := root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, refuse("make "+dir, err)
		}
		if info, err := root.Lstat(dir); err != nil || !info.IsDir() {
			return nil, box.Errorf(box.ClassFailedPrecondition, "%s in the directory of box %s is not a directory; move it away", dir, name)
		}
	}
	// A stale address would send the box's key to whoever has the port now.
	if err := root.Remove(addressFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("remove "+addressFile, err)
	}
	if info, err := root.Lstat(logFile); err == nil && info.Mode().IsRegular() && info.Size() > logLimit {
		if err := root.Rename(logFile, logFile+".1"); err != nil {
			return nil, refuse("move "+logFile+" aside", err)
		}
	}
	// Without O_NONBLOCK a named pipe in its place would hold us here.
	log, err := root.OpenFile(logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, refuse("open "+logFile, err)
	}
	if info, err := log.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = log.Close()
		return nil, box.Errorf(box.ClassFailedPrecondition, "%s in the directory of box %s is not a file; move it away", logFile, name)
	}
	return log, nil
}

// address reads where boxd listens. Only a port of this machine is believed:
// the caller sends a key there.
func (d *Driver) address(name string) (string, error) {
	root, err := os.OpenRoot(d.place.box(name))
	if err != nil {
		return "", ioError("open the directory of box "+name, err)
	}
	defer root.Close()
	file, err := root.OpenFile(addressFile, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &box.Error{Class: box.ClassUnavailable, Message: "box " + name + " does not listen yet; ask again", RetryAfter: 250 * time.Millisecond}
	}
	if err != nil {
		return "", ioError("read the address of box "+name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", box.Errorf(box.ClassUnknown, "the address of box %s is not a file", name)
	}
	raw, err := io.ReadAll(io.LimitReader(file, 64))
	if err != nil {
		return "", ioError("read the address of box "+name, err)
	}
	at := strings.TrimSpace(string(raw))
	port, ok := strings.CutPrefix(at, "http://")
	listen, err := netip.ParseAddrPort(port)
	if !ok || err != nil || !listen.Addr().IsLoopback() || listen.Port() == 0 {
		return "", box.Errorf(box.ClassUnknown, "the address that box %s wrote is not http://127.0.0.1:PORT", name)
	}
	return at, nil
}
