package exports

import (
	"bytes"
	"context"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// index reads the index of an archive, frame by frame, each proven against the
// directory, and that against the manifest. It is used by one goroutine.
type index struct {
	store     *Store
	workspace string
	archive   WorkspaceArchive
	directory indexDirectory
	zip       *zstd.Decoder
	// The frame in hand, and what it holds unpacked.
	at     int
	text   []byte
	listAt int
	list   []chunk // of the frame at listAt
}

// openIndex reads the directory only. Unknown: it is lost or altered.
func (s *Store) openIndex(ctx context.Context, workspace string, a WorkspaceArchive) (*index, error) {
	zip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxDirectory), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "start to decompress: %w", err)
	}
	x := &index{store: s, workspace: workspace, archive: a, zip: zip, at: -1, listAt: -1}
	// A part of an object that is too short is an error of many kinds.
	attrs, err := s.bucket.Attributes(ctx, a.Index.Key)
	if err != nil {
		if err = fault(ctx, "look for "+a.Index.Key, err); box.ClassOf(err) == box.ClassNotFound {
			err = lostObject(a.Index.Key)
		}
		return nil, err
	}
	if attrs.Size != a.Index.Bytes {
		return nil, lostObject(a.Index.Key)
	}
	text, err := x.frame(ctx, a.Index.Bytes-a.Index.DirectoryBytes, a.Index.DirectoryBytes, a.Index.DirectorySHA256, nil)
	if err != nil {
		return nil, err
	}
	if x.directory, err = decodeDirectory(text, a); err != nil {
		return nil, x.damaged(err)
	}
	return x, nil
}

// cursor is another reader of the same index, for while one is in use.
func (x *index) cursor() *index {
	return &index{store: x.store, workspace: x.workspace, archive: x.archive, directory: x.directory, zip: x.zip, at: -1, listAt: -1}
}

func (x *index) damaged(err error) error {
	return box.Errorf(box.ClassUnknown, "%s cannot be trusted: %w", x.archive.Index.Key, err)
}

// frame reads one, proves it and unpacks it into buf.
func (x *index) frame(ctx context.Context, at, size int64, sum string, buf []byte) ([]byte, error) {
	packed, err := x.store.ranged(ctx, x.archive.Index.Key, at, size)
	if box.ClassOf(err) == box.ClassNotFound {
		return nil, lostObject(x.archive.Index.Key)
	}
	if err != nil {
		return nil, err
	}
	if int64(len(packed)) != size || sumOf(packed) != sum {
		return nil, lostObject(x.archive.Index.Key)
	}
	text, err := x.zip.DecodeAll(packed, buf[:0])
	if err != nil {
		return nil, x.damaged(err)
	}
	return text, nil
}

// piece returns the lines of one frame, until the next call.
func (x *index) piece(ctx context.Context, i int) ([]byte, error) {
	if x.at == i {
		return x.text, nil
	}
	p := x.directory.Pieces[i]
	x.at = -1
	text, err := x.frame(ctx, p.At, p.Bytes, p.SHA256, x.text)
	if err != nil {
		return nil, err
	}
	x.at, x.text = i, text
	return text, nil
}

// eachChunk goes through the chunks of the tar in order.
func (x *index) eachChunk(ctx context.Context, do func(chunk) error) error {
	total := int64(0)
	for i, p := range x.directory.Pieces {
		if p.Kind != pieceChunks {
			continue
		}
		list, err := x.chunks(ctx, i)
		if err != nil {
			return err
		}
		if p.Offset != total {
			return x.damaged(errGap)
		}
		for _, c := range list {
			if err := do(c); err != nil {
				return err
			}
			total += int64(c.bytes)
		}
	}
	if total != x.archive.Bytes {
		return x.damaged(errGap)
	}
	return nil
}

func (x *index) chunks(ctx context.Context, i int) ([]chunk, error) {
	if x.listAt == i {
		return x.list, nil
	}
	text, err := x.piece(ctx, i)
	if err != nil {
		return nil, err
	}
	list, err := decodeChunks(text, x.directory.Pieces[i])
	if err != nil {
		return nil, x.damaged(err)
	}
	x.listAt, x.list = i, list
	return list, nil
}

// entries goes through the entries of one kind, from the frame that may hold
// the name from on; yield says whether to go on.
func (x *index) entries(ctx context.Context, kind pieceKind, from string, yield func(workspacetar.Entry) bool) error {
	more := true
	begin := 0
	if from != "" && kind == pieceFiles {
		for i, p := range x.directory.Pieces {
			if p.Kind == kind && workspacetar.Order(p.first(), from) <= 0 {
				begin = i
			}
		}
	}
	for i, p := range x.directory.Pieces {
		if p.Kind != kind || i < begin {
			continue
		}
		text, err := x.piece(ctx, i)
		if err != nil {
			return err
		}
		err = decodeEntries(text, p, x.archive.Bytes, func(e workspacetar.Entry) bool {
			more = yield(e)
			return more
		})
		if err != nil {
			return x.damaged(err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

// find returns the chunk that holds the byte of the tar at offset, and where
// that chunk begins.
func (x *index) find(ctx context.Context, offset int64) (c chunk, begins int64, err error) {
	i := -1
	for n, p := range x.directory.Pieces {
		if p.Kind == pieceChunks && p.Offset <= offset {
			i = n
		}
	}
	if i < 0 || offset >= x.archive.Bytes {
		return chunk{}, 0, x.damaged(errGap)
	}
	list, err := x.chunks(ctx, i)
	if err != nil {
		return chunk{}, 0, err
	}
	begins = x.directory.Pieces[i].Offset
	n := slices.IndexFunc(list, func(c chunk) bool {
		if offset < begins+int64(c.bytes) {
			return true
		}
		begins += int64(c.bytes)
		return false
	})
	if n < 0 {
		return chunk{}, 0, x.damaged(errGap)
	}
	return list[n], begins, nil
}

// ranged reads a part of an object that is small enough for the memory.
func (s *Store) ranged(ctx context.Context, key string, at, size int64) ([]byte, error) {
	r, err := s.bucket.NewRangeReader(ctx, key, at, size, nil)
	if err != nil {
		return nil, fault(ctx, "read "+key, err)
	}
	defer r.Close() //nolint:errcheck // nothing is written
	out := bytes.NewBuffer(make([]byte, 0, size+1))
	if err := pourWith(ctx, out, io.LimitReader(r, size+1), nil, make([]byte, 32<<10)); err != nil {
		return nil, fault(ctx, "read "+key, err)
	}
	return out.Bytes(), nil
}
