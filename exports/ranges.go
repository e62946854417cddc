package exports

import (
	"context"
	"errors"
	"io"

	"github.com/openhands/boxkeeper/box"
)

const (
	// blockSize is what a look at a random place costs.
	blockSize = 32 << 10
	// maxBlocks bounds what one open object keeps: 4 MiB.
	maxBlocks = 128
	// maxRun is the longest read ahead: 1 MiB in one request.
	maxRun = 32
)

// ranges reads an object in parts and keeps the blocks that were used last.
// What is read in order, in several places at once too, is read ahead, each
// time twice as far. It is for one goroutine at a time.
type ranges struct {
	store  *Store
	key    string
	size   int64
	blocks map[int64]*block
	clock  int64
}

type block struct {
	data []byte
	run  int   // how many blocks were fetched with it
	used int64 // on the clock of ranges
}

func (s *Store) ranges(key string, size int64) *ranges {
	return &ranges{store: s, key: key, size: size, blocks: map[int64]*block{}}
}

// with returns the object as it is read under one context.
func (r *ranges) with(ctx context.Context) io.ReaderAt { return rangesUnder{r, ctx} }

type rangesUnder struct {
	*ranges
	ctx context.Context //nolint:containedctx // an io.ReaderAt has no context of its own; this one lives for one call
}

// ReadAt answers with a classified error, or io.EOF at the end. Unknown means
// that the object is lost, or shorter than it was.
func (r rangesUnder) ReadAt(p []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, errors.New("read before the start of an object")
	}
	for n < len(p) {
		if at+int64(n) >= r.size {
			return n, io.EOF
		}
		data, err := r.block(r.ctx, (at+int64(n))/blockSize)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], data[(at+int64(n))%blockSize:])
	}
	return n, nil
}

func (r *ranges) block(ctx context.Context, number int64) ([]byte, error) {
	r.clock++
	if b := r.blocks[number]; b != nil {
		b.used = r.clock
		return b.data, nil
	}
	run := 1
	if before := r.blocks[number-1]; before != nil {
		run = min(2*before.run, maxRun)
	}
	for k := range run {
		if at := (number + int64(k)) * blockSize; k > 0 && (at >= r.size || r.blocks[number+int64(k)] != nil) {
			run = k
			break
		}
	}
	if err := r.fetch(ctx, number, run); err != nil {
		return nil, err
	}
	return r.blocks[number].data, nil
}

// fetch reads blocks that follow one another, in one request.
func (r *ranges) fetch(ctx context.Context, number int64, run int) error {
	offset := number * blockSize
	length := min(int64(run)*blockSize, r.size-offset)
	body, err := r.store.bucket.NewRangeReader(ctx, r.key, offset, length, nil)
	if err != nil {
		return r.fault(ctx, err)
	}
	defer body.Close() //nolint:errcheck // nothing is written
	for k := range run {
		data := r.room()[:min(blockSize, length-int64(k)*blockSize)]
		if _, err := io.ReadFull(body, data); err != nil {
			return r.fault(ctx, err)
		}
		r.blocks[number+int64(k)] = &block{data: data, run: run, used: r.clock}
	}
	return nil
}

// room returns memory for a block: that of the one that was not used for the
// longest time, when there are enough.
func (r *ranges) room() []byte {
	if len(r.blocks) < maxBlocks {
		return make([]byte, blockSize)
	}
	oldest, found := int64(0), (*block)(nil)
	for number, b := range r.blocks {
		if found == nil || b.used < found.used || b.used == found.used && number < oldest {
			oldest, found = number, b
		}
	}
	delete(r.blocks, oldest)
	return found.data[:blockSize]
}

func (r *ranges) fault(ctx context.Context, err error) error {
	if ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		return box.Errorf(box.ClassUnknown, "the export store lost or altered %s: it ends too early", r.key)
	}
	err = fault(ctx, "read "+r.key, err)
	if box.ClassOf(err) == box.ClassNotFound {
		return box.Errorf(box.ClassUnknown, "the export store has lost %s", r.key)
	}
	return err
}
