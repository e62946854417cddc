package exports

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/restic/chunker"

	"github.com/openhands/boxkeeper/box"
)

// How a tar is cut. These never change: other cuts are other chunks, and
// nothing of what is there would be found again.
const (
	polynomial  = chunker.Pol(0x3DA3358B4DC173)
	averageBits = 21 // beyond the least: a chunk has 4 MiB on average
	minChunk    = 2 << 20
	maxChunk    = 8 << 20
)

// What bounds an archive, and with it the memory for the table of its chunks.
const (
	maxTarBytes = 1 << 40
	maxChunks   = 1 << 18
)

// maxStoredChunk is the most that a chunk takes in the store: compression may
// add a little.
const maxStoredChunk = maxChunk + maxChunk/64

// chunkWindow is how far back a chunk's compression looks, and so what a reader
// needs to remember.
const chunkWindow = 1 << 20

// chunk is one piece of a tar, and where the store has it.
type chunk struct {
	sum    [sha256.Size]byte // of its bytes, not of the object
	bytes  int32
	stored int32
	copy   int32 // of the object's name: 1, or more when one before it is damaged
	fresh  bool  // written by this run, so it must be read back
}

func (c chunk) name() string { return hex.EncodeToString(c.sum[:]) }

// cutter cuts what is written to it where its content says, so that a change
// moves no cut that is far from it, and hands out each chunk. It does so in a
// goroutine of its own, which ends with Close.
type cutter struct {
	in   *io.PipeWriter
	done chan struct{}
	size int64
	sum  hash.Hash // of all
	// err is why the goroutine gave up; to be read after Close.
	err error
}

// newCutter starts one. keep must not hold on to what it gets; an error of it
// ends everything.
func newCutter(keep func(data []byte) error) *cutter {
	out, in := io.Pipe()
	c := &cutter{in: in, done: make(chan struct{}), sum: sha256.New()}
	go func() {
		defer close(c.done)
		c.err = cutChunks(out, keep)
		_ = out.CloseWithError(c.err) // never fails; documented
	}()
	return c
}

func cutChunks(from io.Reader, keep func(data []byte) error) error {
	base := chunker.NewWithBoundaries(from, polynomial, minChunk, maxChunk)
	base.SetAverageBits(averageBits)
	buf := make([]byte, maxChunk)
	for {
		one, err := base.Next(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := keep(one.Data); err != nil {
			return err
		}
	}
}

// Write takes the next bytes. Its error is that of keep, or says that there are
// too many.
func (c *cutter) Write(p []byte) (int, error) {
	if c.size += int64(len(p)); c.size > maxTarBytes {
		return 0, box.Errorf(box.ClassExhausted, "the workspace has more than %d GiB; this version exports no more", maxTarBytes>>30)
	}
	_, _ = c.sum.Write(p) // never fails; documented
	return c.in.Write(p)
}

// Close hands out the last chunk, and returns when all were kept.
func (c *cutter) Close() error {
	_ = c.in.Close() // never fails; documented
	<-c.done
	return c.err
}

// Abort ends it without, when there is no more to come. It returns what keep
// said, if that was first.
func (c *cutter) Abort() error {
	// Not the cause: the chunker takes some errors for an end, and waits for it.
	_ = c.in.CloseWithError(errAborted) // never fails; documented
	<-c.done
	if errors.Is(c.err, errAborted) {
		return nil
	}
	return c.err
}

var errAborted = errors.New("given up")

// chunkKeeper puts chunks into the store. It is used by one goroutine.
type chunkKeeper struct {
	store     *Store
	workspace string
	chunks    []chunk
	at        map[[sha256.Size]byte]int32 // of each different one, in chunks
	zip       *zstd.Encoder
	// packed holds the chunk in hand, compressed, when packedBytes is not 0. It is a
	// spool file: in memory it would be as large as the chunk again.
	packed      *os.File
	packedBytes int64
	read        *chunkReader
	stored      int64 // of the different ones
}

func newChunkKeeper(s *Store, workspace string) (*chunkKeeper, error) {
	zip, err := newPacker()
	if err != nil {
		return nil, err
	}
	packed, err := s.newSpool()
	if err != nil {
		return nil, err
	}
	return &chunkKeeper{store: s, workspace: workspace, at: map[[sha256.Size]byte]int32{}, zip: zip, packed: packed, read: newChunkReader(s, workspace)}, nil
}

func (k *chunkKeeper) close() {
	k.read.close()
	_ = k.packed.Close() // it has no name any more
}

// pack compresses a chunk.
func (k *chunkKeeper) pack(data []byte) (err error) {
	if _, err := k.packed.Seek(0, io.SeekStart); err != nil {
		return fault(context.Background(), "write the spool file", bare(err)) //nolint:forbidigo // a file on this machine, which no context ends
	}
	k.zip.Reset(spoolWriter{k.packed})
	if _, err = k.zip.Write(data); err == nil {
		err = k.zip.Close()
	}
	if err != nil {
		return err
	}
	if k.packedBytes, err = k.packed.Seek(0, io.SeekCurrent); err != nil {
		return fault(context.Background(), "write the spool file", bare(err)) //nolint:forbidigo // as above
	}
	return nil
}

func newPacker() (*zstd.Encoder, error) {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(chunkWindow), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "start to compress: %w", err)
	}
	return zip, nil
}

// keep makes sure that the store has a chunk: one that is there and whole is
// read, not written again.
func (k *chunkKeeper) keep(ctx context.Context, data []byte) error {
	c := chunk{sum: sha256.Sum256(data), bytes: int32(len(data)), copy: 1} //nolint:gosec // at most maxChunk
	if len(k.chunks) == maxChunks {
		return box.Errorf(box.ClassExhausted, "the workspace is cut into more than %d chunks; this version exports no more", maxChunks)
	}
	if i, ok := k.at[c.sum]; ok {
		again := k.chunks[i]
		again.fresh = false
		k.chunks = append(k.chunks, again)
		return nil
	}
	k.packedBytes = 0
	for ; c.copy <= maxAlternates; c.copy++ {
		done, err := k.try(ctx, &c, data)
		if err != nil {
			return err
		}
		if done {
			k.at[c.sum] = int32(len(k.chunks)) //nolint:gosec // less than maxChunks
			k.chunks = append(k.chunks, c)
			k.stored += int64(c.stored)
			return nil
		}
	}
	return box.Errorf(box.ClassConflict, "the store holds %d damaged copies of one chunk of workspace %s; check the store", maxAlternates, k.workspace)
}

// try uses one name for a chunk; false means that something else is there.
func (k *chunkKeeper) try(ctx context.Context, c *chunk, data []byte) (done bool, err error) {
	key := chunkKey(k.workspace, c.name(), int(c.copy))
	for range 2 {
		c.stored, err = k.read.prove(ctx, *c, nil)
		switch {
		case err == nil:
			return true, nil
		case damaged(err):
			return false, nil
		case box.ClassOf(err) != box.ClassNotFound:
			return false, err
		}
		if k.packedBytes == 0 {
			if err := k.pack(data); err != nil {
				return false, err
			}
		}
		err = k.store.put(ctx, key, "application/zstd", io.NewSectionReader(k.packed, 0, k.packedBytes), nil)
		if err == nil {
			c.stored, c.fresh = int32(k.packedBytes), true //nolint:gosec // little more than maxChunk
			return true, nil
		}
		if box.ClassOf(err) != box.ClassAlreadyExists {
			return false, err
		}
		// Taken meanwhile, by another runner or by our own lost answer: look again.
	}
	return false, box.Errorf(box.ClassUnknown, "the export store says that %s is there, and does not give it; check the store", key)
}

// readBack reads what this run wrote.
func (k *chunkKeeper) readBack(ctx context.Context, tick func(int)) error {
	for _, c := range k.chunks {
		if !c.fresh {
			continue
		}
		stored, err := k.read.prove(ctx, c, tick)
		if box.ClassOf(err) == box.ClassNotFound || damaged(err) || err == nil && stored != c.stored {
			return lostChunk(k.workspace, c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func lostChunk(workspace string, c chunk) error {
	return lostObject(chunkKey(workspace, c.name(), int(c.copy)))
}

// chunkReader reads chunks and proves each. It is used by one goroutine.
type chunkReader struct {
	store     *Store
	workspace string
	zip       *zstd.Decoder
	buf       []byte // of the copying: there are many chunks
}

func newChunkReader(s *Store, workspace string) *chunkReader {
	return &chunkReader{store: s, workspace: workspace, buf: make([]byte, copyBufferSize)}
}

func (r *chunkReader) close() {
	if r.zip != nil {
		r.zip.Close()
	}
}

// prove reads a chunk of the store to its end and compares it with its name.
// NotFound: there is none. Unknown: it is not whole. stored is the object's
// length.
func (r *chunkReader) prove(ctx context.Context, c chunk, tick func(int)) (stored int32, err error) {
	h := sha256.New()
	stored, n, err := r.pour(ctx, c, h, tick)
	if err != nil {
		return 0, err
	}
	if n != int64(c.bytes) || [sha256.Size]byte(h.Sum(nil)) != c.sum {
		return 0, lostChunk(r.workspace, c)
	}
	return stored, nil
}

// get appends a chunk to buf, proven.
func (r *chunkReader) get(ctx context.Context, c chunk, buf []byte) ([]byte, error) {
	out := bytes.NewBuffer(buf)
	before := out.Len()
	_, _, err := r.pour(ctx, c, out, nil)
	if box.ClassOf(err) == box.ClassNotFound || err == nil && sha256.Sum256(out.Bytes()[before:]) != c.sum {
		return nil, lostChunk(r.workspace, c)
	}
	return out.Bytes(), err
}

// pour unpacks a chunk; no more than its own length of it is taken.
func (r *chunkReader) pour(ctx context.Context, c chunk, w io.Writer, tick func(int)) (stored int32, n int64, err error) {
	key := chunkKey(r.workspace, c.name(), int(c.copy))
	object, err := r.store.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return 0, 0, fault(ctx, "read "+key, err)
	}
	defer object.Close() //nolint:errcheck // nothing is written
	if object.Size() > maxStoredChunk {
		return 0, 0, lostChunk(r.workspace, c)
	}
	source := &remember{from: io.LimitReader(object, maxStoredChunk+1)}
	if r.zip == nil {
		r.zip, err = zstd.NewReader(source, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxChunk), zstd.WithDecoderLowmem(true))
	} else {
		err = r.zip.Reset(source)
	}
	if err == nil {
		err = pourWith(ctx, w, io.LimitReader(r.zip, int64(c.bytes)+1), func(k int) {
			n += int64(k)
			if tick != nil {
				tick(k)
			}
		}, r.buf)
	}
	switch {
	case source.err != nil:
		return 0, 0, fault(ctx, "read "+key, source.err)
	case ctx.Err() != nil:
		return 0, 0, fault(ctx, "read "+key, ctx.Err())
	case err != nil:
		return 0, 0, lostChunk(r.workspace, c)
	}
	return int32(source.n), n, nil //nolint:gosec // at most maxStoredChunk
}

// remember keeps an error of a source, which says more than what it breaks, and
// counts.
type remember struct {
	from io.Reader
	n    int64
	err  error
}

func (r *remember) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
