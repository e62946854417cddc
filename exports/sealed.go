package exports

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"filippo.io/age"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"

	"github.com/openhands/boxkeeper/box"
)

// Keys encrypt what is written and open what is read. The zero value writes in
// the clear, and reads what is in the clear.
type Keys struct {
	recipients []age.Recipient
	identities []age.Identity
}

// ParseKeys reads age keys: public ones ("age1...") to write for, and secret
// ones ("AGE-SECRET-KEY-1...", as in an identity file, comments allowed) to read
// with. Who writes must be able to read: every object is read back. Invalid: a
// key is of a wrong form, or none of the identities opens what is written for
// the recipients. The error never repeats an identity.
func ParseKeys(recipients []string, identities []box.Secret) (Keys, error) {
	var k Keys
	for i, text := range recipients {
		parsed, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil || len(parsed) != 1 {
			return Keys{}, box.Invalidf("encryption.recipients", "number %d is not the public key of age, which begins with age1", i+1)
		}
		k.recipients = append(k.recipients, parsed...)
	}
	for i, secret := range identities {
		parsed, err := age.ParseIdentities(strings.NewReader(secret.Reveal()))
		if err != nil {
			return Keys{}, box.Invalidf("encryption.identities", "number %d does not lead to a secret key of age, which begins with AGE-SECRET-KEY-", i+1)
		}
		k.identities = append(k.identities, parsed...)
	}
	if len(k.recipients) == 0 {
		return k, nil
	}
	if len(k.identities) == 0 {
		return Keys{}, box.Invalidf("encryption.identities", "is needed with encryption.recipients: what is written is read back before it counts")
	}
	var probe bytes.Buffer
	w, err := age.Encrypt(&probe, k.recipients...)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return Keys{}, box.Invalidf("encryption.recipients", "cannot be used together: %v", err)
	}
	if _, err := age.Decrypt(&probe, k.opening()...); err != nil {
		return Keys{}, box.Invalidf("encryption.identities", "none of them opens what is written for encryption.recipients; add the identity of one of these")
	}
	return k, nil
}

// opening returns the identities in a slice of the caller's own: age sorts the
// one that it is given.
func (k Keys) opening() []age.Identity { return slices.Clone(k.identities) }

const (
	// sealedMark begins every object that is encrypted. Nothing that this
	// program writes in the clear begins so.
	sealedMark = "age-encryption.org/v1\n"
	sealedHead = 4 << 10  // read first; holds the header for some recipients
	sealedMost = 64 << 10 // of a header
	// The layout of an encrypted payload is part of age's format, version 1: a
	// nonce, then chunks of 64 KiB, each with a tag.
	sealedNonce = 16
	sealedChunk = 64 << 10
	sealedTag   = 16
)

// sealed is a bucket whose objects are encrypted, with the same keys, under the
// same names. What is in the clear is read as it is. Sizes in lists are those of
// the encrypted objects.
type sealed struct {
	layer
	keys Keys
	// heads are the beginnings of objects that were read by range.
	heads heads
}

// seal puts the keys over a bucket. Without keys it tells what it cannot read
// from what is damaged.
func seal(under *blob.Bucket, keys Keys) *blob.Bucket {
	return blob.NewBucket(&sealed{layer: layer{under}, keys: keys})
}

func (b *sealed) NewTypedWriter(ctx context.Context, key, contentType string, opts *driver.WriterOptions) (driver.Writer, error) {
	if len(b.keys.recipients) == 0 {
		return b.layer.NewTypedWriter(ctx, key, contentType, opts)
	}
	ctx, cancel := context.WithCancel(ctx)
	under, err := b.layer.NewTypedWriter(ctx, key, contentType, opts)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &sealedWriter{ctx: ctx, cancel: cancel, under: under}
	if w.age, err = age.Encrypt(under, b.keys.recipients...); err != nil {
		cancel()
		_ = under.Close() // gives it up
		return nil, err
	}
	return w, nil
}

type sealedWriter struct {
	ctx    context.Context //nolint:containedctx // the driver interface hands Close none
	cancel context.CancelFunc
	under  driver.Writer
	age    io.WriteCloser
	failed error
}

func (w *sealedWriter) Write(p []byte) (int, error) {
	n, err := w.age.Write(p)
	if err != nil {
		w.failed = err
	}
	return n, err
}

// Close ends the object only if all of it was encrypted: a cut one would be
// there under its name.
func (w *sealedWriter) Close() error {
	defer w.cancel()
	err := w.failed
	if err == nil {
		err = w.ctx.Err()
	}
	if err == nil {
		err = w.age.Close()
	}
	if err != nil {
		w.cancel()
		_ = w.under.Close()
		return err
	}
	return w.under.Close()
}

func (b *sealed) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	if offset == 0 && length < 0 {
		return b.whole(ctx, key, opts)
	}
	head, err := b.head(ctx, key)
	if err != nil {
		return nil, err
	}
	if !head.sealed() {
		return b.layer.NewRangeReader(ctx, key, offset, length, opts)
	}
	return b.part(ctx, key, head, offset, length)
}

// whole reads an object from its beginning to its end, in one request.
func (b *sealed) whole(ctx context.Context, key string, opts *driver.ReaderOptions) (driver.Reader, error) {
	under, err := b.layer.NewRangeReader(ctx, key, 0, -1, opts)
	if err != nil {
		return nil, err
	}
	source := &remembering{Reader: under}
	r := &sealedReader{under: under, key: key, source: source, attrs: *under.Attributes()}
	buffered := bufio.NewReaderSize(source, sealedHead)
	first, err := buffered.Peek(len(sealedMark))
	if err != nil && source.err != nil && !errors.Is(source.err, io.EOF) {
		_ = under.Close()
		return nil, source.err
	}
	if string(first) != sealedMark {
		r.plain = buffered
		return r, nil
	}
	header, err := sealedHeader(buffered)
	if err == nil && len(b.keys.identities) == 0 {
		err = errNoIdentity
	}
	if err == nil {
		r.plain, err = age.Decrypt(io.MultiReader(bytes.NewReader(header), buffered), b.keys.opening()...)
	}
	if err != nil {
		_ = under.Close()
		return nil, sealedFault(key, source.err, err)
	}
	r.attrs.Size = plainSize(r.attrs.Size, len(header))
	return r, nil
}

// sealedHeader reads to the end of a header, which is the line of its sum.
func sealedHeader(r *bufio.Reader) ([]byte, error) {
	var header []byte
	for {
		line, err := r.ReadSlice('\n')
		header = append(header, line...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(header) > sealedMost {
			return nil, errLongHeader
		}
		if bytes.HasPrefix(line, []byte("---")) {
			return header, nil
		}
	}
}

var (
	errLongHeader = errors.New("its header does not end")
	errNoIdentity = errors.New("there is no identity")
)

// plainSize is the length of what an encrypted object holds.
func plainSize(size int64, header int) int64 {
	payload := size - int64(header) - sealedNonce
	chunks := (payload + sealedChunk + sealedTag - 1) / (sealedChunk + sealedTag)
	return max(payload-chunks*sealedTag, 0)
}

type sealedReader struct {
	under  driver.Reader
	source *remembering
	plain  io.Reader
	key    string
	attrs  driver.ReaderAttributes
}

func (r *sealedReader) Read(p []byte) (int, error) {
	n, err := r.plain.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = sealedFault(r.key, r.source.err, err)
	}
	return n, err
}

func (r *sealedReader) Close() error                         { return r.under.Close() }
func (r *sealedReader) Attributes() *driver.ReaderAttributes { return &r.attrs }
func (*sealedReader) As(any) bool                            { return false }

// remembering keeps what the store said, to tell it from what decryption says.
type remembering struct {
	io.Reader
	err error
}

func (r *remembering) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.err = err
	}
	return n, err
}

// sealedFault says why an object could not be opened: a store that fails, a key
// that is not ours, or bytes that were altered. The wrong key is never "lost".
func sealedFault(key string, said, err error) error {
	switch {
	case said != nil && !errors.Is(said, io.EOF):
		return said
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other {
		return denial{box.ClassUnauthorized, key + " is encrypted for another key; add the identity that opens it to encryption.identities: it is not lost"}
	}
	if errors.Is(err, errNoIdentity) {
		return denial{box.ClassUnauthorized, key + " is encrypted, and there is no identity to open it; name one in encryption.identities: it is not lost"}
	}
	return denial{box.ClassUnknown, key + " is encrypted, and was altered or cut in the store"}
}
