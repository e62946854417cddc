package exports

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// directory is the bucket of a local directory. It is ours because the one
// that comes with the blob library (v0.46.0, read 29 Nov 2026) checks
// IfNotExist with a stat before a rename, so that two writers overwrite each
// other, does not sync, and lists an unreadable directory as an empty one.
//
// Here a new object is written beside, synced, hard-linked to its name (which
// fails when the name is taken, in the kernel), and its directories are synced.
// A file without its final name is swept at the next start.
type directory struct {
	path   string
	root   *os.Root
	synced sync.Map // directories known to be durable
}

var _ driver.Bucket = (*directory)(nil)

const (
	incoming    = ".incoming" // no key can name it
	incomingAge = 24 * time.Hour
	dirMode     = 0o700
	fileMode    = 0o600
)

var (
	keyForm        = regexp.MustCompile(`^[a-z0-9-][a-z0-9._-]*(/[a-z0-9-][a-z0-9._-]*)*$`)
	errKey         = errors.New("key is not of the form that this store writes")
	errUnsupported = errors.New("this store only appends")
	errReplaced    = errors.New("the directory was moved or replaced while in use; start again")
	errNotRegular  = errors.New("is not a regular file")
	errNoLinks     = errors.New("the file system has no hard links, so that writes cannot be made safe; use another directory")
)

func openDirectory(name string) (*blob.Bucket, error) {
	if err := os.MkdirAll(name, dirMode); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	d := &directory{path: name, root: root}
	if err := d.prepare(); err != nil {
		_ = root.Close()
		return nil, err
	}
	return blob.NewBucket(d), nil
}

// prepare makes the place for new objects and sweeps what crashes left there.
func (d *directory) prepare() error {
	if err := d.mkdirs(incoming); err != nil {
		return err
	}
	left, err := fs.ReadDir(d.root.FS(), incoming)
	if err != nil {
		return err
	}
	for _, e := range left {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		// A living writer touches its file at every write.
		if time.Since(info.ModTime()) > incomingAge {
			if err := d.root.Remove(path.Join(incoming, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// same notices a store directory that was deleted, moved or mounted over: the
// open handle would go on writing to where nobody looks.
func (d *directory) same() error {
	held, err := d.root.Stat(".")
	if err != nil {
		return err
	}
	named, err := os.Stat(d.path)
	if err != nil || !os.SameFile(held, named) {
		return errReplaced
	}
	return nil
}

func (d *directory) Attributes(_ context.Context, key string) (*driver.Attributes, error) {
	info, err := d.regular(key)
	if err != nil {
		return nil, err
	}
	return &driver.Attributes{ModTime: info.ModTime(), Size: info.Size(), AsFunc: asNothing}, nil
}

func (d *directory) regular(key string) (fs.FileInfo, error) {
	if !keyForm.MatchString(key) {
		return nil, errKey
	}
	if err := d.same(); err != nil {
		return nil, err
	}
	info, err := d.root.Lstat(key)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fs.ErrNotExist
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return info, nil
}

func (d *directory) ListPaged(ctx context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	if opts.Delimiter != "" {
		return nil, errUnsupported
	}
	if err := d.same(); err != nil {
		return nil, err
	}
	start := "."
	if i := strings.LastIndexByte(opts.Prefix, '/'); i > 0 {
		start = opts.Prefix[:i]
		if !keyForm.MatchString(start) {
			return nil, errKey
		}
	}
	var all []*driver.ListObject
	err := fs.WalkDir(d.root.FS(), start, func(name string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && name == start:
			return fs.SkipAll // nothing was written there yet
		case err != nil:
			return err // unreadable is not empty
		case ctx.Err() != nil:
			return ctx.Err()
		case name == ".":
			return nil
		case strings.HasPrefix(e.Name(), ".") && e.IsDir():
			return fs.SkipDir
		case strings.HasPrefix(e.Name(), ".") || e.IsDir() || !strings.HasPrefix(name, opts.Prefix):
			return nil
		case name <= string(opts.PageToken):
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		all = append(all, &driver.ListObject{Key: name, ModTime: info.ModTime(), Size: info.Size(), AsFunc: asNothing})
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The walk goes by path element, keys by byte: "a-b/c" is before "a/c".
	slices.SortFunc(all, func(a, b *driver.ListObject) int { return cmp.Compare(a.Key, b.Key) })
	page := &driver.ListPage{Objects: all}
	if opts.PageSize > 0 && len(all) > opts.PageSize {
		page.Objects = all[:opts.PageSize]
		page.NextPageToken = []byte(page.Objects[opts.PageSize-1].Key)
	}
	return page, nil
}

func (d *directory) NewRangeReader(_ context.Context, key string, offset, length int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	seen, err := d.regular(key)
	if err != nil {
		return nil, err
	}
	f, err := d.root.Open(key)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(seen, info) {
		err = errNotRegular // swapped between the two looks
	}
	if err == nil && offset > 0 {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	var r io.Reader = f
	if length >= 0 {
		r = io.LimitReader(f, length)
	}
	return &directoryReader{Reader: r, file: f, attrs: driver.ReaderAttributes{ModTime: info.ModTime(), Size: info.Size()}}, nil
}

type directoryReader struct {
	io.Reader
	file  *os.File
	attrs driver.ReaderAttributes
}

func (r *directoryReader) Close() error                         { return r.file.Close() }
func (r *directoryReader) Attributes() *driver.ReaderAttributes { return &r.attrs }
func (r *directoryReader) As(any) bool                          { return false }

// per process: the one who made it may have crashed before that.
func (d *directory) mkdirs(name string) error {
	if name == "." {
		return nil
	}
	err := d.root.Mkdir(name, dirMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := d.mkdirs(path.Dir(name)); err != nil {
			return err
		}
		err = d.root.Mkdir(name, dirMode)
	}
	if errors.Is(err, fs.ErrExist) {
		if _, done := d.synced.Load(name); done {
			return nil
		}
		if err := d.mkdirs(path.Dir(name)); err != nil {
			return err
		}
		err = nil
	}
	if err != nil {
		return err
	}
	if err := d.sync(path.Dir(name)); err != nil {
		return err
	}
	d.synced.Store(name, true)
	return nil
}

func (d *directory) sync(name string) error {
	f, err := d.root.Open(name)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil // file systems without sync of directories say so like this
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (d *directory) Delete(_ context.Context, key string) error {
	if _, err := d.regular(key); err != nil {
		return err
	}
	if err := d.root.Remove(key); err != nil {
		return err
	}
	// What is deleted first must stay deleted before what is deleted next.
	return d.sync(path.Dir(key))
}

func (d *directory) Close() error { return d.root.Close() }

func (d *directory) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return errUnsupported
}

func (d *directory) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errUnsupported
}

func (d *directory) ErrorAs(error, any) bool { return false }

func (d *directory) As(i any) bool {
	p, ok := i.(**directory)
	if ok {
		*p = d
	}
	return ok
}

func (d *directory) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return gcerrors.NotFound
	case errors.Is(err, fs.ErrExist):
		return gcerrors.FailedPrecondition
	case errors.Is(err, fs.ErrPermission):
		return gcerrors.PermissionDenied
	case errors.Is(err, errKey):
		return gcerrors.InvalidArgument
	case errors.Is(err, errUnsupported), errors.Is(err, errNoLinks):
		return gcerrors.Unimplemented
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return gcerrors.ResourceExhausted
	}
	return gcerrors.Unknown
}

func asNothing(any) bool { return false }
