package exports

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"

	"gocloud.dev/blob/driver"
)

func (d *directory) NewTypedWriter(ctx context.Context, key, _ string, opts *driver.WriterOptions) (driver.Writer, error) {
	if !keyForm.MatchString(key) {
		return nil, errKey
	}
	if !opts.IfNotExist {
		return nil, errUnsupported
	}
	if err := d.same(); err != nil {
		return nil, err
	}
	// Known early, so that a large object is not written in vain; the link below
	// is what decides.
	if _, err := d.root.Lstat(key); err == nil {
		return nil, fs.ErrExist
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails; documented
	name := path.Join(incoming, hex.EncodeToString(random))
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.mkdirs(incoming); err == nil {
			f, err = d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
		}
	}
	if err != nil {
		return nil, bare(err)
	}
	return &directoryWriter{ctx: ctx, directory: d, file: f, name: name, key: key}, nil
}

// syncEvery is how much of an object is written before it is synced. At the end
// alone a cancelled export would wait until gigabytes are on the disk.
const syncEvery = 64 << 20

type directoryWriter struct {
	ctx       context.Context //nolint:containedctx // the driver interface hands Close none
	directory *directory
	file      *os.File
	name, key string
	unsynced  int
	failed    error
}

func (w *directoryWriter) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	if w.unsynced += n; err == nil && w.unsynced >= syncEvery {
		w.unsynced = 0
		err = w.file.Sync()
	}
	if err != nil {
		w.failed = bare(err)
		return n, w.failed
	}
	return n, nil
}

func (w *directoryWriter) Close() error {
	d := w.directory
	defer d.root.Remove(w.name) //nolint:errcheck // the sweep takes what stays
	err := w.failed
	if err == nil {
		err = w.ctx.Err()
	}
	if err == nil {
		err = w.file.Sync()
	}
	if cerr := w.file.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = d.mkdirs(path.Dir(w.key))
	}
	if err == nil {
		err = d.same()
	}
	if err != nil {
		return bare(err)
	}
	if err := d.root.Link(w.name, w.key); err != nil {
		switch {
		case errors.Is(err, fs.ErrExist):
			return fs.ErrExist
		case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			return errNoLinks
		}
		return bare(err)
	}
	return bare(d.sync(path.Dir(w.key)))
}

// mkdirs makes a directory and its parents, each synced into its parent once
