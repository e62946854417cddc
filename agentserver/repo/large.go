package repo

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// MaxPatched is the size of the largest file, in bytes, that belongs in a patch:
// git holds both sides of a change and what it makes of them in memory, which is
// five times the file, and this is a box that somebody else works in.
const MaxPatched = 8 << 20

// Large is a change of a tracked file that is over [MaxPatched] on a side.
type Large struct {
	Path string
	// Staged and Unstaged say which patch would hold too much.
	Staged, Unstaged bool
	// Twice says that what is staged is another content than the file has, so
	// that the index alone has it.
	Twice bool
}

// The most that a list of large changes holds: it becomes arguments of git.
const (
	maxLarge      = 1_000
	maxLargeNames = 512 << 10 // bytes
)

var errEnough = errors.New("nobody reads on")

// Large lists the changes that [Repository.Patch] must be told to leave out.
// Exhausted when there are over 1,000.
func (r *Repository) Large(ctx context.Context) ([]Large, error) {
	if r.workTree == "" {
		return nil, nil
	}
	big, some, err := r.largeObjects(ctx)
	if err != nil || len(big) == 0 && !some {
		return nil, err
	}
	var out []Large
	names := 0
	err = r.changes(ctx, func(entry Entry) error {
		one := Large{Path: entry.Path}
		staged := entry.ids[len(entry.ids)-1]
		switch entry.Kind {
		case 'u':
			for _, id := range entry.ids {
				one.Unstaged = one.Unstaged || big[id]
			}
			one.Unstaged = one.Unstaged || r.over(entry)
		default:
			one.Staged = entry.Staged && (big[entry.ids[0]] || big[staged])
			one.Unstaged = entry.Unstaged && (big[staged] || r.over(entry))
			one.Twice = one.Staged && entry.Unstaged && strings.Trim(staged, "0") != ""
		}
		if !one.Staged && !one.Unstaged {
			return nil
		}
		if names += len(one.Path); len(out) == maxLarge || names > maxLargeNames {
			return errTooManyLarge()
		}
		out = append(out, one)
		return nil
	})
	return out, err
}

func errTooManyLarge() error {
	return box.Errorf(box.ClassExhausted, "it has more than %d changes of files over %d MiB", maxLarge, MaxPatched>>20)
}

// largeObjects returns the objects over [MaxPatched] that changes are of, and
// whether a changed file of the working tree is. Neither changes nor objects are
// held: there may be a million.
func (r *Repository) largeObjects(ctx context.Context) (big map[string]bool, some bool, err error) {
	from, to := io.Pipe()
	listed := make(chan error, 1)
	go func() {
		out := bufio.NewWriter(to)
		err := r.changes(ctx, func(entry Entry) error {
			some = some || r.over(entry)
			for _, id := range entry.ids {
				if _, err := out.WriteString(id + "\n"); err != nil {
					return err
				}
			}
			return nil
		})
		err = errors.Join(err, out.Flush())
		_ = to.CloseWithError(err) // never fails; documented
		listed <- err
	}()
	big = map[string]bool{}
	what := r.ask("cat-file", "--batch-check=%(objectname) %(objectsize)")
	what.stdin, what.stream = from, true
	what.out = func(answer io.Reader) error {
		return eachLine(answer, func(line string) error {
			id, text, _ := strings.Cut(line, " ")
			// What is not there has no size: a side that is none, a submodule.
			if size, err := strconv.ParseInt(text, 10, 64); err != nil || size <= MaxPatched {
				return nil //nolint:nilerr // see above
			}
			if big[id] = true; len(big) > 2*maxLarge {
				return errTooManyLarge()
			}
			return nil
		})
	}
	err = r.git.do(ctx, what)
	_ = from.CloseWithError(errEnough) // never fails; documented
	if failed := <-listed; failed != nil && (err == nil || !errors.Is(failed, errEnough)) {
		err = failed
	}
	return big, some, err
}

// over says whether the file of an entry is too large now.
func (r *Repository) over(entry Entry) bool {
	if !entry.Unstaged && entry.Kind != 'u' {
		return false
	}
	info, err := os.Lstat(filepath.Join(r.workTree, entry.Path))
	return err == nil && info.Mode().IsRegular() && info.Size() > MaxPatched
}

// changes calls fn with every tracked path that is not as the last commit has it.
func (r *Repository) changes(ctx context.Context, fn func(Entry) error) error {
	what := r.ask("status", "--porcelain=v2", "-z", "--untracked-files=no", "--ignore-submodules=dirty", "--no-renames")
	what.out = func(out io.Reader) error { return parseStatus(out, fn) }
	what.stream = true
	return r.git.do(ctx, what)
}
