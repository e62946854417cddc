package housekeeping

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/openhands/boxkeeper/agentserver/idlelock"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

// The rules, as reports name them.
const (
	ruleBash     = "bash-events"
	rulePacked   = "packed-history"
	ruleTmux     = "tmux-left"
	ruleWorktree = "orphan-worktree"
)

// inHistory is why the records of bash commands that an agent-server keeps with a
// conversation are never removed.
const inHistory = "is part of the conversation's history, which stays; it goes when the conversation is deleted"

// The directories of a box that are looked at.
const (
	bashDir = "bash_events"
	tmpDir  = "tmp"
)

// quiet is how long something must be as it is before it counts as left behind.
const quiet = time.Hour

// Options is what a Keeper may be told; the zero value works.
type Options struct {
	// BashEvents is the age from which records of bash commands go; zero keeps
	// them all.
	BashEvents time.Duration
	// Temp are directories for temporary files outside of the box where its
	// agent-server makes directories for sockets; those of dead servers of our own
	// user go there too.
	Temp []string
	// Users finds a process that uses one of the paths; nil means
	// [idlelock.Users].
	Users func(ctx context.Context, paths []string) (who string, err error)
}

// Keeper looks after one box. It is safe for concurrent use.
type Keeper struct {
	root string
	opts Options
}

// New returns a keeper of the box at root, which is absolute.
func New(root string, opts Options) *Keeper {
	if opts.Users == nil {
		opts.Users = idlelock.Users
	}
	return &Keeper{root: root, opts: opts}
}

// Items lists what is left behind: what [Keeper.Take] would remove, and what
// stays, each with the reason. It changes nothing. An error means that the box
// can't be read at all.
func (k *Keeper) Items(ctx context.Context) ([]box.ReclaimItem, error) { return k.each(ctx, false) }

// Take removes what may go, and returns all items, Bytes being what came free. It
// may be repeated.
func (k *Keeper) Take(ctx context.Context) ([]box.ReclaimItem, error) { return k.each(ctx, true) }

func (k *Keeper) each(ctx context.Context, take bool) ([]box.ReclaimItem, error) {
	root, err := os.OpenRoot(k.root)
	if err != nil {
		return nil, fmt.Errorf("open the box: %w", err)
	}
	defer root.Close()
	var out []box.ReclaimItem
	for _, find := range []func(context.Context, *os.Root, bool) ([]box.ReclaimItem, error){k.bash, k.scoped, k.packed, k.tmux, k.worktrees} {
		found, err := find(ctx, root, take)
		if err != nil {
			return out, err
		}
		out = append(out, found...)
		if err := ctx.Err(); err != nil {
			return out, err
		}
	}
	return out, nil
}

func item(rule, place string) box.ReclaimItem {
	return box.ReclaimItem{Path: place, Rule: rule, Tier: box.TierCaches}
}

// allocated is what a file occupies, and comes free with its last name.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink <= 1 {
		return st.Blocks * 512
	}
	return 0
}

// bashName is a record of a bash command: its time, its kind, for an output the
// command, and an id. Both ids are hexadecimal.
var bashName = regexp.MustCompile(`^(\d{14})\d{6}_([A-Za-z]+)(?:_([0-9a-f]{32}))?_([0-9a-f]{32})$`)

// bash finds the records of commands of which none is younger than the age.
func (k *Keeper) bash(ctx context.Context, root *os.Root, take bool) ([]box.ReclaimItem, error) {
	entries, err := storage.List(root, bashDir)
	if err != nil || len(entries) == 0 {
		return nil, unreadable(bashDir, err)
	}
	out := item(ruleBash, bashDir)
	if k.opts.BashEvents <= 0 {
		out.Skipped = fmt.Sprintf("%d files are kept: no age is set from which they go", len(entries))
		return []box.ReclaimItem{out}, nil
	}
	limit := time.Now().Add(-k.opts.BashEvents)
	type record struct {
		name, command string
		bytes         int64
	}
	var old []record
	young := map[string]bool{} // commands with something younger
	for _, entry := range entries {
		parts := bashName.FindStringSubmatch(entry.Name())
		if parts == nil || !entry.Type().IsRegular() {
			continue
		}
		command := parts[3]
		if command == "" {
			command = parts[4] // the command itself
		}
		at, err := time.ParseInLocation("20060102150405", parts[1], time.UTC)
		info, errInfo := entry.Info()
		// By both of its times: neither a zone apart nor a copy makes it old.
		if err != nil || errInfo != nil || !at.Before(limit) || !info.ModTime().Before(limit) {
			young[command] = true
			continue
		}
		old = append(old, record{entry.Name(), command, allocated(info)})
	}
	count := 0
	for _, one := range old {
		if young[one.command] {
			continue // it may still run
		}
		if take {
			if ctx.Err() != nil {
				break
			}
			if err := root.Remove(path.Join(bashDir, one.name)); err != nil {
				out.Skipped = "removed in part: " + err.Error()
				continue
			}
		}
		count++
		out.Bytes += one.bytes
	}
	if count == 0 && out.Skipped == "" {
		return nil, nil
	}
	out.Evidence = fmt.Sprintf("%d records of commands, older than %s", count, k.opts.BashEvents)
	return []box.ReclaimItem{out}, nil
}

// scoped lists the records of bash commands that are kept with a conversation.
// They stay, whatever their age.
func (*Keeper) scoped(_ context.Context, root *os.Root, _ bool) ([]box.ReclaimItem, error) {
	entries, err := storage.List(root, storage.ConversationsDir)
	if err != nil {
		return nil, unreadable(storage.ConversationsDir, err)
	}
	var out []box.ReclaimItem
	for _, entry := range entries {
		if !storage.IsID(entry.Name()) || !entry.IsDir() {
			continue
		}
		one := item(ruleBash, path.Join(storage.ConversationsDir, entry.Name(), bashDir))
		one.ConversationID, one.Skipped = entry.Name(), inHistory
		if there, err := storage.IsDir(root, one.Path); err != nil {
			one.Skipped = "cannot be read: " + err.Error()
		} else if !there {
			continue
		}
		out = append(out, one)
	}
	return out, nil
}

// packed finds histories that were packed for a download which broke off: the
// agent-server removes them when it ends in order.
func (k *Keeper) packed(ctx context.Context, root *os.Root, take bool) ([]box.ReclaimItem, error) {
	entries, err := storage.List(root, storage.ConversationsDir)
	if err != nil {
		return nil, unreadable(storage.ConversationsDir, err)
	}
	var out []box.ReclaimItem
	for _, entry := range entries {
		id, zipped := strings.CutSuffix(entry.Name(), ".zip")
		if !zipped || !storage.IsID(id) || !entry.Type().IsRegular() {
			continue
		}
		one := item(rulePacked, path.Join(storage.ConversationsDir, entry.Name()))
		one.ConversationID, one.Evidence = id, "is the name under which a history is packed for a download"
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		there, errDir := storage.IsDir(root, path.Join(storage.ConversationsDir, id))
		switch {
		case err != nil:
			one.Skipped = "cannot be read: " + err.Error()
		case errDir != nil || !there:
			one.Skipped = "what it was packed from is not there any more"
		case time.Since(info.ModTime()) < quiet:
			one.Skipped = "may be in the making: it was changed less than an hour ago"
		default:
			one.Bytes, one.Skipped = allocated(info), k.used(ctx, filepath.Join(k.root, one.Path))
		}
		if take && one.Skipped == "" {
			one.Skipped = removal(root.Remove(one.Path))
		}
		out = append(out, one)
	}
	return out, nil
}

// used says why an absolute path is in use.
func (k *Keeper) used(ctx context.Context, place string) string {
	who, err := k.opts.Users(ctx, []string{place})
	switch {
	case err != nil:
		return "cannot tell whether a process uses it: " + err.Error()
	case who != "":
		return "in use by " + who
	}
	return ""
}

func removal(err error) string {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return "cannot be removed: " + err.Error()
}

// worktrees lists those of conversations that are not there any more. They stay:
// only a look with git tells what is in them.
func (k *Keeper) worktrees(_ context.Context, root *os.Root, _ bool) ([]box.ReclaimItem, error) {
	entries, err := storage.List(root, storage.WorktreesDir)
	if err != nil {
		return nil, unreadable(storage.WorktreesDir, err)
	}
	var out []box.ReclaimItem
	for _, entry := range entries {
		one := item(ruleWorktree, path.Join(storage.WorktreesDir, entry.Name()))
		id, ok := storage.ParseID(entry.Name())
		switch {
		case !entry.IsDir() || !ok:
			one.Skipped = "is no conversation's: its name is no id"
		default:
			there, err := storage.Exists(root, id)
			if err == nil && there {
				continue
			}
			one.ConversationID, one.Skipped = id, "its conversation is not there any more; it goes only once git shows that nothing in it would be lost"
			if err != nil {
				one.Skipped = "cannot tell whether its conversation is there: " + err.Error()
			}
		}
		out = append(out, one)
	}
	return out, nil
}

func unreadable(place string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("list %s: %w", place, err)
}
