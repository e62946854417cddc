package exports

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// conversation makes sure that the store holds a whole copy of one
// conversation: one that a manifest names already, one that an interrupted run
// of this attempt left, or a new one. It returns false when the server has no
// such conversation any more.
func (e *exporter) conversation(ctx context.Context, mark box.ConversationMark) (ConversationEntry, bool, error) {
	for _, c := range e.known[mark.ID] {
		if c.Events != mark.Events {
			continue
		}
		usable, err := e.usable(ctx, c)
		if usable {
			c.Reused, c.Gone = true, false
			return c, true, nil
		}
		if err == nil {
			continue // what it holds is to be masked
		}
		if !damaged(err) {
			return ConversationEntry{}, false, err
		}
	}
	next, left, err := e.leftover(ctx, mark)
	if err != nil || left.Key != "" {
		return left, left.Key != "", err
	}
	f, events, err := e.fetch(ctx, mark)
	if errors.Is(err, errVanished) {
		return ConversationEntry{}, false, nil
	}
	if err != nil {
		return ConversationEntry{}, false, err
	}
	f, found, err := e.clean(ctx, mark.ID, f, events)
	if err != nil {
		return ConversationEntry{}, false, err
	}
	defer f.Close() //nolint:errcheck // it has no name any more
	entry := ConversationEntry{ID: mark.ID, Bytes: f.size, SHA256: f.sum, Events: events}
	if e.scan.refuses(found) {
		// The export will be refused. The rest is looked through all the same, so
		// that the report is whole, and this does not go into the store.
		entry.Key = objectKey(e.prefix, mark.ID, next)
		found.Withheld = true
		e.scan.record(objectID{entry.Key, entry.SHA256}, found)
		return entry, true, nil
	}
	for n := next; n <= maxAlternates; n++ {
		entry.Key = objectKey(e.prefix, mark.ID, n)
		e.stage(StageStore, mark.ID, f.size)
		err := e.store.put(ctx, entry.Key, "application/zip", io.NewSectionReader(f.file, 0, f.size), e.tick)
		if err == nil {
			e.scan.record(objectID{entry.Key, entry.SHA256}, found)
			return entry, true, nil
		}
		if box.ClassOf(err) != box.ClassAlreadyExists {
			return ConversationEntry{}, false, err
		}
		// Taken meanwhile, by another runner or by our own lost answer.
		if err := e.store.proveSum(ctx, entry, nil); err == nil {
			e.scan.record(objectID{entry.Key, entry.SHA256}, found)
			return entry, true, nil
		} else if !damaged(err) {
			return ConversationEntry{}, false, err
		}
	}
	return ConversationEntry{}, false, tooMany(mark.ID)
}

func tooMany(id string) error {
	return box.Errorf(box.ClassConflict, "this attempt holds too many different copies of conversation %s; use another attempt", id)
}

// leftover looks through the copies that earlier runs of this attempt wrote
// and returns one that is whole and as long as the server counts, or the number
// of the first name to try: the first free one, or that of a copy which may be
// what is written again.
func (e *exporter) leftover(ctx context.Context, mark box.ConversationMark) (next int, found ConversationEntry, err error) {
	for n := 1; n <= maxAlternates; n++ {
		key := objectKey(e.prefix, mark.ID, n)
		f, facts, err := e.store.inspect(ctx, key, mark.ID, func(stage Stage, size int64) { e.stage(stage, mark.ID, size) }, e.tick)
		if box.ClassOf(err) == box.ClassNotFound {
			return cmp.Or(next, n), ConversationEntry{}, nil
		}
		if damaged(err) {
			continue
		}
		if err != nil {
			return 0, ConversationEntry{}, err
		}
		entry := ConversationEntry{ID: mark.ID, Key: key, Bytes: f.size, SHA256: f.sum, Events: facts.events}
		usable := false
		if facts.events == mark.Events {
			if usable, err = e.usableCopy(ctx, entry, f); !usable {
				next = cmp.Or(next, n)
			}
		}
		_ = f.Close()
		if usable || err != nil {
			return 0, entry, err
		}
	}
	return 0, ConversationEntry{}, tooMany(mark.ID)
}

// inspect copies one object to a spool file and checks it. NotFound is the
// object's absence, Unknown means that it is not whole. The caller closes the
// file.
func (s *Store) inspect(ctx context.Context, key, conversation string, stage func(Stage, int64), tick func(int)) (*spooled, zipFacts, error) {
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return nil, zipFacts{}, fault(ctx, "read "+key, err)
	}
	defer r.Close() //nolint:errcheck // nothing is written
	if stage != nil {
		stage(StageReadBack, r.Size())
	}
	f, err := s.spoolFrom(ctx, r, tick)
	if err != nil {
		return nil, zipFacts{}, fault(ctx, "read "+key, err)
	}
	if stage != nil {
		stage(StageCheck, -1)
	}
	facts, err := checkZip(ctx, f.file, f.size, conversation, tick)
	if bad, ok := errors.AsType[badZip](err); ok {
		_ = f.Close()
		return nil, zipFacts{}, box.Errorf(box.ClassUnknown, "%s is damaged: %w", key, bad)
	}
	if err != nil {
		_ = f.Close()
		return nil, zipFacts{}, fault(ctx, "check "+key, err)
	}
	return f, facts, nil
}

var errVanished = errors.New("the server does not list the conversation any more")

// badCopy is why a download is not taken; it is tried again.
type badCopy struct{ err error }

func (b badCopy) Error() string { return b.err.Error() }
func (b badCopy) Unwrap() error { return b.err }

// fetch downloads one conversation and checks it, up to three times, and
// returns the spooled zip with its number of events.
func (e *exporter) fetch(ctx context.Context, mark box.ConversationMark) (*spooled, int, error) {
	var last error
	for try := range downloadTries {
		if try > 0 {
			if err := pause(ctx, time.Duration(try)*retryPause); err != nil {
				return nil, 0, err
			}
		}
		f, facts, err := e.download(ctx, mark.ID)
		if err == nil && facts.events > mark.Events {
			// It may have grown since it was counted: ask again before believing it.
			var now int
			if now, err = e.recount(ctx, mark.ID); err == nil && now != facts.events {
				err = badCopy{box.Errorf(box.ClassUnknown, "the zip holds %d events, the server counts %d", facts.events, now)}
			}
			mark.Events = max(mark.Events, now)
		} else if err == nil && facts.events < mark.Events {
			err = badCopy{box.Errorf(box.ClassUnknown, "the zip holds fewer events than the server counts: %d of %d", facts.events, mark.Events)}
		}
		if err == nil {
			return f, facts.events, nil
		}
		if f != nil {
			_ = f.Close()
		}
		bad, again := errors.AsType[badCopy](err)
		if !again {
			return nil, 0, err
		}
		last = bad.err
	}
	if err := e.stillListed(ctx, mark.ID, last); err != nil {
		return nil, 0, err
	}
	return nil, 0, &box.Error{
		Class: copyClass(last), Err: last, RetryAfter: retryAfter(last),
		Message: fmt.Sprintf("conversation %s cannot be exported whole after %d tries, so the box must stay", mark.ID, downloadTries),
	}
}

// copyClass keeps what tells the caller what to do, and nothing that sounds
// like an absence.
func copyClass(err error) box.Class {
	switch class := box.ClassOf(err); class {
	case box.ClassExhausted, box.ClassUnavailable, box.ClassDeadlineExceeded:
		return class
	case box.ClassUnknown, box.ClassNotFound, box.ClassAlreadyExists, box.ClassInvalid, box.ClassFailedPrecondition,
		box.ClassConflict, box.ClassUnauthorized, box.ClassUnsupported, box.ClassCanceled, box.ClassInternal:
	}
	return box.ClassUnknown
}

// stillListed tells a conversation that was deleted under our hands from one
// that the server has and does not give out.
func (e *exporter) stillListed(ctx context.Context, id string, last error) error {
	if box.ClassOf(last) != box.ClassNotFound {
		return nil
	}
	_, err := e.recount(ctx, id)
	return err
}

func (e *exporter) recount(ctx context.Context, id string) (int, error) {
	list, err := e.list(ctx)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(list, func(m box.ConversationMark) bool { return m.ID == id })
	if i < 0 {
		return 0, errVanished
	}
	return list[i].Events, nil
}

// download spools one zip and checks it. What another try may repair is a
// badCopy.
func (e *exporter) download(ctx context.Context, id string) (*spooled, zipFacts, error) {
	e.stage(StageDownload, id, -1)
	body, length, err := e.src.Download(ctx, id)
	if err != nil {
		class := box.ClassOf(err)
		if ctx.Err() != nil || class == box.ClassUnauthorized || class == box.ClassUnsupported ||
			class == box.ClassFailedPrecondition || class == box.ClassExhausted {
			return nil, zipFacts{}, sourceFault(ctx, "download conversation "+id, err)
		}
		return nil, zipFacts{}, badCopy{err}
	}
	body = &onceCloser{ReadCloser: body}
	// A read that hangs ends with its body.
	stop := context.AfterFunc(ctx, func() { _ = body.Close() })
	defer func() {
		stop()
		_ = body.Close()
	}()
	e.stage(StageDownload, id, length)
	limit := int64(maxZipBytes)
	if length >= 0 {
		limit = min(length, limit)
	}
	f, err := e.store.spoolFrom(ctx, io.LimitReader(body, limit+1), e.tick)
	if err != nil {
		if _, ours := errors.AsType[spoolFault](err); ours || ctx.Err() != nil {
			return nil, zipFacts{}, fault(ctx, "download conversation "+id, err)
		}
		return nil, zipFacts{}, badCopy{err}
	}
	if length >= 0 && f.size != length {
		_ = f.Close()
		return nil, zipFacts{}, badCopy{box.Errorf(box.ClassUnknown, "%d bytes were announced and %d came before the end, or more than that", length, f.size)}
	}
	if f.size > maxZipBytes {
		_ = f.Close()
		return nil, zipFacts{}, badCopy{box.Errorf(box.ClassUnknown, "the zip does not end after %d GiB", maxZipBytes>>30)}
	}
	e.stage(StageCheck, id, -1)
	facts, err := checkZip(ctx, f.file, f.size, id, e.tick)
	if err == nil {
		return f, facts, nil
	}
	_ = f.Close()
	if bad, ok := errors.AsType[badZip](err); ok {
		return nil, zipFacts{}, badCopy{box.Errorf(box.ClassUnknown, "%w", bad)}
	}
	return nil, zipFacts{}, fault(ctx, "check conversation "+id, err)
}

type onceCloser struct {
	io.ReadCloser
	once sync.Once
	err  error
}

func (c *onceCloser) Close() error {
	c.once.Do(func() { c.err = c.ReadCloser.Close() })
	return c.err
}

// spooled is a download on disk, without a name.
type spooled struct {
	file *os.File
	size int64
	sum  string
}

func (f *spooled) Close() error { return f.file.Close() }

// spoolFault marks what the disk says, to tell it from what the server did.
type spoolFault struct{ err error }

func (s spoolFault) Error() string { return s.err.Error() }
func (s spoolFault) Unwrap() error { return s.err }

type spoolWriter struct{ file *os.File }

func (w spoolWriter) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	if err != nil {
		return n, spoolFault{fault(context.Background(), "write the spool file", bare(err))} //nolint:forbidigo // a Writer has no context
	}
	return n, nil
}

func (s *Store) spoolFrom(ctx context.Context, r io.Reader, tick func(int)) (*spooled, error) {
	file, err := s.newSpool()
	if err != nil {
		return nil, spoolFault{err}
	}
	h := sha256.New()
	f := &spooled{file: file}
	err = pour(ctx, io.MultiWriter(spoolWriter{file}, h), r, func(n int) {
		f.size += int64(n)
		if tick != nil {
			tick(n)
		}
	})
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	f.sum = hex.EncodeToString(h.Sum(nil))
	return f, nil
}

// spooledFile takes a file that was written here; it is not closed on an error.
func (s *Store) spooledFile(ctx context.Context, file *os.File, size int64) (*spooled, error) {
	h := sha256.New()
	if err := pour(ctx, h, io.NewSectionReader(file, 0, size), nil); err != nil {
		return nil, err
	}
	return &spooled{file: file, size: size, sum: hex.EncodeToString(h.Sum(nil))}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return fault(ctx, "wait before another try", ctx.Err())
	case <-t.C:
		return nil
	}
}
