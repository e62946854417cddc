package repo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Unbundle makes a git directory at dir, which must not be there, that holds
// what a bundle holds: its objects and references, as far as [Repository.Bundle]
// writes them. The bundle is read once, as a stream. Nothing that it says is
// executed, and nothing of it is a setting; [Git.Settle] makes a repository of
// it. With an error the directory is worth nothing. Unknown: the bundle is none,
// is cut off, or holds a difference to an object that unfolds to over 1 GiB.
func (g *Git) Unbundle(ctx context.Context, dir string, bundle io.Reader) ([]Ref, error) {
	in := bufio.NewReaderSize(bundle, maxRecord)
	head, err := readBundleHead(in)
	if err != nil {
		return nil, err
	}
	if err := makeGitDir(dir); err != nil {
		return nil, err
	}
	if err := writeConfig(dir, head.format, "", nil); err != nil {
		return nil, err
	}
	// What limits its memory is what limits a bundle's. A difference may say that
	// its object is as large as it likes, in a few bytes: git itself makes none of
	// objects over 512 MiB, unless it is told to.
	err = g.do(ctx, run{
		dir: dir, env: []string{"GIT_DIR=" + dir, "GIT_ALLOC_LIMIT=1g"}, stdin: in, stream: true, args: []string{"index-pack", "--stdin"},
		config: []string{"pack.threads=1", "core.bigFileThreshold=8m", "core.packedGitWindowSize=1m", "core.packedGitLimit=32m", "core.deltaBaseCacheLimit=8m"},
	})
	if err != nil {
		return nil, err
	}
	if err := g.present(ctx, dir, head.ids()); err != nil {
		return nil, err
	}
	return head.refs, writeRefs(dir, head.refs)
}

// bundleHead is what stands before the pack.
type bundleHead struct {
	format string // of objects; empty for the usual one
	refs   []Ref
	head   string // empty when it names none
}

func (h bundleHead) ids() []string {
	var out []string
	for _, ref := range h.refs {
		out = append(out, ref.ID)
	}
	if h.head != "" {
		out = append(out, h.head)
	}
	return out
}

func noBundle(why string) error {
	return box.Errorf(box.ClassUnknown, "the bundle of a repository %s", why)
}

func readBundleHead(in *bufio.Reader) (bundleHead, error) {
	line := func() (string, error) {
		text, err := in.ReadSlice('\n')
		if err != nil {
			return "", noBundle("ends in its head, or is none")
		}
		return string(text[:len(text)-1]), nil
	}
	first, err := line()
	if err != nil {
		return bundleHead{}, err
	}
	if first != "# v2 git bundle" && first != "# v3 git bundle" {
		return bundleHead{}, noBundle("is of no known version")
	}
	var out bundleHead
	for {
		text, err := line()
		if err != nil || text == "" {
			return out, err
		}
		if name, ok := strings.CutPrefix(text, "@object-format="); ok && format.MatchString(name) {
			out.format = name
			continue
		}
		id, name, ok := strings.Cut(text, " ")
		switch {
		case !ok || !isID(id):
			return bundleHead{}, noBundle(fmt.Sprintf("says %.20q, which is not understood", text))
		case name == "HEAD":
			out.head = id
		case !validRef(name):
			return bundleHead{}, noBundle(fmt.Sprintf("has a reference %.40q, which git would not take", name))
		case len(out.refs) == maxRefs:
			return bundleHead{}, box.Errorf(box.ClassExhausted, "the bundle of a repository has more than %d references", maxRefs)
		default:
			out.refs = append(out.refs, Ref{Name: name, ID: id})
		}
	}
}

var refForm = regexp.MustCompile(`^refs(/[^\x00-\x20~^:?*\[\\\x7f/]+)+$`)

// validRef says whether git takes the name for a reference.
func validRef(name string) bool {
	if !refForm.MatchString(name) || strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.HasSuffix(name, ".") {
		return false
	}
	for element := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(element, ".") || strings.HasSuffix(element, ".lock") {
			return false
		}
	}
	return true
}

// present fails when an object is not there.
func (g *Git) present(ctx context.Context, dir string, ids []string) error {
	what := run{
		dir: dir, env: []string{"GIT_DIR=" + dir}, stdin: strings.NewReader(strings.Join(ids, "\n") + "\n"),
		args: []string{"cat-file", "--batch-check=%(objectname)"}, stream: true,
	}
	what.out = func(answer io.Reader) error {
		return eachLine(answer, func(line string) error {
			if !isID(line) {
				return noBundle(fmt.Sprintf("names an object that is not in it: %.60s", oneLine(line)))
			}
			return nil
		})
	}
	if len(ids) == 0 {
		return nil
	}
	return g.do(ctx, what)
}

// CutOff lists the commits in a git directory of ours whose parents are not all
// there: where the history of a shallow clone begins.
func (g *Git) CutOff(ctx context.Context, dir string) ([]string, error) {
	var commits []string
	list := run{
		dir: dir, env: []string{"GIT_DIR=" + dir}, stream: true,
		args: []string{"cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)"},
	}
	list.out = func(answer io.Reader) error {
		return eachLine(answer, func(line string) error {
			if id, ok := strings.CutPrefix(line, "commit "); ok {
				commits = append(commits, id)
			}
			return nil
		})
	}
	if err := g.do(ctx, list); err != nil || len(commits) == 0 {
		return nil, err
	}
	slices.Sort(commits)
	var out []string
	read := run{
		dir: dir, env: []string{"GIT_DIR=" + dir}, stream: true, args: []string{"cat-file", "--batch"},
		stdin: strings.NewReader(strings.Join(commits, "\n") + "\n"),
	}
	read.out = func(answer io.Reader) error {
		in := bufio.NewReader(answer)
		for {
			var id, kind string
			var size int64
			head, err := in.ReadString('\n')
			if errors.Is(err, io.EOF) && head == "" {
				return nil
			}
			if n, _ := fmt.Sscanf(head, "%s %s %d\n", &id, &kind, &size); err != nil || n != 3 || size < 0 {
				return fmt.Errorf("git cat-file said %.40q, which is not understood", head)
			}
			cut, err := cutOff(io.LimitReader(in, size), commits)
			if err == nil {
				_, err = in.Discard(1)
			}
			if err != nil {
				return err
			}
			if cut {
				out = append(out, id)
			}
		}
	}
	return out, g.do(ctx, read)
}

// cutOff reads a commit to its end, and reports whether a parent is not listed.
func cutOff(commit io.Reader, listed []string) (bool, error) {
	lines := bufio.NewReader(commit)
	cut, inHead := false, true
	for {
		line, err := lines.ReadString('\n')
		if id, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "parent "); ok && inHead {
			if _, there := slices.BinarySearch(listed, id); !there {
				cut = true
			}
		}
		inHead = inHead && line != "\n"
		if errors.Is(err, io.EOF) {
			return cut, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// makeGitDir makes an empty git directory.
func makeGitDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // like git's own
		return fmt.Errorf("make a git directory: %w", err)
	}
	for _, name := range []string{"objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags", "info"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil { //nolint:gosec // as above
			return fmt.Errorf("make a git directory: %w", err)
		}
	}
	return writeFile(dir, "HEAD", "ref: refs/heads/main\n")
}

func writeFile(dir, name, text string) error {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // like git's own
		return fmt.Errorf("write %s of a git directory: %w", name, err)
	}
	return nil
}

// writeRefs writes the references of a git directory that has no other.
func writeRefs(dir string, refs []Ref) error {
	sorted := slices.SortedFunc(slices.Values(refs), func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	var text strings.Builder
	for _, ref := range sorted {
		text.WriteString(ref.ID + " " + ref.Name + "\n")
	}
	return writeFile(dir, "packed-refs", text.String())
}

// Empty makes a git directory without anything in it, for [Git.Settle].
func Empty(dir string) error { return makeGitDir(dir) }
