package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/agentserver/putback"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/unpack"
	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// extractedWorkspace is what was written of a workspace.
type extractedWorkspace struct {
	Workspace    string   `json:"workspace"`
	Exports      string   `json:"exports"` // URL of the store
	Export       string   `json:"export"`  // key of its manifest
	Epoch        int      `json:"epoch"`
	Directory    string   `json:"directory"`
	Files        int64    `json:"files"`
	Bytes        int64    `json:"bytes"`
	Repositories int      `json:"repositories"`
	Missing      int64    `json:"missing,omitzero"` // what the export lacks
	Incomplete   []string `json:"incomplete,omitzero"`
	// Damaged are files that were left out since the store lost or altered them,
	// the first hundred.
	Damaged []string `json:"damaged,omitzero"`
	// Notes say what is not as it was.
	Notes []string `json:"notes,omitzero"`
}

// Directories of ours below that of an extraction.
const (
	gitDrafts  = "git" // where repositories are made
	rawStreams = "repositories"
)

const (
	maxDamaged  = 100
	ownersGone  = "Owners are not in an export: everything belongs to you."
	noGitHere   = "there is no git on this machine, so repositories are bundles and patches below repositories/"
	oldLink     = "%s is a link whose target is no text, which this older export does not keep; it was left out"
	partsWanted = "only what was named was written: no repository is among it"
)

// extractWorkspace writes the tree of an exported workspace below a new or empty
// directory, and makes its repositories. What is damaged is left out and said.
func (a *Shared) extractWorkspace(c *cobra.Command, where string, want historyQuery, found *exportedWorkspace, damage error) error {
	for _, line := range found.lacks() {
		note(c, "%s", line)
	}
	root, err := emptyDir(want.directory)
	if err != nil {
		return err
	}
	defer root.Close()
	x := &workExtraction{
		root: root, tree: unpack.In(root), only: want.only, raw: want.raw, want: map[string]bool{},
		out: extractedWorkspace{
			Workspace: want.workspace, Exports: where, Export: found.Export, Epoch: found.Epoch, Directory: want.directory,
			Missing: found.Missing, Incomplete: found.Incomplete,
		},
	}
	if err := x.prepare(want.directory); err != nil {
		return err
	}
	if err := x.entries(c.Context(), found); err != nil {
		return err
	}
	damage = errors.Join(damage, x.damage, x.repositories(c.Context(), found.manifest))
	if err := unpack.Finish(root, x.tree.Shut()); err != nil {
		return err
	}
	for name, seen := range x.want {
		if !seen {
			return box.Errorf(box.ClassNotFound, "the export %s holds nothing at %q; --files lists what it holds", found.Export, printable(name))
		}
	}
	note(c, "%s", ownersGone)
	err = a.show(c, x.out, func(p *page) {
		for _, line := range x.out.Notes {
			p.linef("%s", printable(line))
		}
		for _, name := range x.out.Damaged {
			p.linef("%s is damaged in the store and was left out.", printable(name))
		}
		p.linef("%s, %s, %s of box %d: written below %s.", plural(x.out.Files, "file"), size(x.out.Bytes), plural(int64(x.out.Repositories), "repository"), found.Epoch, printable(want.directory))
	})
	switch {
	case err != nil || damage == nil:
		return err
	case box.ClassOf(damage) != box.ClassUnknown:
		return damage
	}
	return damagedStore(where, damage)
}

// emptyDir opens a directory that is made, or that is there and empty.
func emptyDir(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, extractedDir); err != nil {
		return nil, fmt.Errorf("make the directory for the files: %w", localFault(err))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory for the files: %w", err)
	}
	list, err := fs.ReadDir(root.FS(), ".")
	if err == nil && len(list) > 0 {
		err = box.Errorf(box.ClassAlreadyExists, "%s is not empty and was not changed; name a new or an empty directory", printable(dir))
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// workExtraction writes one workspace.
type workExtraction struct {
	root   *os.Root
	tree   *unpack.Dir
	only   []string
	want   map[string]bool // of only: was anything of it there?
	raw    bool
	again  *putback.Rebuild // nil where repositories stay bundles, or are not wanted
	out    extractedWorkspace
	damage error
	// The stream that is written as it is.
	stream string
	to     *os.File
}

func (x *workExtraction) prepare(dir string) error {
	for i, name := range x.only {
		x.only[i] = path.Clean(strings.TrimPrefix(name, box.WorkspaceFiles))
		x.want[x.only[i]] = false
	}
	if x.raw || len(x.only) > 0 {
		return nil
	}
	git, err := repo.New(repo.Options{})
	if err != nil {
		x.raw = true
		x.out.Notes = append(x.out.Notes, noGitHere)
		return nil //nolint:nilerr // there is another way
	}
	final, err := filepath.Abs(dir)
	if err == nil {
		final, err = filepath.EvalSymlinks(final)
	}
	if err != nil {
		return fmt.Errorf("find the directory for the files: %w", err)
	}
	x.again = &putback.Rebuild{Git: git, Root: x.root, Path: final, Tree: ".", Final: final}
	return nil
}

// entries writes everything that is wanted, in the order of the index.
func (x *workExtraction) entries(ctx context.Context, found *exportedWorkspace) error {
	cursor := found.reader.Cursor()
	for e, err := range found.reader.Entries(ctx) {
		if err == nil {
			err = x.entry(ctx, cursor, e)
		}
		switch {
		case err == nil:
		case box.ClassOf(err) != box.ClassUnknown:
			return err
		default:
			x.damage = errors.Join(x.damage, err)
			if len(x.out.Damaged) < maxDamaged && e.Name != "" {
				x.out.Damaged = append(x.out.Damaged, strings.TrimPrefix(e.Name, box.WorkspaceFiles))
			}
		}
	}
	return x.endStream()
}

func (x *workExtraction) entry(ctx context.Context, cursor *exports.WorkspaceCursor, e exports.WorkspaceEntry) error {
	name, inTree := strings.CutPrefix(e.Name, box.WorkspaceFiles)
	if !inTree {
		return x.part(ctx, cursor, e)
	}
	if !x.wanted(name) {
		return nil
	}
	switch first, _, _ := strings.Cut(name, "/"); first {
	case gitDrafts, rawStreams:
		return box.Errorf(box.ClassUnknown, "%q is where no box has work", printable(name))
	}
	target, exact := e.LinkTarget()
	switch {
	case e.Type == "left-out":
		return nil
	case e.Type == "directory":
		return x.tree.Directory(name, fs.FileMode(e.Mode))
	case (e.Type == "link" || e.Type == "hardlink") && !exact:
		x.out.Notes = append(x.out.Notes, fmt.Sprintf(oldLink, name))
		return nil
	case e.Type == "link":
		return x.tree.Link(name, target)
	case e.Type == "hardlink" && !x.wanted(target):
		// The file that it is another name of is not written: it gets one of its own.
		return x.alone(ctx, name, target, cursor)
	case e.Type == "hardlink":
		return x.counted(0, x.tree.Hardlink(name, target))
	case e.Type == "file":
		return x.file(name, e, cursor.Content(ctx, e))
	}
	return box.Errorf(box.ClassUnknown, "%q is of no known kind", printable(name))
}

func (x *workExtraction) wanted(name string) bool {
	if len(x.only) == 0 {
		return true
	}
	return slices.ContainsFunc(x.only, func(only string) bool {
		is := name == only || strings.HasPrefix(name, only+"/")
		if is {
			x.want[only] = true
		}
		return is
	})
}

func (x *workExtraction) counted(bytes int64, err error) error {
	if err == nil {
		x.out.Files, x.out.Bytes = x.out.Files+1, x.out.Bytes+bytes
	}
	return err
}

// file writes one file, or nothing of it.
func (x *workExtraction) file(name string, e exports.WorkspaceEntry, from io.Reader) error {
	to, err := x.tree.File(name, fs.FileMode(e.Mode), time.Unix(e.Modified, 0))
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if closed := to.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = x.root.Remove(name)
	}
	return x.counted(e.Bytes, err)
}

// alone writes the content that a hard link has.
func (x *workExtraction) alone(ctx context.Context, name, target string, cursor *exports.WorkspaceCursor) error {
	e, err := cursor.Reader().Find(ctx, box.WorkspaceFiles+target)
	if err != nil {
		return err
	}
	return x.file(name, e, cursor.Reader().Cursor().Content(ctx, e))
}

// part hands on a part of a stream.
func (x *workExtraction) part(ctx context.Context, cursor *exports.WorkspaceCursor, e exports.WorkspaceEntry) error {
	name, ok := strings.CutPrefix(path.Dir(e.Name), box.WorkspaceRepositories)
	if !ok || len(x.only) > 0 {
		return nil // a list, or the manifest
	}
	var to io.Writer
	var err error
	if x.again != nil {
		to, err = x.again.Part(ctx, name)
	} else {
		to, err = x.rawPart(name)
	}
	if err == nil {
		_, err = io.Copy(to, cursor.Content(ctx, e))
	}
	return err
}

// rawPart is the file of a stream, all of whose parts come one after the other.
func (x *workExtraction) rawPart(name string) (io.Writer, error) {
	if name == x.stream && x.to != nil {
		return x.to, nil
	}
	if err := x.endStream(); err != nil {
		return nil, err
	}
	for element := range strings.SplitSeq(name, "/") {
		if element == ".." || element == "." || element == "" {
			return nil, box.Errorf(box.ClassUnknown, "%q leads elsewhere", printable(name))
		}
	}
	place := path.Join(rawStreams, name)
	err := x.root.MkdirAll(path.Dir(place), extractedDir)
	if err == nil {
		x.stream = name
		x.to, err = x.root.OpenFile(place, os.O_WRONLY|os.O_CREATE|os.O_EXCL, extractedFile)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", printable(place), localFault(err))
	}
	return x.to, nil
}

func (x *workExtraction) endStream() error {
	if x.to == nil {
		return nil
	}
	err := x.to.Close()
	x.to = nil
	if err != nil {
		return fmt.Errorf("write %s: %w", printable(x.stream), localFault(err))
	}
	return nil
}

// repositories makes the repositories, when all their streams were read.
func (x *workExtraction) repositories(ctx context.Context, m box.Manifest) error {
	switch {
	case len(x.only) > 0 && len(m.Repositories) > 0:
		x.out.Notes = append(x.out.Notes, partsWanted)
		return nil
	case x.again == nil:
		x.out.Repositories = len(m.Repositories)
		return nil
	}
	notes, err := x.again.Finish(ctx, m)
	x.out.Notes = append(x.out.Notes, notes...)
	x.out.Repositories = len(m.Repositories)
	if err != nil {
		return fmt.Errorf("%w; --raw writes repositories as bundles and patches, into another directory", err)
	}
	return nil
}
