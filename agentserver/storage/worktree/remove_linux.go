package worktree

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/box"
)

const (
	// lockReason is ours; a lock with another one is somebody else's.
	lockReason = "boxd: being removed"
	// asidePrefix begins the names of worktrees that are being removed.
	asidePrefix = ".boxd-removing-"
)

// root is the directory that the worktrees were in when it was first seen, so
// that another one or a link in its place is noticed.
type root struct {
	known    bool
	dev, ino uint64
}

func (r *root) note(at string) error {
	var st unix.Stat_t
	err := unix.Lstat(at, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("look at the root of the worktrees: %w", err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return box.Errorf(box.ClassFailedPrecondition, "the root of the worktrees is a link or a file; name a directory")
	}
	*r = root{known: true, dev: uint64(st.Dev), ino: st.Ino} //nolint:unconvert // the width differs between architectures
	return nil
}

func (r *root) same(at string) error {
	var now root
	if err := now.note(at); err != nil {
		return err
	}
	if r.known && now != *r {
		return box.Errorf(box.ClassFailedPrecondition, "the root of the worktrees was replaced; restart boxd when that was meant")
	}
	return nil
}

// Judge says of each worktree of a conversation why Remove would leave it. It
// removes nothing.
func (l *Layout) Judge(ctx context.Context, conversation string, confirmed bool) ([]box.ReclaimItem, error) {
	return l.each(ctx, conversation, func(one *removal) (evidence, skipped string) {
		v := l.judge(ctx, one.place)
		if len(v.doubts) > 0 || len(v.losses) > 0 && !confirmed {
			return "", strings.Join(v.reasons(), "; ")
		}
		if len(v.losses) > 0 {
			return "kept elsewhere first: " + strings.Join(v.losses, "; "), ""
		}
		return v.evidence, ""
	})
}

// Remove removes the worktrees of a conversation that hold nothing of their own,
// by the rule in the package comment, and says of each that it leaves why. With
// confirmed, a person has accepted the loss of what it would name: that is then
// kept as references and as an archive before. Doubts are confirmed away by
// nothing. It may be repeated; one call at a time for a conversation. The
// conversation should be conversation-archived before.
func (l *Layout) Remove(ctx context.Context, conversation string, confirmed bool) ([]box.ReclaimItem, error) {
	return l.each(ctx, conversation, func(one *removal) (evidence, skipped string) { return one.run(ctx, confirmed) })
}

// each does something with every worktree of a conversation. What a crash left
// aside is put right first.
func (l *Layout) each(ctx context.Context, conversation string, do func(*removal) (evidence, skipped string)) ([]box.ReclaimItem, error) {
	if !storage.IsID(conversation) {
		return nil, box.Invalidf("conversation", "%q is not the id of a conversation; use 32 hexadecimal digits", conversation)
	}
	tree, err := l.open()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	dir := storage.Dashed(conversation)
	fd, names, err := tree.List(tree.Fd(), dir)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		item := itemOf(conversation, dir)
		item.Skipped = "cannot be opened without following a link or crossing a mount: " + err.Error()
		return []box.ReclaimItem{item}, nil
	}
	defer unix.Close(fd)
	slices.SortFunc(names, func(a, b reclaim.Name) int { return strings.Compare(a.Name, b.Name) })
	var out []box.ReclaimItem
	for _, name := range names {
		if strings.HasPrefix(name.Name, asidePrefix) {
			l.recover(ctx, fd, dir, name.Name)
			continue
		}
		one := &removal{layout: l, tree: tree, dir: fd, conversation: conversation, place: path.Join(dir, name.Name)}
		item := itemOf(conversation, one.place)
		item.Evidence, item.Skipped = do(one)
		out = append(out, item)
	}
	// Succeeds only when nothing is left in it.
	_ = unix.Unlinkat(tree.Fd(), dir, unix.AT_REMOVEDIR)
	return out, nil
}

// open opens the root, when it is the one that was meant.
func (l *Layout) open() (*reclaim.Beneath, error) {
	if err := l.root.same(l.dir); err != nil {
		return nil, err
	}
	tree, err := reclaim.OpenBeneath(l.dir)
	if err != nil {
		return nil, err
	}
	// The descriptor is the root from now on; the look before was by name.
	var st unix.Stat_t
	err = unix.Fstat(tree.Fd(), &st)
	if err == nil && l.root.known && (uint64(st.Dev) != l.root.dev || st.Ino != l.root.ino) { //nolint:unconvert // the width differs between architectures
		err = box.Errorf(box.ClassFailedPrecondition, "the root of the worktrees was replaced; restart boxd when that was meant")
	}
	if err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

// Recover puts worktrees back whose removal a crash cut off, or ends it where git
// had unlisted them. Call it before anything works in the box, and whenever.
func (l *Layout) Recover(ctx context.Context) error {
	tree, err := l.open()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer tree.Close()
	fd, owners, err := tree.List(tree.Fd(), ".")
	if err != nil {
		return fmt.Errorf("list the worktrees: %w", err)
	}
	unix.Close(fd)
	for _, owner := range owners {
		if _, ok := fromDashed(owner.Name); !ok || owner.Kind != unix.DT_DIR {
			continue
		}
		dir, names, err := tree.List(tree.Fd(), owner.Name)
		if err != nil {
			continue // Places says so
		}
		for _, name := range names {
			if strings.HasPrefix(name.Name, asidePrefix) {
				l.recover(ctx, dir, owner.Name, name.Name)
			}
		}
		unix.Close(dir)
		_ = unix.Unlinkat(tree.Fd(), owner.Name, unix.AT_REMOVEDIR) // when it is empty
	}
	return ctx.Err()
}

// removal is one worktree on its way out.
type removal struct {
	layout       *Layout
	tree         *reclaim.Beneath
	dir          int // of the conversation
	conversation string
	place        string // relative to the root
	archived     string // where all of it was kept; empty when nothing was lost
}

// run returns what it was recognised by, and why it was left; empty when it is
// gone.
func (m *removal) run(ctx context.Context, confirmed bool) (evidence, skipped string) {
	l := m.layout
	_, name := split(m.place)
	fd, err := m.tree.Open(m.dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return "", "cannot be opened without following a link or crossing a mount: " + err.Error()
	}
	defer unix.Close(fd)
	if why := mounted(filepath.Join(m.tree.Root(), m.place)); why != "" {
		return "", why
	}
	before, err := fingerprint(ctx, m.tree, m.dir, name)
	if err != nil {
		return "", "cannot be read: " + err.Error()
	}
	first := l.judge(ctx, m.place)
	if len(first.doubts) > 0 || len(first.losses) > 0 && !confirmed {
		return "", strings.Join(first.reasons(), "; ")
	}
	r, err := l.opts.Git.Open(ctx, filepath.Join(l.dir, m.place))
	if err != nil {
		return "", "cannot be judged: " + err.Error()
	}
	defer r.Close()
	heads, err := r.Remembered()
	if err != nil {
		return "", "cannot be judged: " + err.Error()
	}
	if len(first.losses) > 0 {
		if m.archived, err = l.rescue(ctx, r, m.conversation, m.place); err != nil {
			return "", "cannot be kept elsewhere, so it stays: " + err.Error()
		}
		first.evidence = "all of it is kept in " + m.archived
	}
	release, busy, err := l.Hold(ctx, m.conversation)
	switch {
	case err != nil:
		return "", "cannot tell whether its conversation is in use: " + err.Error()
	case busy != "":
		return "", "its conversation is in use: " + busy
	}
	defer release()
	if _, locked := r.Locked(); !locked {
		if err := r.Lock(ctx, lockReason); err != nil {
			return "", "cannot be locked: " + err.Error()
		}
	}
	skipped = m.take(ctx, r, fd, name, before, heads)
	if skipped != "" {
		if _, err := os.Lstat(r.WorkTree()); err == nil {
			if reason, locked := r.Locked(); locked && reason == lockReason {
				// Also when ctx has ended: a lock that stays would keep it for ever.
				if err := r.Unlock(context.WithoutCancel(ctx)); err != nil {
					skipped += "; it stays locked: " + err.Error()
				}
			}
		}
		return "", skipped
	}
	return first.evidence, ""
}

// take is what happens while the conversation is held and the worktree locked.
func (m *removal) take(ctx context.Context, r *repo.Repository, fd int, name, before string, heads []string) (skipped string) {
	l := m.layout
	// Asked again: what was true before the lock may not be true any more.
	again := l.judge(ctx, m.place)
	if len(again.doubts) > 0 || len(again.losses) > 0 && m.archived == "" {
		return strings.Join(again.reasons(), "; ")
	}
	var raw [8]byte
	rand.Read(raw[:])
	aside := asidePrefix + hex.EncodeToString(raw[:]) + "-" + name
	if err := reclaim.MoveAside(m.dir, name, m.dir, aside); err != nil {
		return "cannot be moved aside: " + err.Error()
	}
	skipped = m.finish(ctx, r, fd, aside, before, heads)
	if skipped == "" {
		return ""
	}
	if err := reclaim.MoveAside(m.dir, aside, m.dir, name); err != nil {
		return skipped + "; it could not be put back and is kept as " + aside + ": " + err.Error()
	}
	return skipped
}

// finish ends a removal whose directory lies aside.
func (m *removal) finish(ctx context.Context, r *repo.Repository, fd int, aside, before string, heads []string) (skipped string) {
	l := m.layout
	// The rename went by name: is it what was looked at?
	var held, moved unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &held), unix.Fstatat(m.dir, aside, &moved, unix.AT_SYMLINK_NOFOLLOW)); err != nil ||
		held.Dev != moved.Dev || held.Ino != moved.Ino {
		return "was replaced while it was taken"
	}
	dir, _ := split(m.place)
	user, err := m.tree.UserOf(dir, aside, filepath.Join(m.tree.Root(), m.place))
	switch {
	case err != nil:
		return "cannot tell whether a process uses it: " + err.Error()
	case user != "":
		return "in use by " + user
	}
	after, err := fingerprint(ctx, m.tree, m.dir, aside)
	now, headsErr := r.Remembered()
	if err = errors.Join(err, headsErr); err != nil {
		return "cannot be read again: " + err.Error()
	}
	if after != before || !slices.Equal(now, heads) {
		return "changed while it was judged"
	}
	if err := r.Unlock(ctx); err != nil {
		return "cannot be unlocked: " + err.Error()
	}
	if err := r.Unlist(ctx); err != nil {
		return "git refuses to remove it: " + err.Error()
	}
	l.discard(m.dir, aside)
	return ""
}

// discard moves a worktree that git has unlisted into the trash. Where that is
// on another filesystem it stays aside, and the next pass tries again.
func (l *Layout) discard(dir int, aside string) {
	trash, err := unix.Open(filepath.Join(l.box, reclaim.TrashDir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(trash)
	_ = reclaim.MoveAside(dir, aside, trash, reclaim.RemovedPrefix+strings.TrimPrefix(aside, asidePrefix))
}

// recover ends or undoes a removal that a crash cut off: git still lists it, or
// no longer.
func (l *Layout) recover(ctx context.Context, fd int, dir, aside string) {
	_, name, ok := strings.Cut(strings.TrimPrefix(aside, asidePrefix), "-")
	if !ok || name == "" {
		return
	}
	at := filepath.Join(l.dir, dir)
	pointer, err := os.ReadFile(filepath.Join(at, aside, ".git"))
	if err != nil {
		return // in doubt it stays
	}
	record := strings.TrimSpace(strings.TrimPrefix(string(pointer), "gitdir: "))
	if !filepath.IsAbs(record) {
		record = filepath.Join(at, name, record)
	}
	if _, err := os.Lstat(record); errors.Is(err, os.ErrNotExist) { //nolint:gosec // only looked for
		// Only where the repository is there to say so: COMMON/worktrees/NAME.
		if _, err := os.Lstat(filepath.Join(record, "../../HEAD")); err == nil { //nolint:gosec // only looked for
			l.discard(fd, aside)
		}
		return
	}
	if reclaim.MoveAside(fd, aside, fd, name) != nil {
		return
	}
	r, err := l.opts.Git.Open(ctx, filepath.Join(at, name))
	if err != nil {
		return
	}
	defer r.Close()
	if reason, locked := r.Locked(); locked && reason == lockReason {
		_ = r.Unlock(ctx) // the next removal finds its own lock
	}
}

// itemOf names a worktree in an answer; place is relative to the directory of all.
func itemOf(conversation, place string) box.ReclaimItem {
	return box.ReclaimItem{Path: path.Join(storage.WorktreesDir, place), Rule: "worktree", Tier: box.TierRuntime, ConversationID: conversation}
}
