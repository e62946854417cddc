package putback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// Rebuild makes the repositories of an archive again, below a directory that the
// archive's tree was written to. First it is given the streams of the archive,
// part by part and in their order; Finish then makes of them what the manifest says. All of git's
// work is done in a directory of our own and moved to its place at the end, so
// that no name of the archive leads it anywhere. It is used by one goroutine.
type Rebuild struct {
	// Git may be nil; then only repositories that are kept as files come back.
	Git *repo.Git
	// Root is the directory, whose path is Path.
	Root *os.Root
	Path string
	// Tree is where the archive's tree lies below it.
	Tree string
	// Final is the absolute path that the tree will have.
	Final string

	stores map[string]*store // by number
	// The stream whose parts are given.
	name   string
	to     *io.PipeWriter
	ended  chan error
	failed error
}

// store is a git directory in the making.
type store struct {
	dir    string // below Root
	refs   []repo.Ref
	err    error // why it is of no use
	staged string
	files  bool // it was made of files
	taken  bool
}

// gitStores is where git directories are made, below Root.
const gitStores = "git"

// errNoGit is why a bundle stays one.
var errNoGit = box.Errorf(box.ClassUnsupported, "there is no git program here to make repositories of bundles with")

func (b *Rebuild) store(number string) (*store, error) {
	if b.stores == nil {
		b.stores = map[string]*store{}
		if err := b.Root.Mkdir(gitStores, 0o700); err != nil {
			return nil, fmt.Errorf("make a place for repositories: %w", err)
		}
	}
	if len(number) != len("0001") || strings.Trim(number, "0123456789") != "" {
		return nil, box.Errorf(box.ClassUnknown, "%.20q is no number of a repository", number)
	}
	one := b.stores[number]
	if one == nil {
		one = &store{dir: path.Join(gitStores, number)}
		b.stores[number] = one
	}
	return one, nil
}

// Part returns where the next part of a stream goes, by the stream's name below
// repositories/, such as "0001/bundle". What cannot be made of a stream is said by
// Finish, if it is needed; an error is of the one before and of this machine.
func (b *Rebuild) Part(ctx context.Context, name string) (io.Writer, error) {
	if name != b.name || b.to == nil {
		if err := b.End(); err != nil {
			return nil, err
		}
		from, to := io.Pipe()
		b.name, b.to, b.ended = name, to, make(chan error, 1)
		go func() {
			err := b.take(ctx, name, from)
			from.CloseWithError(errStopped)
			b.ended <- err
		}()
	}
	return b.to, nil
}

var errStopped = errors.New("what takes it has stopped")

// End says that a stream is over, and waits for what was made of it. It repeats
// the first error.
func (b *Rebuild) End() error {
	if b.to != nil {
		_ = b.to.Close() // never fails; documented
		err := <-b.ended
		b.name, b.to = "", nil
		if b.failed == nil {
			b.failed = err
		}
	}
	return b.failed
}

// take reads one whole stream.
func (b *Rebuild) take(ctx context.Context, name string, from io.Reader) error {
	number, kind, _ := strings.Cut(name, "/")
	one, err := b.store(number)
	if err != nil {
		return err
	}
	switch file, inside := strings.CutPrefix(kind, "git/"); {
	case inside:
		err = b.takeFile(one, file, from)
	case kind == "bundle" && b.Git == nil:
		one.err = errNoGit
	case kind == "bundle":
		if one.refs, one.err = b.Git.Unbundle(ctx, filepath.Join(b.Path, one.dir), from); one.err != nil {
			// One that was broken off in the box is followed by files instead.
			err = errors.Join(fullOrEnded(ctx, one.err), b.Root.RemoveAll(one.dir))
		}
	case kind == "staged.patch":
		one.staged = one.dir + ".staged"
		err = b.write(one.staged, from)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, from)
	}
	return err
}

// fullOrEnded returns what of an error of git's says nothing of an archive.
func fullOrEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return box.Errorf(box.ClassCanceled, "bring the repositories back: %w", context.Cause(ctx))
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return localFault(err)
	}
	for _, words := range []string{"No space left on device", "Disk quota exceeded"} { // git's own
		if strings.Contains(err.Error(), words) {
			return box.Errorf(box.ClassExhausted, "the disk is full: %w", err)
		}
	}
	if ended, ok := errors.AsType[*exec.ExitError](err); ok && !ended.Exited() {
		return box.Errorf(box.ClassInternal, "something ended git: %w", err) // such as a lack of memory
	}
	return nil
}

// takeFile writes a file of a git directory. Those that hold settings, or name
// programs, no archive has.
func (b *Rebuild) takeFile(one *store, file string, content io.Reader) error {
	first, _, _ := strings.Cut(file, "/")
	if repo.NotCarried(first) || strings.EqualFold(file, "objects/info/alternates") || strings.EqualFold(file, "objects/info/http-alternates") {
		return nil
	}
	one.files = true
	to := path.Join(one.dir, file)
	if err := b.Root.MkdirAll(path.Dir(to), 0o755); err != nil {
		return fmt.Errorf("make a directory of a repository: %w", localFault(err))
	}
	return b.write(to, content)
}

func (b *Rebuild) write(name string, content io.Reader) error {
	f, err := b.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		_, err = io.Copy(f, content)
		if closed := f.Close(); err == nil {
			err = closed
		}
	}
	if err != nil {
		return fmt.Errorf("write a file of a repository: %w", localFault(err))
	}
	return nil
}

// Finish makes the repositories, all of them that can be made. What could not be
// brought back as it was is noted; an error means that something of the archive
// was not put back at all.
func (b *Rebuild) Finish(ctx context.Context, m box.Manifest) (notes []string, err error) {
	if err := b.End(); err != nil {
		return nil, err
	}
	groups := map[string][]int{} // by the path of the one that has the bundle
	numbers := map[string]string{}
	for i := range m.Repositories {
		one := &m.Repositories[i]
		if err := placeable(one.Path); err != nil {
			return nil, err
		}
		numbers[one.Path] = fmt.Sprintf("%04d", i+1)
		owner := one.Path
		if one.BundleOf != "" {
			owner = one.BundleOf
		}
		groups[owner] = append(groups[owner], i)
	}
	// In the archive's order the outer ones come first: inner ones may lie in their
	// git directories.
	byPlace := func(a, b string) int { return cmp.Compare(groups[a][0], groups[b][0]) }
	for _, owner := range slices.SortedFunc(maps.Keys(groups), byPlace) {
		members := groups[owner]
		more, failed := b.group(ctx, m, members, numbers, owner)
		notes, err = append(notes, more...), errors.Join(err, failed)
		if ctx.Err() != nil {
			return nil, box.Errorf(box.ClassCanceled, "bring the repositories back: %w", context.Cause(ctx))
		}
	}
	if cleared := b.Root.RemoveAll(gitStores); cleared != nil {
		err = errors.Join(err, fmt.Errorf("clear the place for repositories: %w", cleared))
	}
	return notes, err
}

// placeable refuses a path that no repository has.
func placeable(place string) error {
	rest := place
	if super, module, inside := strings.Cut(place, "/.git/"); inside {
		if !strings.HasPrefix(module, "modules/") {
			return box.Errorf(box.ClassUnknown, "the archive says that there is a repository at %.200q, where none can be", place)
		}
		rest = super + "/" + module
	}
	for element := range strings.SplitSeq(rest, "/") {
		if element == "" || element == "." || element == ".." || element == ".git" && rest == place || strings.ContainsAny(element, "\x00\n") {
			return box.Errorf(box.ClassUnknown, "the archive says that there is a repository at %.200q, where none can be", place)
		}
	}
	return nil
}

// localFault tells what fails here from what is wrong with an archive.
func localFault(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return box.Errorf(box.ClassExhausted, "the disk is full: %w", err)
	}
	return box.Errorf(box.ClassInternal, "%w", err)
}
