package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
)

// Histories are private: nobody else on the machine reads what is extracted.
const (
	extractedDir  = 0o700
	extractedFile = 0o600
)

// tree is what can be extracted: the files of a conversation.
type tree interface {
	Files(ctx context.Context) iter.Seq2[exports.File, error]
	OpenFile(ctx context.Context, f exports.File) (io.Reader, error)
}

var _ tree = (*exports.Conversation)(nil)

// extracted is what was written.
type extracted struct {
	Workspace     string                  `json:"workspace"`
	Exports       string                  `json:"exports"` // URL of the store
	Directory     string                  `json:"directory"`
	Conversations []extractedConversation `json:"conversations"`
	Files         int                     `json:"files"`
	Bytes         int64                   `json:"bytes"`
}

type extractedConversation struct {
	ID     string `json:"id"`
	Events int    `json:"events"` // of the copy that was extracted
	Epoch  int    `json:"epoch"`
	SHA256 string `json:"sha256"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
}

// extract writes files of the export store below a directory of this machine.
// What cannot be read is left out and said at the end.
func (a *Shared) extract(c *cobra.Command, store *exports.Store, where string, want historyQuery) error {
	ctx := c.Context()
	// Nothing is made for what is not there.
	ids, damage := []string{want.conversation}, error(nil)
	if want.conversation != "" {
		if err := wantedIsThere(ctx, store, want); err != nil {
			return err
		}
	} else {
		var err error
		if ids, damage, err = allThere(ctx, store, where, want.workspace); err != nil {
			return err
		}
	}
	x, err := openExtraction(want.directory, want.force)
	if err != nil {
		return err
	}
	defer x.root.Close()
	for _, id := range ids {
		if err := x.free(id, want.zip, len(want.only) > 0); err != nil {
			return err
		}
	}
	out := extracted{Workspace: want.workspace, Exports: where, Directory: want.directory, Conversations: []extractedConversation{}}
	for _, id := range ids {
		done, err := x.conversation(ctx, store, want, id)
		out.Files, out.Bytes = out.Files+done.Files, out.Bytes+done.Bytes
		if done.ID != "" {
			out.Conversations = append(out.Conversations, done)
		}
		if err != nil && box.ClassOf(err) != box.ClassUnknown {
			return err
		}
		damage = errors.Join(damage, err)
	}
	err = a.show(c, out, func(p *page) {
		for _, done := range out.Conversations {
			p.linef("%s: %s, %s, of box %d", done.ID, plural(done.Files, "file"), size(done.Bytes), done.Epoch)
		}
		p.linef("%s, %s: written below %s.", plural(out.Files, "file"), size(out.Bytes), printable(want.directory))
	})
	if err == nil && damage != nil {
		err = damagedStore(where, damage)
	}
	return err
}

// wantedIsThere looks for the conversation, and for the files of it that are wanted.
// One that is damaged is told with what could be written.
func wantedIsThere(ctx context.Context, store *exports.Store, want historyQuery) error {
	c, err := store.OpenConversation(ctx, want.workspace, want.conversation)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // only read
	for _, name := range want.only {
		if _, err := c.Find(ctx, name); err != nil && box.ClassOf(err) != box.ClassUnknown {
			return err
		}
	}
	return nil
}

// allThere lists the conversations of a workspace, and what of the list is
// damaged.
func allThere(ctx context.Context, store *exports.Store, where, workspace string) (ids []string, damage, err error) {
	entries, err := store.Conversations(ctx, workspace)
	switch {
	case err != nil && box.ClassOf(err) != box.ClassUnknown:
		return nil, nil, err
	case err == nil && len(entries) == 0:
		return nil, nil, box.Errorf(box.ClassNotFound, "the export store %s has no conversation of workspace %s; look at the id, and at which store the workers use", where, workspace)
	}
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids, err, nil
}

// extraction writes below one directory and never outside of it: also not
// through a link that is there.
type extraction struct {
	root  *os.Root
	force bool
	made  map[string]bool // directories that are known to be ones
}

func openExtraction(dir string, force bool) (*extraction, error) {
	if err := os.MkdirAll(dir, extractedDir); err != nil {
		return nil, fmt.Errorf("make the directory for the files: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory for the files: %w", err)
	}
	return &extraction{root: root, force: force, made: map[string]bool{".": true}}, nil
}

// free refuses what is there already before anything is written.
func (x *extraction) free(id string, zip, parts bool) error {
	name := id
	if zip {
		name += ".zip"
	}
	if _, err := x.root.Lstat(name); x.force || parts || errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for %s: %w", name, err)
	}
	return isThere(name)
}

func isThere(name string) error {
	return box.Errorf(box.ClassAlreadyExists, "%s is there already and was not changed; name another directory, or replace it with --force", printable(name))
}

// conversation writes one conversation. The zip, or all files of it, come from
// a copy that was proven before the first byte is written.
func (x *extraction) conversation(ctx context.Context, store *exports.Store, want historyQuery, id string) (done extractedConversation, err error) {
	open := store.ProveConversation
	if len(want.only) > 0 {
		open = store.OpenConversation // every file is checked by itself
	}
	c, err := open(ctx, want.workspace, id)
	if err != nil {
		return done, err
	}
	defer c.Close() //nolint:errcheck // only read
	done = extractedConversation{ID: c.ID, Events: c.History.Events, Epoch: c.Epoch, SHA256: c.SHA256}
	switch {
	case want.zip:
		done.Files, done.Bytes = 1, c.Bytes
		err = x.file(c.ID+".zip", func(w io.Writer) error { return c.WriteZip(ctx, w) })
	case len(want.only) > 0:
		var files []exports.File
		for _, name := range want.only {
			f, err := c.Find(ctx, name)
			if err != nil {
				return extractedConversation{}, err
			}
			files = append(files, f)
		}
		for _, f := range files {
			if err = x.entry(ctx, c, f, &done); err != nil {
				break
			}
		}
	default:
		err = x.tree(ctx, c, &done)
	}
	if err != nil {
		return extractedConversation{}, err
	}
	return done, c.Damage()
}

// tree writes all files of t.
func (x *extraction) tree(ctx context.Context, t tree, done *extractedConversation) error {
	for f, err := range t.Files(ctx) {
		if err == nil && f.Directory {
			err = x.mkdir(f.Name)
		} else if err == nil {
			err = x.entry(ctx, t, f, done)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *extraction) entry(ctx context.Context, t tree, f exports.File, done *extractedConversation) error {
	from, err := t.OpenFile(ctx, f)
	if err != nil {
		return err
	}
	err = x.file(f.Name, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
	if err == nil {
		done.Files, done.Bytes = done.Files+1, done.Bytes+f.SizeBytes
	}
	return err
}

// mkdir makes a directory and its parents. A link in its place is not followed.
func (x *extraction) mkdir(name string) error {
	if x.made[name] {
		return nil
	}
	if err := x.mkdir(path.Dir(name)); err != nil {
		return err
	}
	err := x.root.Mkdir(name, extractedDir)
	if errors.Is(err, fs.ErrExist) {
		var info fs.FileInfo
		if info, err = x.root.Lstat(name); err == nil && !info.IsDir() {
			return box.Errorf(box.ClassFailedPrecondition, "%s is a file or a link where a directory must be; name another directory", printable(name))
		}
	}
	if err != nil {
		return fmt.Errorf("make the directory %s: %w", printable(name), localFault(err))
	}
	x.made[name] = true
	return nil
}

// file writes one file. It is there whole or not at all, and what is there
// under its name is replaced by force only, a link by itself.
func (x *extraction) file(name string, write func(io.Writer) error) error {
	if err := x.mkdir(path.Dir(name)); err != nil {
		return err
	}
	draft := name
	if x.force {
		draft = path.Join(path.Dir(name), ".boxkeeper-"+strings.ToLower(rand.Text()))
	}
	f, err := x.root.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, extractedFile)
	if errors.Is(err, fs.ErrExist) {
		return isThere(name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", printable(name), localFault(err))
	}
	err = write(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil && x.force {
		err = x.root.Rename(draft, name)
	}
	if err != nil {
		_ = x.root.Remove(draft)
		return fmt.Errorf("write %s: %w", printable(name), localFault(err))
	}
	return nil
}

// localFault gives a full disk of this machine its class.
func localFault(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return box.Errorf(box.ClassExhausted, "the disk is full: %w", err)
	}
	return err
}
