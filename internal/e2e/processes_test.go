package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
)

// installation is a data directory with an engine and a worker that run as
// processes of their own, so that each can be killed.
type installation struct {
	t      *testing.T
	dir    string
	port   int
	engine *process
	worker *process
	env    []string
	opens  []age.Identity // what the export store is encrypted for
}

// process is one running program and what it printed.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
	done chan struct{}
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func startProcess(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{t: t, name: program + " " + strings.Join(args, " "), done: make(chan struct{})}
	p.cmd = exec.Command(self, append([]string{"as-" + program}, args...)...) //nolint:noctx // killed by the test
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, p, p
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s printed:\n%s", p.name, p.text())
		}
	})
	return p
}

// kill ends the process with SIGKILL and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// await waits until the process printed a text.
func (p *process) await(text string) {
	p.t.Helper()
	eventually(p.t, within, func() error {
		select {
		case <-p.done:
			p.t.Fatalf("%s ended: %s", p.name, p.text())
		default:
		}
		if !strings.Contains(p.text(), text) {
			return fmt.Errorf("%s has not printed %q", p.name, text)
		}
		return nil
	})
}

// eventually tries until it works, for at most as long.
func eventually(t *testing.T, most time.Duration, try func() error) {
	t.Helper()
	deadline := time.Now().Add(most)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", most, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // nothing is written
	return l.Addr().(*net.TCPAddr).Port
}

func newInstallation(t *testing.T, more ...string) *installation {
	t.Helper()
	return newInstallationWith(t, "", more...)
}

// newInstallationWith is newInstallation with a configuration file.
func newInstallationWith(t *testing.T, file string, more ...string) *installation {
	t.Helper()
	i := &installation{t: t, dir: filepath.Join(t.TempDir(), "data"), port: freePort(t)}
	i.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "BOXKEEPER_DATA=" + i.dir, "BOXKEEPER_LISTEN=off",
		fmt.Sprintf("TEMPORAL_ADDRESS=127.0.0.1:%d", i.port),
	}, more...)
	if file != "" {
		require.NoError(t, os.MkdirAll(i.dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(i.dir, "boxkeeper.toml"), []byte(file), 0o600))
	}
	i.startEngine()
	i.startWorker()
	t.Cleanup(i.killBoxes)
	return i
}

func (i *installation) startEngine() {
	i.engine = startProcess(i.t, append(slices.Clone(i.env), "BOXKEEPER_LISTEN=off"), "boxkeeperd", "--no-workers", "--no-ui", "--port", fmt.Sprint(i.port))
	i.engine.await("ready")
}

func (i *installation) startWorker() {
	i.worker = startProcess(i.t, i.env, "boxkeeper", "worker")
	i.worker.await("workers are up")
}

// run runs a command of boxkeeper to its end.
func (i *installation) run(args ...string) (stdout string, code int) {
	i.t.Helper()
	self, err := os.Executable()
	require.NoError(i.t, err)
	cmd := exec.Command(self, append([]string{"as-boxkeeper"}, args...)...) //nolint:noctx // bounded by the command's own time-out
	cmd.Env = i.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !asExit(err, &exit) {
		i.t.Fatal(err)
	}
	if code = cmd.ProcessState.ExitCode(); code != 0 {
		i.t.Logf("boxkeeper %s: exit code %d: %s", strings.Join(args, " "), code, errs.String())
	}
	return out.String(), code
}

func asExit(err error, to **exec.ExitError) bool {
	exit, ok := err.(*exec.ExitError) //nolint:errorlint // exec returns it bare
	*to = exit
	return ok
}

// ask runs a command with -o json and reads its answer.
func answerOf[A any](i *installation, args ...string) A {
	i.t.Helper()
	var answer A
	out, code := i.run(append(args, "-o", "json")...)
	require.Zero(i.t, code, "boxkeeper %v", args)
	require.NoError(i.t, json.Unmarshal([]byte(out), &answer), out)
	return answer
}

// status asks until it gets an answer: a worker or an engine may be on its way
// back.
func (i *installation) status(workspace string) (box.Status, error) {
	var s box.Status
	out, code := i.run("box", "show", workspace, "-o", "json")
	if code != 0 {
		return s, fmt.Errorf("exit code %d", code)
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil || s.Source == "" {
		return s, err
	}
	return s, fmt.Errorf("the engine does not answer yet, and the ledger says %s", s.State)
}

func (i *installation) await(workspace string, most time.Duration, states ...box.State) box.Status {
	i.t.Helper()
	var last box.Status
	eventually(i.t, most, func() error {
		s, err := i.status(workspace)
		if err != nil {
			return err
		}
		last = s
		for _, want := range states {
			if s.State == want {
				return nil
			}
		}
		return fmt.Errorf("state is %s (%s), want %v; failure %+v", s.State, s.Reason.Text, states, s.Failure)
	})
	return last
}

// boxDir is where a box's files are.
func (i *installation) boxDir(s box.Status) string {
	return filepath.Join(i.dir, "boxes", "local", "boxes", s.Ref.Name)
}

// boxPids are the processes of all boxes of this installation, by the marker in
// their environment and their directory.
func (i *installation) boxPids() []int {
	i.t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(i.t, err)
	var pids []int
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		args, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(args, []byte("--root\x00"+i.dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (i *installation) killBoxes() {
	for _, pid := range i.boxPids() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
