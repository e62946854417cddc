package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/agentserver/bounded"
	"github.com/openhands/boxkeeper/box"
)

// Options is what a [Git] may be told; the zero value works.
type Options struct {
	// Program is the path of git; empty means the first one in PATH.
	Program string
	// Timeout bounds one question; zero means 10 seconds. Streams (bundles and
	// patches) are bounded by their context alone.
	Timeout time.Duration
	// MaxOutput bounds what one question may answer, in bytes; zero means 256
	// MiB. Answers are not kept, so this bounds time and not memory.
	MaxOutput int64
	// Scratch are the directories in which a stand-in of a few kilobytes may be
	// made; the first that has room is taken. Empty means memory where the
	// system has a place for it, then the system's directory for temporary files.
	Scratch []string
}

// Git runs the git program. It is safe for concurrent use.
type Git struct {
	opts  Options
	looks bounded.Looks // at files of repositories
}

// New returns a Git. ClassUnsupported when there is no git program: then nothing
// is known of any repository, and all are to be kept.
func New(opts Options) (*Git, error) {
	if opts.Program == "" {
		found, err := exec.LookPath("git")
		if err != nil {
			return nil, box.Errorf(box.ClassUnsupported, "find git: %w; install it in the box, or nothing can be said of its repositories", err)
		}
		opts.Program = found
	}
	program, err := filepath.Abs(opts.Program)
	if err != nil {
		return nil, fmt.Errorf("find git: %w", err)
	}
	opts.Program = program
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Second
	}
	if opts.MaxOutput <= 0 {
		opts.MaxOutput = 256 << 20
	}
	if len(opts.Scratch) == 0 {
		opts.Scratch = []string{"/dev/shm", os.TempDir()}
	}
	return &Git{opts: opts}, nil
}

// run is one run of git.
type run struct {
	dir  string
	env  []string
	args []string
	// config are further settings, as "name=value".
	config []string
	// besides are paths, in git's words for such, that the answer is not about.
	besides []string
	stdin   io.Reader
	// out reads the answer; what it leaves is drained. Its error wins over that
	// of git, which may only have been told to stop.
	out    func(io.Reader) error
	stream bool // bounded by ctx alone
}

const maxSaid = 4 << 10 // of what git says on failing

// base are the settings of every run. They repeat what the stand-in's own
// configuration says by saying nothing, for the runs without one.
var base = []string{ //nolint:gochecknoglobals // a constant table
	"--no-optional-locks", "--no-pager", literal,
	"-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", "core.hooksPath=/dev/null",
	"-c", "core.commitGraph=false", "-c", "protocol.allow=never", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
	"-c", "core.quotePath=false", "-c", "advice.detachedHead=false",
}

// literal makes a path mean nothing but itself.
const literal = "--literal-pathspecs"

func (g *Git) environment(extra []string) []string {
	return append([]string{
		"PATH=" + filepath.Dir(g.opts.Program) + ":/usr/local/bin:/usr/bin:/bin",
		"HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "LC_ALL=C", "LANGUAGE=", "TZ=UTC",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_ALLOW_PROTOCOL=none",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "GIT_SSH_COMMAND=/bin/false",
		"GIT_EDITOR=/bin/false", "GIT_PAGER=cat", "GIT_TRACE2=0", "GIT_TRACE2_EVENT=0", "GIT_TRACE2_PERF=0",
	}, extra...)
}

// do runs git once. The error is of class DeadlineExceeded or Canceled when it
// did not end in time, Exhausted when it said too much, and Unknown with what git
// said when it failed.
func (g *Git) do(ctx context.Context, what run) error {
	name := "git " + what.args[0]
	inner, cancel := context.WithCancel(ctx)
	if !what.stream {
		inner, cancel = context.WithTimeout(ctx, g.opts.Timeout)
	}
	defer cancel()
	args := slices.Clone(base)
	for _, one := range what.config {
		args = append(args, "-c", one)
	}
	args = append(args, what.args...)
	if len(what.besides) > 0 {
		args = append(slices.DeleteFunc(args, func(arg string) bool { return arg == literal }), "--", ".")
		args = append(args, what.besides...)
	}
	cmd := exec.CommandContext(inner, g.opts.Program, args...) //nolint:gosec // the program is the operator's
	cmd.Dir, cmd.Env, cmd.Stdin = what.dir, g.environment(what.env), what.stdin
	var said bytes.Buffer
	cmd.Stderr = &head{to: &said, left: maxSaid}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithUs(cmd.SysProcAttr)
	// With its group, so that what git started ends as well.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return box.Errorf(box.ClassUnknown, "%s: %w", name, err)
	}
	goFirst(cmd.Process.Pid)
	most := g.opts.MaxOutput
	if what.stream {
		most = 1 << 62
	}
	answer := &limited{from: pipe, left: most}
	var read error
	if what.out != nil {
		read = what.out(answer)
	}
	if read == nil {
		_, read = io.Copy(io.Discard, answer)
	}
	if read != nil {
		cancel() // nobody reads the rest
	}
	ended, over := wait(inner, cmd)
	switch {
	case ctx.Err() != nil:
		return box.Errorf(box.ClassCanceled, "%s: %w", name, context.Cause(ctx))
	case errors.Is(inner.Err(), context.DeadlineExceeded):
		return box.Errorf(box.ClassDeadlineExceeded, "%s: no answer within %s", name, g.opts.Timeout)
	case !over:
		return box.Errorf(box.ClassDeadlineExceeded, "%s: it was killed and does not end", name)
	case read != nil:
		return fmt.Errorf("%s: %w", name, read)
	case what.stdin != nil && errors.Is(ended, exec.ErrWaitDelay):
		// It ended well and before its input did: nothing that it needed is late.
	case ended != nil:
		return box.Errorf(box.ClassUnknown, "%s: %w: %s", name, ended, oneLine(said.String()))
	}
	return nil
}

// wait returns how a command ended. One that was killed and waits for a file server
// does not end before that answers; then over is false.
func wait(ctx context.Context, cmd *exec.Cmd) (ended error, over bool) { //nolint:revive // the error is the command's, not ours
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	select {
	case ended = <-waited:
		return ended, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(2 * cmd.WaitDelay)
	defer timer.Stop()
	select {
	case ended = <-waited:
		return ended, true
	case <-timer.C:
		return nil, false
	}
}

// text runs git and returns its answer, which must be short.
func (g *Git) text(ctx context.Context, what run) (string, error) {
	var out strings.Builder
	what.out = func(r io.Reader) error {
		n, err := io.Copy(&out, io.LimitReader(r, maxShort+1))
		if err == nil && n > maxShort {
			return box.Errorf(box.ClassExhausted, "the answer is longer than %d bytes", maxShort)
		}
		return err
	}
	err := g.do(ctx, what)
	return out.String(), err
}

const maxShort = 1 << 20

// head keeps the beginning of what is written to it.
type head struct {
	to   *bytes.Buffer
	left int
}

func (h *head) Write(p []byte) (int, error) {
	keep := p[:min(len(p), h.left)]
	h.left -= len(keep)
	h.to.Write(keep)
	return len(p), nil
}

// limited fails when more is read than is allowed.
type limited struct {
	from io.Reader
	left int64
}

func (b *limited) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, box.Errorf(box.ClassExhausted, "the answer is longer than allowed")
	}
	// The pipe was closed by the end of the process or by our own impatience,
	// which the caller tells apart.
	if errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

// oneLine makes what git said fit to show: names in it are the repository's.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(text), "?"))
	if len(text) > 300 {
		return strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
