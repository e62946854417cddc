package putback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/unpack"
	"github.com/openhands/boxkeeper/box"
)

// What lies in the scratch directory.
const (
	stagingDir  = "staging" // the tree, until all of it is proven
	stagingTree = "files"
	recordFile  = "record.json"
)

// The phases of a record.
const (
	phasePlacing = "placing" // all of it is proven, and is being moved to its places
	phasePlaced  = "placed"
)

// record says what is being put back here, or was. Without one nothing outside of
// the scratch directory was touched.
type record struct {
	Phase    string               `json:"phase"`
	Restored agentserver.Restored `json:"restored"`
	// Shut are directories that get their mode when everything is in its place.
	Shut []unpack.Shut `json:"shut,omitzero"`
}

// Restore puts the tar of a workspace, whose SHA-256 is sum, into a box that has
// no work yet: files, repositories with all that their bundles hold, and what is
// staged. It is streamed into the scratch directory, compared with everything
// that the archive says of itself and with sum, and only then moved to its
// places. A restore that was cut off before that begins anew; one that was cut
// off after it goes on, and so does nothing of the tar need to be read. It is
// false when all of it was there already. One at a time.
//
// Unknown: the archive is damaged, hostile or another one. FailedPrecondition:
// there is work in the box, which is never written over. Exhausted: the disk is
// full. Unsupported: the box lacks what it takes. In each of these cases nothing
// but the scratch directory was touched.
//
// Size is the length of the tar; when it is more than is free nothing is read.
func (b *Box) Restore(ctx context.Context, sum string, size int64, tar io.Reader) (agentserver.Restored, bool, error) {
	r, err := b.openRestore()
	if err != nil {
		return agentserver.Restored{}, false, err
	}
	defer r.close()
	done, err := r.before(ctx, sum, size)
	if err != nil || done.Phase != "" {
		return done.Restored, false, err
	}
	if done, err = r.stage(ctx, sum, tar); err != nil {
		if cleared := r.clear(); cleared != nil {
			err = fmt.Errorf("%w (and clear what was written: %w)", err, cleared)
		}
		return agentserver.Restored{}, false, err
	}
	// Whoever sent it may be gone: nothing more is needed of him.
	ctx = context.WithoutCancel(ctx)
	if err := r.vacant(ctx); err != nil { // somebody may have begun to work meanwhile
		_ = r.clear()
		return agentserver.Restored{}, false, err
	}
	unix.Sync() // the files before the record that makes them count
	done.Phase = phasePlacing
	if err := r.write(done); err != nil {
		return agentserver.Restored{}, false, err
	}
	return done.Restored, true, r.place(done)
}

// Restored returns what is put back already, and goes on with what was cut off
// while it was moved to its places. It is false when nothing is and a tar of the
// given size could be; its errors are those of Restore before it reads anything.
func (b *Box) Restored(ctx context.Context, sum string, size int64) (agentserver.Restored, bool, error) {
	r, err := b.openRestore()
	if err != nil {
		return agentserver.Restored{}, false, err
	}
	defer r.close()
	done, err := r.before(ctx, sum, size)
	return done.Restored, done.Phase != "", err
}

// Continue finishes a restore that was cut off while it moved things to their
// places, and clears what one left that had not come so far. Call it before the
// box serves.
func (b *Box) Continue() error {
	if _, err := os.Lstat(path.Join(b.opts.Root, b.opts.Scratch)); b.opts.Scratch == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r, err := b.openRestore()
	if err != nil {
		return err
	}
	defer r.close()
	done, err := r.record()
	switch {
	case err != nil:
		return err
	case done.Phase == "":
		return r.clear()
	}
	return r.place(done)
}

// restore is one restore under way.
type restore struct {
	opts    Options
	tree    *reclaim.Beneath
	box     *os.Root
	scratch *os.Root
}

func (b *Box) openRestore() (*restore, error) {
	if b.opts.Scratch == "" {
		return nil, box.Errorf(box.ClassUnsupported, "this box has no place to put a workspace back from")
	}
	tree, err := reclaim.OpenBeneath(b.opts.Root)
	if err != nil {
		return nil, err
	}
	r := &restore{opts: b.opts, tree: tree}
	if r.box, err = os.OpenRoot(tree.Root()); err == nil {
		if err = r.box.MkdirAll(b.opts.Scratch, 0o700); err == nil {
			r.scratch, err = r.box.OpenRoot(b.opts.Scratch)
		}
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("open the place for what is put back: %w", localFault(err))
	}
	return r, nil
}

func (r *restore) close() {
	r.tree.Close()
	if r.box != nil {
		r.box.Close()
	}
	if r.scratch != nil {
		r.scratch.Close()
	}
}

// record reads what is put back here; its phase is empty when nothing is.
func (r *restore) record() (out record, err error) {
	text, err := r.scratch.ReadFile(recordFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return record{}, nil
	case err != nil:
		return record{}, fmt.Errorf("read the record of what is put back: %w", err)
	}
	if err := json.Unmarshal(text, &out); err != nil || out.Phase != phasePlacing && out.Phase != phasePlaced {
		return record{}, box.Errorf(box.ClassInternal, "the record of what is put back, %s, cannot be read; start with a new box", path.Join(r.opts.Scratch, recordFile))
	}
	return out, nil
}

// before looks at the box before anything is read. When the same is put back
// already, the record says so.
func (r *restore) before(ctx context.Context, sum string, size int64) (record, error) {
	done, err := r.record()
	switch {
	case err != nil:
		return record{}, err
	case done.Phase != "" && done.Restored.SHA256 != sum:
		return record{}, box.Errorf(box.ClassFailedPrecondition, "another export was put into this box; restore into a new one")
	case done.Phase != "":
		return done, r.place(done)
	}
	if err := r.vacant(ctx); err != nil {
		return record{}, err
	}
	return record{}, r.room(size)
}

// write replaces the record, as a whole or not at all.
func (r *restore) write(one record) error {
	text, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("write the record of what is put back: %w", err)
	}
	const draft = recordFile + ".new"
	f, err := r.scratch.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = r.scratch.Rename(draft, recordFile)
	}
	if err == nil {
		err = syncDir(r.scratch, ".")
	}
	if err != nil {
		return fmt.Errorf("write the record of what is put back: %w", localFault(err))
	}
	return nil
}

func syncDir(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// vacant refuses a box with anything but empty directories where work is done.
func (r *restore) vacant(ctx context.Context) error {
	for _, dir := range r.opts.Dirs {
		there, err := r.work(ctx, r.tree.Fd(), dir, dir, 0)
		if err != nil {
			return err
		}
		if there != "" {
			return box.Errorf(box.ClassFailedPrecondition, "there is work in the box, and it is not written over (%.200q); restore into a new box", there)
		}
	}
	return nil
}

// work returns something at or below a place that is no directory, or that cannot
// be looked into; empty when there is nothing.
func (r *restore) work(ctx context.Context, at int, name, place string, depth int) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", box.Errorf(box.ClassCanceled, "look for work in the box: %w", err)
	}
	fd, names, err := r.tree.List(at, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return "", nil
	case err != nil || depth > maxEmpty:
		return place, nil // whatever it is, it is in the way
	}
	defer unix.Close(fd)
	for _, one := range names {
		below := path.Join(place, one.Name)
		if one.Kind != unix.DT_DIR {
			return below, nil
		}
		if there, err := r.work(ctx, fd, one.Name, below, depth+1); err != nil || there != "" {
			return there, err
		}
	}
	return "", nil
}

// maxEmpty is how deep empty directories may be nested.
const maxEmpty = 20

// room refuses what would take the last of the disk from everybody else before
// it fails.
func (r *restore) room(size int64) error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(r.tree.Fd(), &disk); err != nil {
		return fmt.Errorf("ask for the free space: %w", err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; size > free { //nolint:gosec // no disk is that large
		return box.Errorf(box.ClassExhausted, "the workspace takes %d bytes and %d are free in the box", size, free)
	}
	return nil
}

// place moves everything that is not in its place yet, and says so in the record.
func (r *restore) place(one record) error {
	if one.Phase == phasePlaced {
		return r.clear()
	}
	for _, dir := range r.opts.Dirs {
		if err := r.placeDir(dir); err != nil {
			return fmt.Errorf("put %s back: %w", dir, err)
		}
	}
	if err := unpack.Finish(r.box, one.Shut); err != nil {
		return err
	}
	one.Phase, one.Shut = phasePlaced, nil
	if err := r.write(one); err != nil {
		return err
	}
	return r.clear()
}

func (r *restore) placeDir(dir string) error {
	from, names, err := r.tree.List(r.tree.Fd(), path.Join(r.opts.Scratch, stagingDir, stagingTree, dir))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if err := r.box.MkdirAll(dir, 0o700); err != nil {
		return localFault(err)
	}
	to, err := r.tree.Open(r.tree.Fd(), dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("it is no directory of the box: %w", err)
	}
	defer unix.Close(to)
	for _, one := range names {
		if err := r.emptied(path.Join(dir, one.Name)); err != nil {
			return err
		}
		switch err := reclaim.MoveAside(from, one.Name, to, one.Name); {
		case errors.Is(err, fs.ErrExist):
			return inTheWay(path.Join(dir, one.Name))
		case err != nil:
			return fmt.Errorf("move %.200q to its place: %w", one.Name, localFault(err))
		}
	}
	return nil
}

// emptied removes empty directories at name. Anything else stays, and is in the
// way.
func (r *restore) emptied(name string) error {
	dir, err := r.box.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return inTheWay(name)
	}
	defer dir.Close()
	list, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return fmt.Errorf("look into %.200q: %w", name, localFault(err))
	}
	for _, one := range list {
		if err := r.emptied(path.Join(name, one.Name())); err != nil {
			return err
		}
	}
	if err := r.box.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return inTheWay(name)
	}
	return nil
}

// inTheWay is of a name that was taken after all were seen to be free.
func inTheWay(name string) error {
	return box.Errorf(box.ClassFailedPrecondition, "%.200q came into the way of what is put back, and is not written over; move it elsewhere, or restore into a new box", name)
}

// clear removes what was written and is of no use.
func (r *restore) clear() error {
	if err := r.scratch.RemoveAll(stagingDir); err != nil {
		return fmt.Errorf("clear the place for what is put back: %w", err)
	}
	return nil
}
