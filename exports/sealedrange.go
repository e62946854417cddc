package exports

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"filippo.io/age"
	"gocloud.dev/blob/driver"
)

// head is the beginning of an object, which says whether and how it is
// encrypted, with its last chunk once that was read. Objects never change, so
// it may be kept.
type head struct {
	key   string
	size  int64 // as stored
	bytes []byte
	// header is how long age's header is; zero for an object in the clear.
	header int
	attrs  driver.ReaderAttributes

	mu   sync.Mutex
	tail []byte
}

func (h *head) sealed() bool { return h.header > 0 }

// heads keeps the newest ones, of 68 KiB at most each.
type heads struct {
	mu   sync.Mutex
	kept []*head
}

const headsMost = 32

func (h *heads) find(key string) *head {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, one := range h.kept {
		if one.key == key {
			h.kept = append(slices.Delete(h.kept, i, i+1), one)
			return one
		}
	}
	return nil
}

func (h *heads) keep(one *head) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept = append(h.kept, one); len(h.kept) > headsMost {
		h.kept = slices.Delete(h.kept, 0, 1)
	}
}

func (h *heads) forget(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = slices.DeleteFunc(h.kept, func(one *head) bool { return one.key == key })
}

// head reads the beginning of an object, or remembers it.
func (b *sealed) head(ctx context.Context, key string) (*head, error) {
	if known := b.heads.find(key); known != nil {
		return known, nil
	}
	for size := int64(sealedHead); ; size = sealedMost {
		h, whole, err := b.readHead(ctx, key, size)
		if err != nil {
			return nil, err
		}
		if whole {
			b.heads.keep(h)
			return h, nil
		}
		if size == sealedMost {
			return nil, sealedFault(key, nil, errLongHeader)
		}
	}
}

// readHead reads so much of an object; whole says that it was enough.
func (b *sealed) readHead(ctx context.Context, key string, size int64) (h *head, whole bool, err error) {
	r, err := b.layer.NewRangeReader(ctx, key, 0, size, nil)
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	h = &head{key: key, attrs: *r.Attributes(), size: r.Attributes().Size}
	if h.bytes, err = io.ReadAll(io.LimitReader(r, size)); err != nil {
		return nil, false, err
	}
	if !bytes.HasPrefix(h.bytes, []byte(sealedMark)) {
		h.bytes = nil
		return h, true, nil
	}
	header, err := sealedHeader(bufio.NewReader(bytes.NewReader(h.bytes)))
	if errors.Is(err, io.EOF) && int64(len(h.bytes)) < h.size {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, sealedFault(key, nil, err)
	}
	h.header = len(header)
	h.attrs.Size = plainSize(h.size, h.header)
	return h, true, nil
}

func (b *sealed) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	a, err := b.layer.Attributes(ctx, key)
	if err != nil || len(b.keys.identities) == 0 {
		return a, err
	}
	h, err := b.head(ctx, key)
	if err != nil {
		return nil, err
	}
	if h.sealed() {
		a.Size = plainSize(a.Size, h.header)
		a.MD5 = nil // of other bytes than the reader's
	}
	return a, nil
}

func (b *sealed) Delete(ctx context.Context, key string) error {
	b.heads.forget(key)
	return b.layer.Delete(ctx, key)
}

// part reads some bytes of an encrypted object: one request for the chunks that
// they are in, after those for its head and its last chunk, which proves its
// length.
func (b *sealed) part(ctx context.Context, key string, h *head, offset, length int64) (driver.Reader, error) {
	plain := h.attrs.Size
	end := plain
	if length >= 0 && length < plain-offset {
		end = offset + length
	}
	offset = min(offset, plain)
	if len(b.keys.identities) == 0 {
		return nil, sealedFault(key, nil, errNoIdentity)
	}
	s := &sealedSource{ctx: ctx, bucket: b, head: h}
	if end > offset {
		first, last := offset/sealedChunk, (end-1)/sealedChunk
		s.from = int64(h.header) + sealedNonce + first*(sealedChunk+sealedTag)
		s.until = min(int64(h.header)+sealedNonce+(last+1)*(sealedChunk+sealedTag), h.size)
	}
	if err := s.readTail(); err != nil {
		return nil, err
	}
	at, size, err := age.DecryptReaderAt(s, h.size, b.keys.opening()...)
	if err == nil && size != plain {
		err = errLongHeader
	}
	if err != nil {
		_ = s.Close()
		b.heads.forget(key) // it may have been another object's
		return nil, sealedFault(key, s.said, err)
	}
	// Each read of age's takes a buffer for a whole chunk.
	plainText := bufio.NewReaderSize(io.NewSectionReader(at, offset, max(end-offset, 0)), sealedChunk)
	return &sealedPart{Reader: plainText, source: s, key: key}, nil
}

type sealedPart struct {
	*bufio.Reader
	source *sealedSource
	key    string
}

func (r *sealedPart) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.source.bucket.heads.forget(r.key)
		err = sealedFault(r.key, r.source.said, err)
	}
	return n, err
}

func (r *sealedPart) Close() error                         { return r.source.Close() }
func (r *sealedPart) Attributes() *driver.ReaderAttributes { return &r.source.head.attrs }
func (*sealedPart) As(any) bool                            { return false }

// sealedSource gives the encrypted bytes of one object: its head and its last
// chunk from memory, and what is between from one request, in order.
type sealedSource struct {
	ctx         context.Context //nolint:containedctx // io.ReaderAt is handed none
	bucket      *sealed
	head        *head
	from, until int64 // what the one request is for
	stream      driver.Reader
	said        error // by the store
}

// readTail reads the last chunk of an object, unless it was read before.
func (s *sealedSource) readTail() error {
	h := s.head
	h.mu.Lock()
	defer h.mu.Unlock()
	payload := h.size - int64(h.header) - sealedNonce
	if payload <= 0 || h.tail != nil {
		return nil // of a payload that is none age says what that is
	}
	last := (payload - 1) / (sealedChunk + sealedTag) * (sealedChunk + sealedTag)
	start := max(int64(h.header)+sealedNonce+last, int64(len(h.bytes)))
	if start == h.size {
		return nil // all of a small one is there
	}
	r, err := s.bucket.layer.NewRangeReader(s.ctx, h.key, start, h.size-start, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	tail, err := io.ReadAll(io.LimitReader(r, h.size-start))
	if err == nil && int64(len(tail)) < h.size-start {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		h.tail = tail
	}
	return err
}

// ReadAt reads the encrypted bytes of one place.
func (s *sealedSource) ReadAt(p []byte, off int64) (n int, err error) {
	h := s.head
	tail := h.size - int64(len(h.tail))
	for n < len(p) {
		at := off + int64(n)
		switch {
		case at >= h.size:
			return n, io.EOF
		case at < int64(len(h.bytes)):
			n += copy(p[n:], h.bytes[at:])
		case at >= tail:
			n += copy(p[n:], h.tail[at-tail:])
		default:
			k, err := s.between(p[n:min(int64(len(p)), int64(n)+tail-at)], at)
			n += k
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// between reads what is neither in the head nor in the last chunk. Decryption
// reads in order, so what it skips never has to be read again.
func (s *sealedSource) between(p []byte, at int64) (int, error) {
	if s.stream == nil {
		end := max(s.until, at+int64(len(p)))
		r, err := s.bucket.layer.NewRangeReader(s.ctx, s.head.key, at, end-at, nil)
		if err != nil {
			s.said = err
			return 0, err
		}
		s.stream, s.from = r, at
	}
	if at != s.from {
		_ = s.stream.Close()
		s.stream = nil
		return s.between(p, at)
	}
	n, err := io.ReadFull(s.stream, p)
	s.from += int64(n)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.ErrUnexpectedEOF // shorter than it was said to be
		}
		s.said = err
	}
	return n, err
}

func (s *sealedSource) Close() error {
	if s.stream == nil {
		return nil
	}
	return s.stream.Close()
}
