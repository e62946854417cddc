package server

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// largeJSON is more than is checked for validity in memory; larger files are
// redacted both ways.
const largeJSON = 64 << 20

// zip writes the history of a conversation to w, entries rooted at its id. The
// same history gives the same bytes. What is no regular file is left out, and
// so are locks and leases, which say nothing to a reader; an event that cannot
// be read is an error.
func (h history) zip(ctx context.Context, id string, w io.Writer) error {
	root, err := os.OpenRoot(h.dir)
	if err != nil {
		return fmt.Errorf("open the conversations: %w", err)
	}
	defer root.Close()
	archive := zip.NewWriter(w)
	if err := pack(ctx, root, archive, id, id, 0); err != nil {
		return err
	}
	return archive.Close()
}

func pack(ctx context.Context, root *os.Root, archive *zip.Writer, id, dir string, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return fmt.Errorf("%s is nested too deep", id)
	}
	entries, err := readDir(root, dir)
	if err != nil {
		return err
	}
	if _, err := archive.CreateHeader(header(dir+"/", fs.ModeDir|0o700, zip.Store)); err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		switch {
		case leftOut(entry.Name()), dir == id && entry.Name() == "acp":
		case entry.IsDir():
			if err := pack(ctx, root, archive, id, name, depth+1); err != nil {
				return err
			}
		case entry.Type().IsRegular():
			if err := packFile(ctx, root, archive, name); err != nil {
				return fmt.Errorf("pack %s: %w", name, err)
			}
		}
	}
	return nil
}

// leftOut says which names are not part of a history: locks, leases and files
// that are still being written.
func leftOut(name string) bool {
	return name == "owner_lease.json" || strings.HasSuffix(name, ".lock") || strings.HasSuffix(name, ".tmp")
}

func packFile(ctx context.Context, root *os.Root, archive *zip.Writer, name string) error {
	var file *os.File
	var err error
	for range 10 {
		if file, err = openFile(root, name); !errors.Is(err, errChanged) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) && !eventForm.MatchString(path.Base(name)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	entry, err := archive.CreateHeader(header(name, 0o600, zip.Deflate))
	if err != nil {
		return err
	}
	source := &reader{ctx: ctx, file: file}
	if suffix := strings.ToLower(path.Ext(name)); suffix != ".json" && suffix != ".jsonl" {
		_, err = io.Copy(entry, source)
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > largeJSON {
		through, in := io.Pipe()
		go func() { in.CloseWithError(redactText(in, source)) }()
		return errors.Join(redactText(entry, through), through.Close())
	}
	valid := validJSON(source)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if !valid {
		return redactText(entry, source)
	}
	return redactJSON(entry, source)
}

// header gives entries one fixed time, so that the archive depends on the
// content only.
func header(name string, mode fs.FileMode, method uint16) *zip.FileHeader {
	h := &zip.FileHeader{Name: name, Method: method, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
	h.SetMode(mode)
	return h
}

// reader ends reading when ctx does.
type reader struct {
	ctx  context.Context //nolint:containedctx // one copy's life
	file *os.File
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.file.Read(p)
}
