package idlelock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// Options is what a Locker may be told; the zero value works.
type Options struct {
	// NoLeases says why the agent-server keeps no leases, as [NoLeases] answers
	// it; then nothing tells from outside that a conversation is loaded, and
	// every one counts as used. Empty means that it keeps them.
	NoLeases string
	// Users finds a process that uses one of the directories, in words, empty for
	// none; nil means [Users].
	Users func(ctx context.Context, dirs []string) (who string, err error)
}

// Locker holds conversations still. It is safe for concurrent use.
type Locker struct {
	opts Options
	host string

	mu sync.Mutex
	// expired are leases that had run out with a live owner when they were first
	// seen, by conversation directory.
	expired map[string]sighting
}

// sighting is one lease file, and when it was first seen as it is.
type sighting struct {
	lease lease
	inode uint64
	at    time.Time
}

// settle is how long a lease that ran out must stay as it is, while its owner
// lives, until it counts as left behind. An owner writes it again every 15 s;
// after a box was frozen, all of its leases have run out and its conversations
// are still loaded.
const settle = 60 * time.Second

// New returns a Locker.
func New(opts Options) *Locker {
	if opts.Users == nil {
		opts.Users = Users
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // then no owner is known to be dead
	}
	return &Locker{opts: opts, host: host, expired: map[string]sighting{}}
}

// Hold keeps the conversation in conversationDir still until release is called,
// which may be repeated. When the conversation is used, or that can't be told,
// it returns busy in words and no release. It does not wait: who holds the lock
// is a user. The directories of also, where its work lies, must be free of
// processes too; those that are missing are. ClassNotFound says that there is no
// such conversation.
func (l *Locker) Hold(ctx context.Context, conversationDir string, also ...string) (release func(), busy string, err error) {
	if l.opts.NoLeases != "" {
		return nil, l.opts.NoLeases + "; so nothing tells whether it is loaded", nil
	}
	dir, err := os.OpenFile(conversationDir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", &box.Error{Class: box.ClassNotFound, Message: "this conversation has no directory"}
	case err != nil:
		return nil, "its directory cannot be opened: " + plain(err), nil
	}
	defer dir.Close()
	// Before the lock: looking through all processes takes longer than a lock
	// that others wait for may be held.
	who, err := l.opts.Users(ctx, append([]string{conversationDir}, also...))
	switch {
	case ctx.Err() != nil:
		return nil, "", box.Errorf(box.ClassCanceled, "look for users of a conversation: %w", ctx.Err())
	case err != nil:
		return nil, "cannot tell whether a process uses it: " + err.Error(), nil
	case who != "":
		return nil, "in use by " + who, nil
	}
	lock, busy := Flock(int(dir.Fd()), lockName)
	if busy != "" {
		return nil, busy, nil
	}
	if busy = l.owned(conversationDir, int(dir.Fd())); busy == "" {
		busy = running(int(dir.Fd()))
	}
	if busy != "" {
		lock()
		return nil, busy, nil
	}
	return lock, "", nil
}

// Peek says in words why the conversation in conversationDir counts as used, by
// its files alone: empty does not promise that Hold succeeds. It takes no lock
// and changes nothing. A directory that is missing is not used.
func (l *Locker) Peek(conversationDir string) (busy string) {
	if l.opts.NoLeases != "" {
		return l.opts.NoLeases + "; so nothing tells whether it is loaded"
	}
	dir, err := os.OpenFile(conversationDir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return "its directory cannot be opened: " + plain(err)
	}
	defer dir.Close()
	if busy := l.owned(conversationDir, int(dir.Fd())); busy != "" {
		return busy
	}
	return running(int(dir.Fd()))
}

// Flock takes the lock file name in the open directory dir the way Python's
// filelock does, and makes it when it is missing. It returns busy, in words,
// when somebody holds it or it is no plain file.
func Flock(dir int, name string) (release func(), busy string) {
	// Versions of filelock before 3.30 remove the file as they let go, so that
	// what was locked may have no name any more, or another file has it.
	for range 10 {
		// Not O_TRUNC: who loses must not empty the holder's file.
		fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue // on a network filesystem its removal can fall in between
		}
		if err != nil {
			return nil, "its lock " + name + " cannot be opened: " + plain(err)
		}
		again, busy := lockOpen(dir, name, fd)
		switch {
		case again:
			unix.Close(fd)
			continue
		case busy != "":
			unix.Close(fd)
			return nil, busy
		}
		return sync.OnceFunc(func() {
			_ = unix.Flock(fd, unix.LOCK_UN)
			unix.Close(fd)
		}), ""
	}
	return nil, "its lock " + name + " changes hands all the time"
}

// lockOpen locks an open lock file, and says whether to open it anew since it
// is not the one of this name any more.
func lockOpen(dir int, name string, fd int) (again bool, busy string) {
	var held, named unix.Stat_t
	if err := unix.Fstat(fd, &held); err != nil || held.Mode&unix.S_IFMT != unix.S_IFREG {
		return false, "its lock " + name + " is no plain file"
	}
	switch err := flock(fd); {
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EACCES):
		return false, "its lock " + name + " is held by another process"
	case err != nil:
		return false, "its lock " + name + " cannot be taken: " + plain(err)
	}
	if unix.Fstat(fd, &held) != nil || held.Nlink == 0 {
		return true, ""
	}
	if unix.Fstatat(dir, name, &named, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return true, ""
	}
	return named.Dev != held.Dev || named.Ino != held.Ino, ""
}

func flock(fd int) error {
	for {
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// owned says who owns the conversation; the lock is held.
func (l *Locker) owned(conversationDir string, dir int) (busy string) {
	text, inode, err := read(dir, leaseName, maxLease)
	if errors.Is(err, fs.ErrNotExist) {
		l.forget(conversationDir)
		return ""
	}
	var found lease
	if err == nil {
		found, err = parseLease(text)
	}
	if err != nil {
		return "its lease cannot be read: " + plain(err)
	}
	local := found.host != "" && found.host == l.host
	lives := local && found.pid > 0 && alive(found.pid)
	switch {
	case local && found.pid > 0 && !lives:
		return ""
	case found.expires.After(time.Now()):
		if lives {
			return "loaded by the agent-server (process " + strconv.Itoa(found.pid) + ")"
		}
		return "loaded by an agent-server on another machine, or was until a moment ago"
	case lives && !l.settled(conversationDir, found, inode):
		return "its lease has run out, and its owner (process " + strconv.Itoa(found.pid) + ") lives and may write it again; ask again in a minute"
	}
	return ""
}

// settled reports whether a lease that ran out was seen as it is before, long
// enough ago.
func (l *Locker) settled(conversationDir string, found lease, inode uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, ok := l.expired[conversationDir]
	if !ok || before.lease != found || before.inode != inode {
		l.expired[conversationDir] = sighting{lease: found, inode: inode, at: time.Now()}
		return false
	}
	return time.Since(before.at) >= settle
}

func (l *Locker) forget(conversationDir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.expired, conversationDir)
}

// running says whether the conversation executes, by what is on the disk.
func running(dir int) (busy string) {
	text, _, err := read(dir, stateName, maxState)
	var status string
	if err == nil {
		status, err = statusOf(text)
	}
	switch {
	case err != nil:
		return "its state cannot be read: " + plain(err)
	case status == "running" || status == "deleting":
		return "is " + status
	}
	return ""
}

// alive reports whether there is a process with this number; one that may not be
// asked is.
func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// read returns a plain file in an open directory, and its inode.
func read(dir int, name string, most int64) (text []byte, inode uint64, err error) {
	// O_NONBLOCK: a pipe of this name must not hold us up.
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, errors.New(name + " is no plain file")
	}
	text, err = io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return text, st.Ino, err
}

// plain drops the path of an error, which the reader knows.
func plain(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return filepath.Base(path.Path) + ": " + path.Err.Error()
	}
	return err.Error()
}

// NoLeases says why an agent-server keeps no leases, empty when it does. env is
// its environment and root the directory that it starts in. A setting that does
// not read is taken for none.
func NoLeases(env func(string) string, root string) string {
	const setting = "OH_LEASE_TTL_SECONDS"
	if value := env(setting); value != "" {
		if seconds, err := strconv.ParseFloat(value, 64); err != nil || !(seconds > 0) {
			return "the agent-server keeps no leases (" + setting + "=" + value + ")"
		}
		return ""
	}
	file := env("OPENHANDS_AGENT_SERVER_CONFIG_PATH")
	if file == "" {
		file = "workspace/openhands_agent_server_config.json"
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(root, file)
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	var fields map[string]json.RawMessage
	if err == nil && len(bytes.TrimSpace(text)) > 0 {
		fields, err = topLevel(text)
	}
	if err != nil {
		return "the settings of the agent-server cannot be read: " + plain(err)
	}
	raw, ok := fields["lease_ttl_seconds"]
	var seconds float64
	if ok && (json.Unmarshal(raw, &seconds) != nil || !(seconds > 0)) {
		return "the agent-server keeps no leases (lease_ttl_seconds in its settings)"
	}
	return ""
}
