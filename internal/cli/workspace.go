package cli

import (
	"bufio"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// exportedWorkspace is the newest export of a workspace's files.
type exportedWorkspace struct {
	Export       string               `json:"export"` // key of its manifest
	Epoch        int                  `json:"epoch"`
	At           time.Time            `json:"at"`
	Files        int64                `json:"files"`
	Bytes        int64                `json:"bytes"` // of the tar
	Repositories []exportedRepository `json:"repositories,omitzero"`
	Changed      int64                `json:"changed,omitzero"` // files that changed while they were read
	Missing      int64                `json:"missing,omitzero"`
	Incomplete   []string             `json:"incomplete,omitzero"` // what is missing, the first hundred by name

	receipt  box.Receipt
	manifest box.Manifest // of the archive
	reader   *exports.WorkspaceReader
}

// exportedRepository is a repository in an exported workspace.
type exportedRepository struct {
	Path       string   `json:"path"`
	Kind       string   `json:"kind"`
	Branch     string   `json:"branch,omitzero"`
	Head       string   `json:"head,omitzero"`
	References int      `json:"references"`
	Stashes    int      `json:"stashes,omitzero"`
	InProgress []string `json:"in_progress,omitzero"`
	Unbundled  string   `json:"unbundled,omitzero"`
}

// newestWorkspace opens the newest export that holds files, of one epoch or of
// any. It is nil when no export holds any; none then says why the newest one does
// not. What is damaged is reported as Unknown beside the next one that is whole.
func newestWorkspace(ctx context.Context, store *exports.Store, workspace string, epoch int) (out *exportedWorkspace, none string, err error) {
	all, err := store.List(ctx, workspace)
	if err != nil {
		return nil, "", err
	}
	var damage error
	for _, one := range slices.Backward(all) {
		switch {
		case one.Damage != "":
			damage = errors.Join(damage, box.Errorf(box.ClassUnknown, "%s", one.Damage))
			continue
		case epoch > 0 && one.Receipt.Epoch != epoch:
			continue
		case !one.Receipt.Archive.Held():
			if none == "" {
				none = one.Receipt.Archive.None
			}
			continue
		}
		found, err := openWorkspace(ctx, store, workspace, one)
		if err == nil {
			return found, "", damage
		}
		if box.ClassOf(err) != box.ClassUnknown {
			return nil, "", err
		}
		damage = errors.Join(damage, err)
	}
	return nil, none, damage
}

func openWorkspace(ctx context.Context, store *exports.Store, workspace string, one exports.Stored) (*exportedWorkspace, error) {
	reader, err := store.Workspace(ctx, workspace, one.Receipt)
	if err != nil {
		return nil, err
	}
	m, err := reader.Manifest(ctx)
	if err != nil {
		return nil, err
	}
	out := &exportedWorkspace{
		Export: one.Receipt.Key, Epoch: one.Receipt.Epoch, At: one.CreatedAt,
		Files: one.Receipt.Archive.Files, Bytes: one.Receipt.Archive.Bytes, Changed: one.Receipt.Archive.Changed,
		Missing: one.Receipt.Archive.Missing, Incomplete: m.Incomplete,
		receipt: one.Receipt, manifest: m, reader: reader,
	}
	for i := range m.Repositories {
		r := &m.Repositories[i]
		out.Repositories = append(out.Repositories, exportedRepository{
			Path: r.Path, Kind: string(r.Kind), Branch: r.Branch, Head: r.Head, References: r.References,
			Stashes: len(r.Stashes), InProgress: r.InProgress, Unbundled: r.Unbundled,
		})
	}
	return out, nil
}

// lacks names what an export lacks of the workspace, line by line.
func (w *exportedWorkspace) lacks() []string {
	if w == nil || w.Missing == 0 {
		return nil
	}
	lines := []string{"The export lacks " + plural(w.Missing, "thing") + " of the workspace that could not be read in the box:"}
	for _, name := range w.Incomplete {
		lines = append(lines, "  "+printable(name))
	}
	return lines
}

func (p *page) exportedWorkspace(a *Shared, w *exportedWorkspace, detail bool) {
	if w == nil {
		return
	}
	p.linef("Workspace files: %s, %s, %s, exported %s of box %d.", plural(w.Files, "file"), plural(int64(len(w.Repositories)), "repository"), size(w.Bytes), a.moment(w.At), w.Epoch)
	if w.Changed > 0 {
		p.linef("%s changed while they were read.", plural(w.Changed, "file"))
	}
	for _, line := range w.lacks() {
		p.linef("%s", line)
	}
	if !detail || len(w.Repositories) == 0 {
		return
	}
	rows := [][]string{{"REPOSITORY", "KIND", "AT", "REFERENCES", "STASHES", "REMARK"}}
	for _, r := range w.Repositories {
		at, remark := r.Branch, r.Unbundled
		if at == "" {
			at = r.Head[:min(len(r.Head), 12)]
		}
		if len(r.InProgress) > 0 && remark == "" {
			remark = "in progress: " + strings.Join(r.InProgress, ", ")
		}
		rows = append(rows, []string{r.Path, r.Kind, orDash(at), stringOf(int64(r.References)), stringOf(int64(r.Stashes)), orDash(remark)})
	}
	p.table(rows)
}

// shownWorkspace is the answer of history --workspace.
type shownWorkspace struct {
	Workspace string             `json:"workspace"`
	Exports   string             `json:"exports"` // URL of the store
	Verified  bool               `json:"verified"`
	Files     *exportedWorkspace `json:"workspace_export"`
}

// workspaceFiles shows, lists, proves or extracts the files of a workspace.
func (a *Shared) workspaceFiles(c *cobra.Command, store *exports.Store, where string, want historyQuery) error {
	ctx := c.Context()
	found, none, damage := newestWorkspace(ctx, store, want.workspace, want.epoch)
	switch {
	case damage != nil && box.ClassOf(damage) != box.ClassUnknown:
		return damage
	case found == nil && damage != nil:
		return damagedStore(where, damage)
	case found == nil && none != "":
		return box.Errorf(box.ClassNotFound, "no export of workspace %s holds its files: %s", want.workspace, printable(none))
	case found == nil:
		return box.Errorf(box.ClassNotFound, "the export store %s holds no files of workspace %s; look at the id, and at which store the workers use", where, want.workspace)
	}
	var err error
	switch {
	case want.directory != "":
		return a.extractWorkspace(c, where, want, found, damage)
	case want.files:
		err = a.workspaceList(c, found)
	default:
		out := shownWorkspace{Workspace: want.workspace, Exports: where, Files: found}
		if want.verify {
			broken := store.ProveWorkspace(ctx, want.workspace, found.receipt)
			if broken != nil && box.ClassOf(broken) != box.ClassUnknown {
				return broken
			}
			damage = errors.Join(damage, broken)
			out.Verified = damage == nil
		}
		err = a.show(c, out, func(p *page) {
			p.exportedWorkspace(a, found, true)
			if out.Verified {
				p.linef("Read back and checked.")
			}
		})
	}
	if err == nil && damage != nil {
		err = damagedStore(where, damage)
	}
	return err
}

// workspaceEntry is one thing in an exported workspace, for programs.
type workspaceEntry struct {
	Name       string    `json:"name"`
	NameBase64 []byte    `json:"name_base64,omitzero"` // when the name is no text
	Type       string    `json:"type"`
	SizeBytes  int64     `json:"size_bytes,omitzero"`
	Mode       uint32    `json:"mode,omitzero"`
	Modified   time.Time `json:"modified,omitzero"`
	Target     string    `json:"target,omitzero"`
	SHA256     string    `json:"sha256,omitzero"`
	Changed    bool      `json:"changed,omitzero"`
	Why        string    `json:"why,omitzero"` // why it was left out
}

// workspaceList lists what --only takes, and what was left out: there can be a
// million.
func (a *Shared) workspaceList(c *cobra.Command, w *exportedWorkspace) error {
	out := bufio.NewWriter(c.OutOrStdout())
	for e, err := range w.reader.Entries(c.Context()) {
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		name, inTree := strings.CutPrefix(e.Name, box.WorkspaceFiles)
		if !inTree {
			break
		}
		if a.output == formatJSON {
			view := workspaceEntry{Name: name, Type: e.Type, SizeBytes: e.Bytes, Mode: e.Mode, Target: e.Target, SHA256: e.SHA256, Changed: e.Changed, Why: e.Why}
			if clean := strings.ToValidUTF8(name, "�"); clean != name {
				view.Name, view.NameBase64 = clean, []byte(name)
			}
			if e.Type == "file" {
				view.Modified = time.Unix(e.Modified, 0).UTC()
			}
			err = writeJSONLine(out, view)
		} else {
			text := printable(name) + "\t" + printable(e.Type)
			switch {
			case e.Why != "":
				text += "\t" + printable(e.Why)
			case e.Target != "":
				text += "\t" + printable(e.Target)
			case e.Type == "file":
				text += "\t" + stringOf(e.Bytes)
			}
			err = write(out, text+"\n")
		}
		if err != nil {
			return err
		}
	}
	return out.Flush()
}
