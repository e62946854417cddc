package workspace

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// maxLinks bounds the files with several links that are remembered.
const maxLinks = 100_000

type inode struct{ dev, ino uint64 }

// export is one archive in the making.
type export struct {
	*archive
	ctx   context.Context //nolint:containedctx // of one call
	tree  *reclaim.Beneath
	again map[string]string
	links map[inode]string
	found []string // repositories, as places below the root
	homes homes
	copy  []byte
}

// Export streams the archive to w. What cannot be read is left out and said to
// be missing in the manifest; an error means that the archive is cut off, and
// then it has no manifest. Unsupported where this system cannot keep a look
// inside the box, Canceled when ctx ends.
func (w *Workspace) Export(ctx context.Context, to io.Writer) error {
	tree, err := reclaim.OpenBeneath(w.opts.Root)
	if err != nil {
		return err
	}
	defer tree.Close()
	out, err := newArchive(to)
	if err != nil {
		return err
	}
	e := &export{archive: out, ctx: ctx, tree: tree, again: map[string]string{}, links: map[inode]string{}, copy: make([]byte, 128<<10)}
	err = e.all(w)
	if err == nil {
		err = out.close()
	}
	if err != nil {
		// Frees the encoder; what it still writes cannot be read as an archive.
		out.zip.Reset(io.Discard)
		_ = out.zip.Close()
		if ctx.Err() != nil {
			return box.Errorf(box.ClassCanceled, "export the workspace: %w", context.Cause(ctx))
		}
		return fmt.Errorf("export the workspace: %w", err)
	}
	return nil
}

func (e *export) all(w *Workspace) error {
	enter := func(fd int, place string, names []reclaim.Name) (bool, error) { return e.dir(w, fd, place, names) }
	for _, dir := range w.opts.Dirs {
		if err := walk(e.ctx, e.tree, dir, visitor{enter: enter, name: e.name, unknown: e.unknown}); err != nil {
			return err
		}
	}
	return e.repositories(w)
}

func (e *export) unknown(place, why string) error { return e.leaveOut(place, why, true) }

// dir writes a directory and says whether to go on into it.
func (e *export) dir(w *Workspace, fd int, place string, names []reclaim.Name) (bool, error) {
	if rule, ok := e.again[place]; ok && !e.holdsRepository(place) {
		return false, e.leaveOut(place, "can be made again: "+rule, false)
	}
	if path.Base(place) == ".git" {
		return false, e.leaveOut(place, "is in the bundle of its repository", false)
	}
	if isRepository(names) && path.Base(place) != ".git" {
		e.found = append(e.found, place)
		// Where that fails all of it is written.
		_ = w.again(e.ctx, e.tree.Root(), place, names, e.again)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, e.unknown(place, reason(err))
	}
	if err := e.header(tar.Header{Typeflag: tar.TypeDir, Name: box.WorkspaceFiles + place + "/", Mode: int64(st.Mode & 0o777)}); err != nil {
		return false, err
	}
	return true, e.record(place, box.ManifestEntry{Type: "directory", Mode: st.Mode & 0o777})
}

// holdsRepository reports whether somebody's repository lies in what can
// otherwise be made again, or whether that cannot be told.
func (e *export) holdsRepository(place string) bool {
	held := false
	err := walk(e.ctx, e.tree, place, visitor{
		unknown: func(string, string) error { held = true; return nil },
		enter: func(_ int, _ string, names []reclaim.Name) (bool, error) {
			held = held || isRepository(names)
			return !held, nil
		},
		name: func(int, string, reclaim.Name) error { return nil },
	})
	return held || err != nil
}

// name writes what is no directory.
func (e *export) name(dir int, place string, entry reclaim.Name) error {
	if entry.Name == ".git" {
		return e.leaveOut(place, "is in the bundle of its repository", false)
	}
	if entry.Kind == unix.DT_LNK {
		return e.link(dir, place, entry.Name)
	}
	// Without O_NONBLOCK, a pipe would wait for a writer.
	fd, err := e.tree.Open(dir, entry.Name, unix.O_RDONLY|unix.O_NONBLOCK)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return e.leaveOut(place, "is a socket or a device", false)
	case err != nil:
		return e.unknown(place, reason(err))
	}
	file := os.NewFile(uintptr(fd), place)
	defer file.Close()
	return e.file(file, place, box.WorkspaceFiles)
}

func (e *export) link(dir int, place, name string) error {
	buffer := make([]byte, 4097)
	n, err := unix.Readlinkat(dir, name, buffer)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return e.unknown(place, reason(err))
	case n == len(buffer):
		return e.unknown(place, "is a link that is too long")
	}
	target := string(buffer[:n])
	if err := e.header(tar.Header{Typeflag: tar.TypeSymlink, Name: box.WorkspaceFiles + place, Linkname: target, Mode: 0o777}); err != nil {
		return err
	}
	return e.record(place, box.ManifestEntry{Type: "link", Target: strings.ToValidUTF8(target, "�")})
}

// file writes an open file, under its place below the prefix.
func (e *export) file(file *os.File, place, prefix string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return e.unknown(place, reason(err))
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return e.unknown(place, "was replaced by a directory")
	default:
		return e.leaveOut(place, "is a pipe, a socket or a device", false)
	}
	key := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // the width differs between architectures
	if first, ok := e.links[key]; ok {
		if err := e.header(tar.Header{Typeflag: tar.TypeLink, Name: prefix + place, Linkname: first}); err != nil {
			return err
		}
		return e.record(place, box.ManifestEntry{Type: "hardlink", Target: strings.TrimPrefix(first, prefix)})
	}
	if st.Nlink > 1 && len(e.links) < maxLinks {
		e.links[key] = prefix + place
	}
	err := e.header(tar.Header{
		Typeflag: tar.TypeReg, Name: prefix + place, Size: st.Size, Mode: int64(st.Mode & 0o777),
		ModTime: time.Unix(st.Mtim.Sec, 0),
	})
	if err != nil {
		return err
	}
	sum := sha256.New()
	changed, err := e.content(file, &st, io.MultiWriter(e.tar, sum))
	if err != nil {
		return err
	}
	return e.record(place, box.ManifestEntry{
		Type: "file", Bytes: st.Size, Mode: st.Mode & 0o777, SHA256: hex.EncodeToString(sum.Sum(nil)), Changed: changed,
	})
}

// content copies as many bytes as the file had when it was opened, whatever
// becomes of it. Holes are not read.
func (e *export) content(file *os.File, st *unix.Stat_t, to io.Writer) (changed bool, err error) {
	sparse := st.Blocks*512 < st.Size
	for at := int64(0); at < st.Size; {
		end := st.Size
		if sparse {
			data, hole := extent(file, at, st.Size)
			if err := e.zeros(to, data-at); err != nil {
				return false, err
			}
			at, end = data, hole
		}
		n, err := e.span(file, at, end, to)
		if err != nil {
			return false, err
		}
		if at += n; at < end {
			// Shorter than it was, or unreadable: the length was promised.
			return true, e.zeros(to, st.Size-at)
		}
	}
	var now unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &now); err != nil {
		return true, nil //nolint:nilerr // its bytes are there, and in doubt
	}
	return now.Size != st.Size || now.Mtim != st.Mtim || now.Ctim != st.Ctim && now.Nlink == st.Nlink, nil
}

// extent returns where the next data of a file begins, at or after at, and
// where it ends. Where the filesystem does not say, all is data.
func extent(file *os.File, at, size int64) (data, hole int64) {
	data, err := file.Seek(at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size
	case err != nil:
		return at, size
	}
	data = min(data, size)
	if hole, err = file.Seek(data, unix.SEEK_HOLE); err != nil {
		return data, size
	}
	return data, min(hole, size)
}

// span copies a part of a file. It returns less than all without an error where
// the file ends or cannot be read.
func (e *export) span(file *os.File, from, to int64, out io.Writer) (copied int64, err error) {
	for at := from; at < to; {
		if err := e.ctx.Err(); err != nil {
			return 0, err
		}
		n, err := file.ReadAt(e.copy[:min(int64(len(e.copy)), to-at)], at)
		if _, failed := out.Write(e.copy[:n]); failed != nil {
			return 0, failed
		}
		if at += int64(n); n == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				e.missing(file.Name() + " " + reason(err))
			}
			return at - from, nil
		}
	}
	return to - from, nil
}

func (e *export) zeros(to io.Writer, n int64) error {
	clear(e.copy)
	for n > 0 {
		if err := e.ctx.Err(); err != nil {
			return err
		}
		took, err := to.Write(e.copy[:min(int64(len(e.copy)), n)])
		if err != nil {
			return err
		}
		n -= int64(took)
	}
	return nil
}

// gitDir writes a git directory that could not be bundled as files, without what
// may hold credentials or name programs.
func (e *export) gitDir(place, prefix string) (files int, err error) {
	skip := repo.NotCarried
	err = walk(e.ctx, e.tree, place, visitor{
		unknown: func(at, why string) error { e.missing(at + " " + why); return nil },
		enter: func(_ int, at string, _ []reclaim.Name) (bool, error) {
			return at == place || path.Dir(at) != place || !skip(path.Base(at)), nil
		},
		name: func(dir int, at string, entry reclaim.Name) error {
			if path.Dir(at) == place && skip(entry.Name) {
				return nil
			}
			fd, err := e.tree.Open(dir, entry.Name, unix.O_RDONLY|unix.O_NONBLOCK)
			if err != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					e.missing(at + " " + reason(err))
				}
				return nil
			}
			file := os.NewFile(uintptr(fd), at)
			defer file.Close()
			info, err := file.Stat()
			if err != nil || !info.Mode().IsRegular() {
				return nil
			}
			part, filled, err := e.stream(prefix+strings.TrimPrefix(at, place+"/"), func(to io.Writer) error {
				_, err := io.CopyBuffer(to, struct{ io.Reader }{file}, e.copy)
				return err
			})
			if filled != nil {
				e.missing(at + " " + reason(filled))
			}
			if part.Parts > 0 {
				files++
			}
			return err
		},
	})
	return files, err
}
