package exports

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Conversation is an exported conversation that is open for reading. Of its zip
// only the directory and what is asked for are read from the store, a few
// hundred KiB around each place, and at most 4 MiB of it are kept.
//
// Every entry is checked against its sum in the zip while it is read, so that
// decay is noticed and not handed out. That the object is still the one of the
// manifest, byte for byte, is known only of one that [Store.ProveConversation]
// opened. It is for one goroutine at a time; Close it.
type Conversation struct {
	History

	store  *Store
	others []History // copies that are not read, the best first
	damage error
	zip    zipFile // without a reader: that has a context
	blocks *ranges
	proven *spooled // when it is set, it is read instead
	places []eventPlace
	// scattered says that events do not follow one another in the zip as they
	// do in the conversation: some agent-servers pack in the order of the disk.
	scattered bool
}

// File is an entry of a conversation's zip.
type File struct {
	// Name is its path in the zip, below the conversation's id, with slashes; it
	// is never absolute, never climbs and holds no control characters.
	Name      string
	Directory bool
	SizeBytes int64

	at, number int64 // of its record
}

// OpenConversation opens the best copy of a conversation that can be read: the
// one with the most events. One whose object is lost, or whose directory is
// damaged, falls back to the next; see [Conversation.Damage]. It needs neither
// box nor engine. NotFound: no export has the conversation. Unknown: the copies
// are lost or altered, which is no proof that there never was one. Unavailable:
// ask again.
func (s *Store) OpenConversation(ctx context.Context, workspace, conversation string) (*Conversation, error) {
	return s.openBest(ctx, workspace, conversation, s.openCopy)
}

// ProveConversation opens a conversation like [Store.OpenConversation], of the
// best copy that is whole by its length, its sum and every entry. All of it is
// read into the spool directory, which needs room for it until Close.
func (s *Store) ProveConversation(ctx context.Context, workspace, conversation string) (*Conversation, error) {
	return s.openBest(ctx, workspace, conversation, s.openProven)
}

func (s *Store) openBest(ctx context.Context, workspace, conversation string, open func(context.Context, History) (*Conversation, error)) (*Conversation, error) {
	if err := validateConversation(conversation); err != nil {
		return nil, err
	}
	all, damage := s.copies(ctx, workspace)
	if damage != nil && !damaged(damage) {
		return nil, damage
	}
	all = slices.DeleteFunc(all, func(h History) bool { return h.ID != conversation })
	for i, h := range all {
		c, err := open(ctx, h)
		if err == nil {
			c.damage, c.others = damage, all[i+1:]
			return c, nil
		}
		if !damaged(err) {
			return nil, err
		}
		damage = firstError(damage, err)
	}
	if damage != nil {
		return nil, damage
	}
	return nil, box.Errorf(box.ClassNotFound, "workspace %s has no export of conversation %s", workspace, conversation)
}

// openCopy reads the directory of one copy.
func (s *Store) openCopy(ctx context.Context, h History) (*Conversation, error) {
	now, err := s.mark(ctx, h.Key)
	switch {
	case box.ClassOf(err) == box.ClassNotFound, err == nil && now.size != h.Bytes:
		return nil, lost(h.ConversationEntry)
	case err != nil:
		return nil, err
	}
	c := &Conversation{History: h, store: s, blocks: s.ranges(h.Key, h.Bytes)}
	return c, c.readDirectory(ctx)
}

func (s *Store) openProven(ctx context.Context, h History) (*Conversation, error) {
	f, _, err := s.proveCopy(ctx, h.ConversationEntry)
	if err != nil {
		return nil, err
	}
	c := &Conversation{History: h, store: s, proven: f}
	if err := c.readDirectory(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// readDirectory finds the events.
func (c *Conversation) readDirectory(ctx context.Context) error {
	z, err := openZip(c.reader(ctx), c.Bytes)
	if err == nil {
		c.places = make([]eventPlace, 0, min(z.entries, int64(c.History.Events)))
		err = z.walk(ctx, func(e zipEntry) error {
			if index, _, ok := eventIndex(e.name, c.ID); ok && len(c.places) <= c.History.Events {
				c.places = append(c.places, eventPlace{index: index, number: e.number, at: e.at})
			}
			return nil
		})
	}
	if err == nil && len(c.places) != c.History.Events {
		err = badZipf("it does not hold the %d events that its manifest counts", c.History.Events)
	}
	if err != nil {
		return c.fault(ctx, "read the directory of conversation "+c.ID, err)
	}
	z.r = nil
	c.zip = z
	inOrder := func(a, b eventPlace) int { return cmp.Compare(a.index, b.index) }
	if c.scattered = !slices.IsSortedFunc(c.places, inOrder); c.scattered {
		slices.SortStableFunc(c.places, inOrder)
	}
	return nil
}

// Close lets go of what was kept.
func (c *Conversation) Close() error {
	if c.proven == nil {
		return nil
	}
	return c.proven.Close()
}

// Damage says why this is not the copy with the most events, or what of it was
// read from another copy instead; nil where there was no reason to.
func (c *Conversation) Damage() error { return c.damage }

func (c *Conversation) reader(ctx context.Context) io.ReaderAt {
	if c.proven != nil {
		return c.proven.file
	}
	return c.blocks.with(ctx)
}

func (c *Conversation) unpacker(ctx context.Context) *unpacker {
	z := c.zip
	z.r = c.reader(ctx)
	return newUnpacker(z)
}

// fault names the object in what is wrong with a zip.
func (c *Conversation) fault(ctx context.Context, doing string, err error) error {
	if bad, ok := errors.AsType[badZip](err); ok {
		return box.Errorf(box.ClassUnknown, "%s of conversation %s is damaged: %w", c.Key, c.ID, bad)
	}
	return fault(ctx, doing, err)
}

// Files yields the entries of the zip in its own order, which is always the
// same. The sequence ends after the first error; Unknown is damage.
func (c *Conversation) Files(ctx context.Context) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		u := c.unpacker(ctx)
		stopped := errors.New("the reader has enough")
		err := u.zip.walk(ctx, func(e zipEntry) error {
			if err := e.refuse(); err != nil {
				return err
			}
			f := File{Name: strings.TrimSuffix(e.name, "/"), Directory: strings.HasSuffix(e.name, "/"), SizeBytes: e.size, at: e.at, number: e.number}
			if !yield(f, nil) {
				return stopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(File{}, c.fault(ctx, "list the files of conversation "+c.ID, err))
		}
	}
}

// Find returns an entry by its name, given with the conversation's id in front
// or without. NotFound: there is none.
func (c *Conversation) Find(ctx context.Context, name string) (File, error) {
	for f, err := range c.Files(ctx) {
		if err != nil {
			return File{}, err
		}
		if f.Name == name || f.Name == c.ID+"/"+name {
			return f, nil
		}
	}
	return File{}, box.Errorf(box.ClassNotFound, "conversation %s has no file %q in its export", c.ID, printable(name))
}

// OpenFile reads one entry. Its end is io.EOF only when length and sum were
// right, and Unknown otherwise: throw away what was read then. It may not be
// read after another one was opened, or under an ended ctx.
func (c *Conversation) OpenFile(ctx context.Context, f File) (io.Reader, error) {
	if f.Directory {
		return nil, box.Invalidf("name", "%q is a directory", printable(f.Name))
	}
	u := c.unpacker(ctx)
	entry, err := u.zip.entryAt(f.at, f.number)
	if err == nil && entry.name != f.Name {
		err = badZipf("entry %d of the zip has another name now", f.number)
	}
	var r io.Reader
	if err == nil {
		r, _, err = u.open(entry)
	}
	if err != nil {
		return nil, c.fault(ctx, "open a file of conversation "+c.ID, err)
	}
	return &faulted{c, ctx, r}, nil
}

// faulted gives errors of a zip their class.
type faulted struct {
	conversation *Conversation
	ctx          context.Context //nolint:containedctx // an io.Reader has no context of its own; this one lives for one entry
	from         io.Reader
}

func (f *faulted) Read(p []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, fault(f.ctx, "read a file of conversation "+f.conversation.ID, err)
	}
	n, err := f.from.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, f.conversation.fault(f.ctx, "read a file of conversation "+f.conversation.ID, err)
}

// WriteZip writes the zip as it was exported. Of one that was not proven,
// Unknown can come after all of it was written: throw it away then.
func (c *Conversation) WriteZip(ctx context.Context, w io.Writer) error {
	sum := sha256.New()
	to := &keepError{to: w}
	err := pour(ctx, io.MultiWriter(to, sum), io.NewSectionReader(c.reader(ctx), 0, c.Bytes), nil)
	switch {
	case to.err != nil:
		return to.err
	case err != nil:
		return c.fault(ctx, "read conversation "+c.ID, err)
	case hex.EncodeToString(sum.Sum(nil)) != c.SHA256:
		return lost(c.ConversationEntry)
	}
	return nil
}

// keepError tells what a writer said from what a reader did.
type keepError struct {
	to  io.Writer
	err error
}

func (k *keepError) Write(p []byte) (n int, err error) {
	if n, err = k.to.Write(p); err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	k.err = err
	return n, err
}
