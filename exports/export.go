package exports

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/openhands/boxkeeper/box"
)

const (
	maxRounds     = 5 // listings that may differ before the history counts as busy
	downloadTries = 3
	retryPause    = 250 * time.Millisecond // times the number of tries so far
)

// Export copies a box's whole history and its workspace into the store, proves
// them by reading them back, and returns the receipt. It is safe to repeat after a crash at any
// point: with the same attempt, what is there and whole is not fetched again,
// and a finished export of the same history answers with its receipt.
//
// A conversation or a workspace that cannot be had whole is Unknown and named; a
// history that keeps changing is Conflict; a full disk is Exhausted. A source
// that cannot give a workspace at all is no error: the receipt says why. With any error there is
// no receipt, and nothing that was written is taken for an export.
func (s *Store) Export(ctx context.Context, req Request, src Source, progress func(Progress)) (box.Receipt, error) {
	if err := req.validate(); err != nil {
		return box.Receipt{}, err
	}
	e := &exporter{store: s, req: req, src: src, report: progress, known: map[string][]ConversationEntry{}}
	if e.report == nil {
		e.report = func(Progress) {}
	}
	var err error
	if e.scan, err = s.newScan(req); err != nil {
		return box.Receipt{}, err
	}
	receipt, err := e.run(ctx)
	if err != nil && ctx.Err() != nil {
		// Whatever broke first, the caller gave up: retrying is not for us to say.
		err = box.Errorf(faultClass(ctx, ctx.Err()), "export of workspace %s was interrupted: %w", req.Workspace, ctx.Err())
	}
	return receipt, err
}

func (r Request) validate() error {
	if err := box.ValidateWorkspace(r.Workspace); err != nil {
		return err
	}
	if err := validateEpoch(r.Epoch); err != nil {
		return err
	}
	if !attemptForm.MatchString(r.Attempt) {
		return box.Invalidf("attempt", "%.100q is not an attempt; use 1 to 80 of a-z, 0-9, \"-\" and \"_\"", r.Attempt)
	}
	if err := r.Secrets.Validate("secrets"); err != nil {
		return err
	}
	if !r.Previous.IsZero() && r.Previous.Workspace != r.Workspace {
		return box.Invalidf("previous", "is the receipt of workspace %q, not of %s", printable(r.Previous.Workspace), r.Workspace)
	}
	return nil
}

type exporter struct {
	store  *Store
	req    Request
	src    Source
	report func(Progress)
	prefix string // of the attempt that is being written
	// known holds copies of this epoch that manifests name, by conversation.
	known map[string][]ConversationEntry
	at    Progress
	scan  *scan
}

func (e *exporter) run(ctx context.Context) (box.Receipt, error) {
	list, err := e.list(ctx)
	if err != nil {
		return box.Receipt{}, err
	}
	if err := e.learnPrevious(ctx); err != nil {
		return box.Receipt{}, err
	}
	for n := 1; n <= maxAlternates; n++ {
		attempt := alternate(e.req.Attempt, n)
		e.prefix = attemptPrefix(e.req.Workspace, e.req.Epoch, attempt)
		receipt, taken, err := e.finished(ctx, list)
		if err != nil || !receipt.IsZero() {
			return receipt, err
		}
		if taken {
			continue // by an older state of the history
		}
		receipt, err = e.write(ctx, attempt, list)
		if box.ClassOf(err) != box.ClassAlreadyExists {
			return receipt, err
		}
		// Another runner of this attempt finished first: look at what it wrote.
		if receipt, _, err = e.finished(ctx, list); err != nil || !receipt.IsZero() {
			return receipt, err
		}
	}
	return box.Receipt{}, box.Errorf(box.ClassConflict, "attempt %s has too many exports that differ; use another attempt", e.req.Attempt)
}

// learnPrevious takes the copies of the previous export for candidates. An
// export that is lost or altered only costs the transfer.
func (e *exporter) learnPrevious(ctx context.Context) error {
	p := e.req.Previous
	if p.IsZero() || p.Epoch != e.req.Epoch {
		return nil
	}
	if workspace, epoch, _, ok := parseManifestKey(p.Key); !ok || workspace != e.req.Workspace || epoch != e.req.Epoch {
		return box.Invalidf("previous", "its key is not that of a manifest of workspace %s", e.req.Workspace)
	}
	m, sum, err := e.store.manifest(ctx, p.Key)
	if box.ClassOf(err) == box.ClassNotFound || damaged(err) || err == nil && sum != p.SHA256 {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	e.learn(m)
	return e.scan.learn(ctx, e.store, m)
}

func (e *exporter) learn(m Manifest) {
	for _, c := range m.Conversations {
		e.known[c.ID] = append(e.known[c.ID], c)
	}
}

// finished answers with the receipt when the attempt has a manifest for this
// very history and all of it is whole; taken says that it has another one.
func (e *exporter) finished(ctx context.Context, list []box.ConversationMark) (receipt box.Receipt, taken bool, err error) {
	key := manifestKey(e.prefix)
	m, sum, err := e.store.manifest(ctx, key)
	switch {
	case box.ClassOf(err) == box.ClassNotFound:
		return box.Receipt{}, false, nil
	case damaged(err):
		return box.Receipt{}, true, nil
	case err != nil:
		return box.Receipt{}, false, err
	case m.Digest == box.HistoryDigest(list):
		err := e.readBack(ctx, m.Conversations)
		if err == nil && m.Archive != nil {
			e.stage(StageReadBack, "", m.Archive.StoredBytes)
			err = e.store.proveArchive(ctx, m.Workspace, *m.Archive, func(string) error { return nil }, e.tick)
		}
		if err == nil {
			err = e.store.proveSecrets(ctx, m)
		}
		if err == nil {
			return m.receipt(key, sum), true, nil
		}
		if !damaged(err) {
			return box.Receipt{}, true, err
		}
	}
	e.learn(m)
	return box.Receipt{}, true, e.scan.learn(ctx, e.store, m)
}

// write exports into the attempt at e.prefix, which has no manifest.
func (e *exporter) write(ctx context.Context, attempt string, list []box.ConversationMark) (box.Receipt, error) {
	have, err := e.gather(ctx, list)
	if err != nil {
		return box.Receipt{}, err
	}
	entries := make([]ConversationEntry, 0, len(have))
	for _, id := range slices.Sorted(maps.Keys(have)) {
		entries = append(entries, have[id])
	}
	if !e.scan.refused() { // else it is not all there, and will be refused
		// Reused copies were read to the end when they were chosen.
		fresh := slices.DeleteFunc(slices.Clone(entries), func(c ConversationEntry) bool { return c.Reused })
		if err := e.readBack(ctx, fresh); err != nil {
			return box.Receipt{}, err
		}
	}
	work, err := e.archive(ctx)
	if err != nil {
		return box.Receipt{}, err
	}
	objects := objectIDs(entries)
	if work.object != nil {
		objects = append(objects, *work.object)
	}
	secrets, err := e.secretsReport(ctx, attempt, objects)
	if err != nil {
		return box.Receipt{}, err
	}
	m := Manifest{
		Version: ManifestVersion, Workspace: e.req.Workspace, Epoch: e.req.Epoch, Attempt: attempt,
		CreatedAt: e.store.now().UTC(), Tool: e.store.tool,
		Digest: box.HistoryDigest(marks(entries)), Totals: totals(entries), Conversations: entries, Secrets: secrets,
		Archive: work.archive, NoArchive: work.none, Withheld: work.withheld,
	}
	return e.seal(ctx, m)
}

// seal writes the manifest and reads it back, and looks once more for every
// object: only then there is a receipt.
func (e *exporter) seal(ctx context.Context, m Manifest) (box.Receipt, error) {
	key := manifestKey(e.prefix)
	data, err := m.encode()
	if err != nil {
		return box.Receipt{}, err
	}
	if len(data) > maxManifestBytes {
		return box.Receipt{}, box.Errorf(box.ClassExhausted, "the manifest of workspace %s is too large; its history cannot be exported by this version", m.Workspace)
	}
	e.stage(StageManifest, "", int64(len(data)))
	if err := e.store.put(ctx, key, "application/json", bytes.NewReader(data), nil); err != nil {
		return box.Receipt{}, err
	}
	got, err := e.store.small(ctx, key, maxManifestBytes)
	if box.ClassOf(err) == box.ClassNotFound || err == nil && !bytes.Equal(got, data) {
		return box.Receipt{}, box.Errorf(box.ClassUnknown, "the export store lost or altered manifest %s; check the store, then export again", key)
	}
	if err != nil {
		return box.Receipt{}, err
	}
	for _, c := range m.Conversations {
		attrs, err := e.store.bucket.Attributes(ctx, c.Key)
		if err != nil {
			if err = fault(ctx, "look for "+c.Key, err); box.ClassOf(err) != box.ClassNotFound {
				return box.Receipt{}, err
			}
		}
		if err != nil || attrs.Size != c.Bytes {
			return box.Receipt{}, lost(c)
		}
	}
	if m.Archive != nil {
		if err := e.store.lookForArchive(ctx, m.Workspace, *m.Archive); err != nil {
			return box.Receipt{}, err
		}
	}
	return m.receipt(key, sumOf(data)), nil
}

// gather fetches until two listings in a row agree with what was fetched.
func (e *exporter) gather(ctx context.Context, list []box.ConversationMark) (map[string]ConversationEntry, error) {
	have := map[string]ConversationEntry{}
	missing := "" // digest of the listing that first lacked a conversation
	for range maxRounds {
		e.at.Total = len(list)
		for i, mark := range list {
			e.at.Done = i
			if old, ok := have[mark.ID]; ok && old.Events == mark.Events {
				old.Gone = false
				have[mark.ID] = old
				continue
			}
			entry, ok, err := e.conversation(ctx, mark)
			if err != nil {
				return nil, err
			}
			if ok {
				have[mark.ID] = entry
			}
		}
		e.at.Done = len(list)
		again, err := e.list(ctx)
		if err != nil {
			return nil, err
		}
		if err := shrunk(have, again); err != nil {
			return nil, err
		}
		settled, gone := compare(have, again)
		digest := box.HistoryDigest(again)
		if settled && (len(gone) == 0 || missing == digest) {
			// Two listings agree that these are gone; what was copied stays.
			for _, id := range gone {
				entry := have[id]
				entry.Gone = true
				have[id] = entry
			}
			return have, nil
		}
		missing = digest
		list = again
	}
	return nil, box.Errorf(box.ClassConflict, "the history of workspace %s kept changing while it was exported; drain or suspend the box first", e.req.Workspace)
}

// shrunk refuses a server that counts fewer events than it gave us before:
// histories only grow, so one of its two answers is wrong.
func shrunk(have map[string]ConversationEntry, list []box.ConversationMark) error {
	for _, m := range list {
		if c, ok := have[m.ID]; ok && m.Events < c.Events {
			return box.Errorf(box.ClassUnknown, "conversation %s had %d events and now has %d by the server's count; look at the box before it is exported or deleted", m.ID, c.Events, m.Events)
		}
	}
	return nil
}

// compare reports whether every listed conversation was fetched as it is now,
// and which fetched ones are not listed any more.
func compare(have map[string]ConversationEntry, list []box.ConversationMark) (settled bool, gone []string) {
	listed := make(map[string]bool, len(list))
	settled = true
	for _, m := range list {
		listed[m.ID] = true
		if c, ok := have[m.ID]; !ok || c.Events != m.Events {
			settled = false
		}
	}
	for _, id := range slices.Sorted(maps.Keys(have)) {
		if !listed[id] {
			gone = append(gone, id)
		}
	}
	return settled, gone
}

// list asks the server for its conversations and refuses an answer that cannot
// be right.
func (e *exporter) list(ctx context.Context) ([]box.ConversationMark, error) {
	e.stage(StageList, "", -1)
	list, err := e.src.Conversations(ctx)
	if err != nil {
		return nil, sourceFault(ctx, "list the conversations of workspace "+e.req.Workspace, err)
	}
	if len(list) > maxConversations {
		return nil, box.Errorf(box.ClassExhausted, "the server lists %d conversations, this version exports at most %d", len(list), maxConversations)
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b box.ConversationMark) int { return cmp.Compare(a.ID, b.ID) })
	for i, m := range list {
		switch {
		case !conversationForm.MatchString(m.ID):
			return nil, box.Errorf(box.ClassUnknown, "the server lists a conversation whose id is not 32 lower-case hex digits; its history cannot be exported")
		case m.Events < 0:
			return nil, box.Errorf(box.ClassUnknown, "the server counts %d events in conversation %s", m.Events, m.ID)
		case i > 0 && list[i-1].ID == m.ID:
			return nil, box.Errorf(box.ClassUnknown, "the server lists conversation %s twice; list again before anything is exported", m.ID)
		}
	}
	return list, nil
}

// sourceFault keeps the class of what the server said where it tells the caller
// what to do; an absence is not taken for an answer.
func sourceFault(ctx context.Context, doing string, err error) error {
	class := box.ClassOf(err)
	switch {
	case ctx.Err() != nil:
		class = faultClass(ctx, err)
	case errors.Is(err, context.DeadlineExceeded):
		class = box.ClassDeadlineExceeded
	case class == box.ClassNotFound, class == box.ClassAlreadyExists, class == box.ClassInvalid, class == box.ClassCanceled:
		class = box.ClassUnknown
	}
	return &box.Error{Class: class, Message: doing, RetryAfter: retryAfter(err), Err: err}
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*box.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

func (e *exporter) stage(stage Stage, conversation string, size int64) {
	e.at.Stage, e.at.Conversation, e.at.Bytes, e.at.Size = stage, conversation, 0, size
	e.report(e.at)
}

func (e *exporter) tick(n int) {
	e.at.Bytes += int64(n)
	e.report(e.at)
}
