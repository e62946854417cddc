package housekeeping

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

var tmuxName = regexp.MustCompile(`^openhands-agent-server-([1-9]\d{0,9})$`)

// creationLock is what agent-servers leave beside their sockets.
const creationLock = ".openhands-socket-creation.lock"

// tmux finds the socket directories of agent-servers that are dead, in the box and
// where one makes them whose paths in the box are too long for a socket.
func (k *Keeper) tmux(ctx context.Context, root *os.Root, take bool) ([]box.ReclaimItem, error) {
	out, err := k.socketDirs(ctx, socketPlace{root, tmpDir, filepath.Join(k.root, tmpDir), tmpDir}, take)
	if err != nil {
		return nil, err
	}
	for _, temp := range k.opts.Temp {
		outside, err := os.OpenRoot(temp)
		if err != nil {
			continue // it is not there, or not for us to read
		}
		found, err := k.socketDirs(ctx, socketPlace{outside, ".", temp, temp}, take)
		outside.Close()
		if err != nil {
			return out, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// socketPlace is a directory in which servers make theirs.
type socketPlace struct {
	root *os.Root
	dir  string // below root
	abs  string
	name string // for people
}

func (k *Keeper) socketDirs(ctx context.Context, at socketPlace, take bool) ([]box.ReclaimItem, error) {
	entries, err := storage.List(at.root, at.dir)
	if err != nil {
		return nil, unreadable(at.name, err)
	}
	var out []box.ReclaimItem
	for _, entry := range entries {
		parts := tmuxName.FindStringSubmatch(entry.Name())
		if parts == nil || !entry.IsDir() {
			continue
		}
		one := item(ruleTmux, path.Join(at.name, entry.Name()))
		one.Evidence = "is named after process " + parts[1]
		pid, err := strconv.Atoi(parts[1])
		info, errInfo := entry.Info()
		lives := !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
		switch {
		case errors.Is(errInfo, fs.ErrNotExist), at.dir == "." && (lives || !own(info)):
			continue // outside of the box it may be anybody's
		case err != nil || errInfo != nil:
			one.Skipped = "cannot be read"
		case lives:
			one.Skipped = "process " + parts[1] + " lives"
		case time.Since(info.ModTime()) < quiet:
			one.Skipped = "was changed less than an hour ago"
		default:
			abs := filepath.Join(at.abs, entry.Name())
			if one.Skipped = listening(abs); one.Skipped == "" {
				one.Skipped = k.used(ctx, abs)
			}
		}
		if one.Skipped == "" {
			one.Bytes, one.Skipped = sockets(at.root, path.Join(at.dir, entry.Name()), take, 0)
		}
		out = append(out, one)
	}
	return out, nil
}

// own reports whether a file is our user's.
func own(info fs.FileInfo) bool {
	if info == nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// listening says that a process listens on a socket in the directory: a tmux
// server outlives the agent-server that started it.
func listening(dir string) string {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return "cannot tell whether a process listens there: " + err.Error()
	}
	if strings.Contains(string(table), dir+"/") {
		return "a process listens on a socket in it"
	}
	return ""
}

// answers says why a socket may have a process behind it: one of another namespace
// is in no list of ours.
func answers(socket string) string {
	connection, err := net.DialTimeout("unix", socket, time.Second) //nolint:noctx // local, and bounded
	switch {
	case err == nil:
		connection.Close()
		return "a process listens on a socket in it"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return ""
	}
	return "cannot tell whether a process listens there: " + err.Error()
}

// sockets measures, and with take removes, a directory that holds nothing but
// sockets that nobody listens on, the lock that is left beside them, and
// directories of them; anything else in it keeps the whole.
func sockets(root *os.Root, place string, take bool, depth int) (freed int64, why string) {
	entries, err := storage.List(root, place)
	if err != nil {
		return 0, "cannot be read: " + err.Error()
	}
	for _, entry := range entries {
		switch below := path.Join(place, entry.Name()); {
		case entry.IsDir() && depth < 2:
			if _, why := sockets(root, below, false, depth+1); why != "" {
				return 0, why
			}
		case entry.Name() == creationLock && isEmptyFile(entry):
		case entry.Type()&fs.ModeSocket == 0:
			return 0, "holds " + strconv.Quote(entry.Name()) + ", which is no socket"
		default:
			if why := answers(filepath.Join(root.Name(), below)); why != "" {
				return 0, why
			}
		}
	}
	for _, entry := range entries {
		below := path.Join(place, entry.Name())
		if entry.IsDir() {
			more, why := sockets(root, below, take, depth+1)
			if why != "" {
				return freed, why
			}
			freed += more
		} else if take {
			if why := removal(root.Remove(below)); why != "" {
				return freed, why
			}
		}
	}
	info, err := root.Lstat(place)
	if err != nil {
		return freed, removal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		freed += st.Blocks * 512
	}
	if take {
		return freed, removal(root.Remove(place))
	}
	return freed, ""
}

func isEmptyFile(entry fs.DirEntry) bool {
	info, err := entry.Info()
	return err == nil && info.Mode().IsRegular() && info.Size() == 0
}
