package exports

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports/secretscan"
)

const (
	// maskRounds is how often a masked copy is looked through and masked again:
	// what stands behind a secret may be found only when that is gone.
	maskRounds = 4
	// maxSpans bounds what is remembered of one entry.
	maxSpans = 1_000_000
)

// mask writes a copy with every found value masked, also where no rule finds
// it, and looks through the copy. It has the same entries, and as many events.
func (e *exporter) mask(ctx context.Context, id string, f *spooled, found *objectScan, events int) (*spooled, error) {
	from := f
	for range maskRounds {
		next, err := e.maskOnce(ctx, id, from, &found.values)
		if from != f {
			_ = from.Close()
		}
		if err != nil {
			return nil, err
		}
		facts, err := checkZip(ctx, next.file, next.size, id, e.tick)
		if err == nil && facts.events != events {
			err = box.Errorf(box.ClassFailedPrecondition, "conversation %s has a secret in the name of an event, and masked it would not be one; it can be exported with the policy keep only", id)
		}
		if err != nil {
			_ = next.Close()
			return nil, err
		}
		again, err := e.scan.look(ctx, next, e.tick)
		if err != nil {
			_ = next.Close()
			return nil, err
		}
		if !again.mask {
			return next, nil
		}
		found.object.Findings += again.object.Masked
		found.object.Masked += again.object.Masked
		if err := found.values.AddAll(&again.values); err != nil {
			_ = next.Close()
			return nil, err
		}
		from = next
	}
	_ = from.Close()
	return nil, box.Errorf(box.ClassUnknown, "conversation %s still shows secrets after %d tries to mask them", id, maskRounds)
}

// maskOnce writes the copy. Entries in which nothing is masked are taken as they
// are packed.
func (e *exporter) maskOnce(ctx context.Context, id string, f *spooled, known *secretscan.Values) (_ *spooled, err error) {
	z, err := openZip(f.file, f.size)
	if err != nil {
		return nil, err
	}
	file, err := e.store.newSpool()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	dir, err := e.store.newSpool()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	w, err := newZipWriter(file, dir)
	if err != nil {
		return nil, err
	}
	m := entryMasker{exporter: e, ctx: ctx, id: id, zip: newUnpacker(z), out: w, known: known}
	m.stream = e.scan.scanner.Stream(e.scan.key, "", known, m.found)
	if err := z.walk(ctx, m.entry); err != nil {
		return nil, err
	}
	size, err := w.finish(ctx)
	if err != nil {
		return nil, err
	}
	return e.store.spooledFile(ctx, file, size)
}

type entryMasker struct {
	exporter *exporter
	ctx      context.Context //nolint:containedctx // lives for one call of maskOnce
	id       string
	zip      *unpacker
	out      *zipWriter
	known    *secretscan.Values
	stream   *secretscan.Stream
	spans    []secretscan.Span
	names    int
}

func (m *entryMasker) found(v secretscan.Found) {
	if v.Rule == "" || m.exporter.scan.policy.Masks(v.Promised) {
		m.spans = append(m.spans, secretscan.SpanOf(v))
	}
}

func (m *entryMasker) entry(e zipEntry) error {
	r, end, err := m.zip.open(e)
	if err != nil {
		return err
	}
	m.spans = m.spans[:0]
	m.stream.Reset(e.name)
	if err := pour(m.ctx, m.stream, r, m.exporter.tick); err != nil {
		return err
	}
	if err := m.stream.Close(); err != nil {
		return err
	}
	if len(m.spans) > maxSpans {
		return box.Errorf(box.ClassExhausted, "an entry of conversation %s holds more than %d secrets", m.id, maxSpans)
	}
	name := e.name
	if m.exporter.scan.policy.Masks(false) {
		e.name = m.name(name, &e)
	}
	packed := io.NewSectionReader(m.zip.zip.r, end-e.packed, e.packed)
	if len(m.spans) == 0 {
		return m.out.keep(m.ctx, e, packed)
	}
	return m.out.put(e, func(w io.Writer) error {
		old := e
		old.name = name
		r, _, err := m.zip.open(old)
		if err != nil {
			return err
		}
		return secretscan.MaskEntry(m.ctx, w, r, name, m.spans)
	})
}

// name masks an entry's name. A name that two entries would have then is told
// apart by a number; an event stays one. Where the whole entry is a secret by its
// name, all of it is masked.
func (m *entryMasker) name(name string, e *zipEntry) string {
	masked := m.exporter.scan.scanner.Name(m.exporter.scan.key, name, m.known, func(v secretscan.Found) {
		if v.File && e.size > 0 {
			m.spans = []secretscan.Span{{Start: 0, End: e.size}}
		}
	})
	if masked == name {
		return name
	}
	m.names++
	stem, suffix := masked, ""
	if i := strings.LastIndexByte(masked, '.'); i > strings.LastIndexByte(masked, '/') {
		stem, suffix = masked[:i], masked[i:]
	}
	if dir, ok := strings.CutSuffix(stem, "/"); ok {
		stem, suffix = dir, "/"
	}
	return fmt.Sprintf("%s-%d%s", stem, m.names, suffix)
}
