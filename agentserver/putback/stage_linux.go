package putback

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/unpack"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// maxNotes bounds what is said of a restore; what is beside it is counted.
const maxNotes = 100

// stage writes the whole archive into the scratch directory and proves it.
func (r *restore) stage(ctx context.Context, sum string, tar io.Reader) (record, error) {
	if err := r.clear(); err != nil {
		return record{}, err
	}
	if err := r.scratch.MkdirAll(path.Join(stagingDir, stagingTree), 0o700); err != nil {
		return record{}, fmt.Errorf("make the place for what is put back: %w", localFault(err))
	}
	staging, err := r.scratch.OpenRoot(stagingDir)
	if err != nil {
		return record{}, fmt.Errorf("open the place for what is put back: %w", err)
	}
	defer staging.Close()
	place := filepath.Join(r.tree.Root(), r.opts.Scratch, stagingDir)
	below, err := staging.OpenRoot(stagingTree)
	if err != nil {
		return record{}, fmt.Errorf("open the place for what is put back: %w", localFault(err))
	}
	defer below.Close()
	tree := unpack.In(below)
	hash := sha256.New()
	s := &stage{
		ctx: ctx, dirs: r.opts.Dirs, tree: tree,
		again: &Rebuild{Git: r.opts.Git, Root: staging, Path: place, Tree: stagingTree, Final: r.tree.Root()},
	}
	m, err := workspacetar.ReadInto(io.TeeReader(&ending{ctx, tar}, hash), s.take, nil)
	if stopped := s.again.End(); stopped != nil && (err == nil || errors.Is(err, errStopped)) {
		err = stopped
	}
	switch {
	case ctx.Err() != nil:
		return record{}, box.Errorf(box.ClassCanceled, "put the workspace back: %w", context.Cause(ctx))
	case box.ClassOf(err) == box.ClassUnknown, box.ClassOf(err) == box.ClassAlreadyExists: // one name, twice
		return record{}, workspacetar.Damaged(err)
	case err != nil:
		return record{}, err
	case hex.EncodeToString(hash.Sum(nil)) != sum:
		return record{}, box.Errorf(box.ClassUnknown, "the archive is whole and is another one than was announced")
	}
	notes, err := s.again.Finish(ctx, m)
	if err != nil {
		return record{}, err
	}
	kept := min(len(notes), maxNotes)
	return record{Shut: tree.Shut(), Restored: agentserver.Restored{
		SHA256: sum, Entries: m.Entries, Files: m.Files, Bytes: m.Bytes, Repositories: len(m.Repositories), Missing: m.Missing,
		Notes: notes[:kept], MoreNotes: len(notes) - kept,
	}}, nil
}

// ending ends a reading with its context.
type ending struct {
	ctx  context.Context //nolint:containedctx // of one reading
	from io.Reader
}

func (e *ending) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.from.Read(p)
}

// stage is the archive on its way into the scratch directory.
type stage struct {
	ctx   context.Context //nolint:containedctx // of one reading
	dirs  []string
	tree  *unpack.Dir
	again *Rebuild
}

// take says where the content of an entry goes.
func (s *stage) take(e workspacetar.Entry) (io.WriteCloser, error) {
	if e.Name == box.WorkspaceManifest {
		return nil, nil //nolint:nilnil // ReadInto returns it
	}
	if e.Type == workspacetar.TypePart {
		to, err := s.again.Part(s.ctx, path.Dir(strings.TrimPrefix(e.Name, box.WorkspaceRepositories)))
		return keptOpen{to}, err
	}
	name := strings.TrimPrefix(e.Name, box.WorkspaceFiles)
	first, _, below := strings.Cut(name, "/")
	if !slices.Contains(s.dirs, first) || !below && e.Type != "directory" {
		return nil, box.Errorf(box.ClassUnknown, "nobody's work lies there")
	}
	switch target, _ := e.LinkTarget(); e.Type {
	case "directory":
		return nil, s.tree.Directory(name, fs.FileMode(e.Mode))
	case "link":
		return nil, s.tree.Link(name, target)
	case "hardlink":
		return nil, s.tree.Hardlink(name, target)
	}
	return s.tree.File(name, fs.FileMode(e.Mode), time.Unix(e.Modified, 0))
}

// keptOpen is one part of a stream: more may come.
type keptOpen struct{ io.Writer }

func (keptOpen) Close() error { return nil }
