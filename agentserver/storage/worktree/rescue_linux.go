package worktree

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/box"
)

// rescue keeps all that a worktree holds: its commits as references of the
// repository, everything as an archive, which is read back before it counts. It
// returns the archive's path.
func (l *Layout) rescue(ctx context.Context, r *repo.Repository, conversation, place string) (string, error) {
	tips, err := r.Remembered()
	if err != nil {
		return "", err
	}
	alone, err := r.Unreachable(ctx, tips, repo.BesidesShared)
	if err != nil {
		return "", err
	}
	lost := make(map[string]bool, len(alone))
	for _, id := range alone {
		lost[id] = true
	}
	var refs []repo.Ref
	for _, id := range tips {
		if lost[id] {
			refs = append(refs, repo.Ref{Name: "refs/openhands/rescue/" + conversation + "/" + id, ID: id})
		}
	}
	if len(refs) > 0 {
		if err := r.Keep(ctx, refs); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(l.opts.Rescue, 0o700); err != nil {
		return "", fmt.Errorf("make the place for archives: %w", err)
	}
	file, err := os.CreateTemp(l.opts.Rescue, ".new-*")
	if err != nil {
		return "", fmt.Errorf("make an archive: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	out := bufio.NewWriterSize(file, 1<<20)
	err = l.work(place).Export(ctx, out)
	if err = errors.Join(err, out.Flush(), file.Sync()); err != nil {
		return "", err
	}
	// Read back from the file, not from memory.
	if _, err := file.Seek(0, 0); err != nil {
		return "", err
	}
	manifest, err := agentserver.VerifyWorkspace(bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		return "", err
	}
	if len(manifest.Incomplete) > 0 || manifest.Changed > 0 {
		return "", box.Errorf(box.ClassUnknown, "the archive lacks something or changed while it was made: %s", strings.Join(manifest.Incomplete, "; "))
	}
	var raw [4]byte
	rand.Read(raw[:])
	name := filepath.Join(l.opts.Rescue, conversation+"-"+path.Base(place)+"-"+hex.EncodeToString(raw[:])+".tar.zst")
	if err := os.Link(file.Name(), name); err != nil {
		return "", fmt.Errorf("name the archive: %w", err)
	}
	dir, err := os.Open(l.opts.Rescue)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return name, dir.Sync()
}

// fingerprint sums up every name below a directory with its kind, size and
// times, so that a change between two looks is seen. A rename of the directory
// itself changes nothing of it.
func fingerprint(ctx context.Context, tree *reclaim.Beneath, at int, name string) (string, error) {
	sum := sha256.New()
	var visit func(at int, name string, depth int) error
	visit = func(at int, name string, depth int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if depth > 200 {
			return errors.New("it is nested too deep")
		}
		fd, names, err := tree.List(at, name)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		slices.SortFunc(names, func(a, b reclaim.Name) int { return strings.Compare(a.Name, b.Name) })
		for _, entry := range names {
			var st unix.Stat_t
			if err := unix.Fstatat(fd, entry.Name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
				return err
			}
			// The digest never fails to take a write.
			_, _ = fmt.Fprintf(sum, "%d %q\n", depth, entry.Name)
			_ = binary.Write(sum, binary.LittleEndian, []int64{
				int64(st.Mode), int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano(), //nolint:gosec // compared, not used
			})
			if entry.Kind == unix.DT_DIR {
				if err := visit(fd, entry.Name, depth+1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := visit(at, name, 0); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
