package exports

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// The index of a workspace's archive is one object: frames of zstd one after
// the other, each of them some lines of JSON, so that "zstd -dc" gives all of it
// and a reader takes only the frames that it needs. A line is a chunk of the tar
// or an entry of it. The last frame is the directory of the others.

// indexVersion is what this program writes and reads.
const indexVersion = 1

const (
	pieceSize          = 256 << 10 // of the lines of one frame
	maxPiece           = 2 << 20   // one line may be long
	maxDirectory       = 16 << 20
	maxPackedPiece     = maxPiece + maxPiece/64
	maxPackedDirectory = maxDirectory + maxDirectory/64
)

// pieceKind says what the lines of a frame are.
type pieceKind string

const (
	pieceChunks pieceKind = "chunks" // of the tar, in order
	pieceFiles  pieceKind = "files"  // entries below files/, in the order of a walk
	pieceParts  pieceKind = "parts"  // all other entries, in that of the tar
)

// piece is a frame of an index, as its directory has it.
type piece struct {
	Kind   pieceKind `json:"kind"`
	At     int64     `json:"at"` // in the index
	Bytes  int64     `json:"bytes"`
	SHA256 string    `json:"sha256"` // of the frame as it is stored
	Lines  int       `json:"lines"`
	// Offset is where the first chunk begins in the tar.
	Offset int64 `json:"offset,omitzero"`
	// First is the name of the first file; FirstBase64 holds it instead when it is
	// not UTF-8.
	First       string `json:"first,omitzero"`
	FirstBase64 []byte `json:"first_base64,omitzero"`
}

func (p piece) first() string {
	if p.FirstBase64 != nil {
		return string(p.FirstBase64)
	}
	return p.First
}

// indexDirectory is the last line of an index.
type indexDirectory struct {
	Version int     `json:"version"`
	Chunks  int     `json:"chunks"`
	Bytes   int64   `json:"bytes"` // of the tar
	Pieces  []piece `json:"pieces"`
}

// chunkLine is a chunk in an index. It lies at
// chunks/<workspace>/<first two digits>/<chunk>, with "-<copy>" behind when Copy
// is set.
type chunkLine struct {
	Chunk  string `json:"chunk"` // sha256 of its bytes
	Offset int64  `json:"offset"`
	Bytes  int32  `json:"bytes"`
	Stored int32  `json:"stored"`
	Copy   int32  `json:"copy,omitzero"`
}

// indexWriter writes an index. It holds one frame of each kind.
type indexWriter struct {
	out    io.Writer
	zip    *zstd.Encoder
	at     int64
	sum    hash.Hash
	pieces []piece
	named  int // bytes of names in pieces
	open   map[pieceKind]*openPiece
	packed []byte
}

type openPiece struct {
	piece
	lines bytes.Buffer
}

func newIndexWriter(out io.Writer) (*indexWriter, error) {
	zip, err := newPacker()
	if err != nil {
		return nil, err
	}
	open := map[pieceKind]*openPiece{
		pieceChunks: {piece: piece{Kind: pieceChunks}}, pieceFiles: {piece: piece{Kind: pieceFiles}}, pieceParts: {piece: piece{Kind: pieceParts}},
	}
	return &indexWriter{out: out, zip: zip, sum: sha256.New(), open: open}, nil
}

// entry adds one entry of the tar.
func (w *indexWriter) entry(e workspacetar.Entry) error {
	kind := pieceFiles
	if e.Type == workspacetar.TypePart {
		kind = pieceParts
	}
	p := w.open[kind]
	name := e.Name
	if !utf8.ValidString(name) {
		e.Name, e.NameBase64 = "", []byte(name)
	}
	if p.Lines == 0 && kind == pieceFiles {
		p.First, p.FirstBase64 = e.Name, e.NameBase64
	}
	return w.line(p, e)
}

// chunks adds all chunks of the tar.
func (w *indexWriter) chunks(chunks []chunk) error {
	p := w.open[pieceChunks]
	at := int64(0)
	for _, c := range chunks {
		line := chunkLine{Chunk: c.name(), Offset: at, Bytes: c.bytes, Stored: c.stored, Copy: c.copy}
		if line.Copy == 1 {
			line.Copy = 0
		}
		if p.Lines == 0 {
			p.Offset = at
		}
		if err := w.line(p, line); err != nil {
			return err
		}
		at += int64(c.bytes)
	}
	return nil
}

func (w *indexWriter) line(p *openPiece, line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return box.Errorf(box.ClassInternal, "write the index of a workspace: %w", err)
	}
	p.lines.Write(text)
	p.lines.WriteByte('\n')
	p.Lines++
	if p.lines.Len() >= pieceSize {
		return w.flush(p)
	}
	return nil
}

func (w *indexWriter) flush(p *openPiece) error {
	if p.Lines == 0 {
		return nil
	}
	if p.lines.Len() > maxPiece {
		return box.Errorf(box.ClassExhausted, "a name in the workspace is too long for the index of its export")
	}
	done := p.piece
	var err error
	if done.At, done.Bytes, done.SHA256, err = w.frame(p.lines.Bytes()); err != nil {
		return err
	}
	if w.named += len(done.First) + len(done.FirstBase64) + 200; w.named > maxDirectory/2 {
		return box.Errorf(box.ClassExhausted, "the workspace has too many entries, or ones with names too long, for the index of its export")
	}
	w.pieces = append(w.pieces, done)
	p.piece = piece{Kind: p.Kind}
	p.lines.Reset()
	return nil
}

// frame writes one, and says where and what it is.
func (w *indexWriter) frame(lines []byte) (at, size int64, sum string, err error) {
	w.packed = w.zip.EncodeAll(lines, w.packed[:0])
	if _, err := w.out.Write(w.packed); err != nil {
		return 0, 0, "", err
	}
	_, _ = w.sum.Write(w.packed) // never fails; documented
	at, size = w.at, int64(len(w.packed))
	w.at += size
	return at, size, sumOf(w.packed), nil
}

// finish writes what is left and the directory, and returns how to find and
// trust the index.
func (w *indexWriter) finish(chunks int, tarBytes int64) (WorkspaceIndex, error) {
	for _, kind := range []pieceKind{pieceChunks, pieceFiles, pieceParts} {
		if err := w.flush(w.open[kind]); err != nil {
			return WorkspaceIndex{}, err
		}
	}
	text, err := json.Marshal(indexDirectory{Version: indexVersion, Chunks: chunks, Bytes: tarBytes, Pieces: w.pieces})
	if err != nil {
		return WorkspaceIndex{}, box.Errorf(box.ClassInternal, "write the index of a workspace: %w", err)
	}
	if len(text) > maxDirectory {
		return WorkspaceIndex{}, box.Errorf(box.ClassExhausted, "the workspace has too many entries for the index of its export")
	}
	_, size, sum, err := w.frame(append(text, '\n'))
	if err != nil {
		return WorkspaceIndex{}, err
	}
	return WorkspaceIndex{
		Bytes: w.at, SHA256: hex.EncodeToString(w.sum.Sum(nil)), DirectoryBytes: size, DirectorySHA256: sum,
	}, nil
}

// decodeDirectory reads the directory of an index that belongs to an archive,
// and refuses one that contradicts itself or the archive.
func decodeDirectory(text []byte, a WorkspaceArchive) (indexDirectory, error) {
	var d indexDirectory
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&d); err != nil {
		return d, errors.New("its directory is not JSON of the known form")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return d, errors.New("something follows its directory")
	}
	switch {
	case d.Version != indexVersion:
		return d, errors.New("its version is not known to this program; use a newer one")
	case d.Chunks != a.Chunks || d.Bytes != a.Bytes:
		return d, errors.New("it is of another archive")
	}
	at, chunks, offset, first := int64(0), 0, int64(-1), ""
	for _, p := range d.Pieces {
		switch {
		case p.At != at || p.Bytes <= 0 || p.Bytes > maxPackedPiece || p.Lines <= 0 || p.Lines > maxPiece || !sumForm.MatchString(p.SHA256):
			return d, errors.New("a frame in its directory is impossible")
		case p.Kind == pieceChunks && (p.Offset <= offset || (offset < 0) != (p.Offset == 0) || p.Offset >= d.Bytes):
			return d, errors.New("its chunks are not in order")
		case p.Kind == pieceFiles && (p.first() == "" || workspacetar.Order(first, p.first()) >= 0):
			return d, errors.New("its files are not in order")
		}
		switch p.Kind {
		case pieceChunks:
			offset, chunks = p.Offset, chunks+p.Lines
		case pieceFiles:
			first = p.first()
		case pieceParts:
		default:
			return d, errors.New("a frame in its directory is of no known kind")
		}
		at += p.Bytes
	}
	if chunks != d.Chunks || at+a.Index.DirectoryBytes != a.Index.Bytes {
		return d, errors.New("its directory does not add up")
	}
	return d, nil
}

// decodeChunks reads the lines of a frame of chunks, and refuses one that its
// directory is not about.
func decodeChunks(text []byte, p piece) ([]chunk, error) {
	out := make([]chunk, 0, min(p.Lines, len(text)/64))
	at := p.Offset
	err := eachLine(text, p, func(line []byte) error {
		var l chunkLine
		if err := json.Unmarshal(line, &l); err != nil {
			return errors.New("a chunk is not JSON of the known form")
		}
		if !sumForm.MatchString(l.Chunk) || l.Offset != at || l.Bytes <= 0 || l.Bytes > maxChunk || l.Stored <= 0 || l.Stored > maxStoredChunk || l.Copy < 0 || l.Copy > maxAlternates {
			return errors.New("a chunk is impossible")
		}
		c := chunk{bytes: l.Bytes, stored: l.Stored, copy: max(l.Copy, 1)}
		_, _ = hex.Decode(c.sum[:], []byte(l.Chunk)) // its form was checked
		out = append(out, c)
		at += int64(l.Bytes)
		return nil
	})
	return out, err
}

// decodeEntries yields the entries of a frame, and refuses one that its
// directory is not about; yield says whether to go on.
func decodeEntries(text []byte, p piece, tarBytes int64, yield func(workspacetar.Entry) bool) error {
	last := ""
	return eachLine(text, p, func(line []byte) error {
		var e workspacetar.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return errors.New("an entry is not JSON of the known form")
		}
		if e.NameBase64 != nil {
			e.Name, e.NameBase64 = string(e.NameBase64), nil
		}
		switch {
		case !workspacetar.Whole(e.Name) || e.Bytes < 0 || e.Offset < 0 || e.Offset > tarBytes || e.Bytes > tarBytes-e.Offset:
			return errors.New("an entry is impossible")
		case (p.Kind == pieceParts) != (e.Type == workspacetar.TypePart):
			return errors.New("an entry is of another kind than its frame")
		case p.Kind == pieceFiles && last == "" && e.Name != p.first(), p.Kind == pieceFiles && workspacetar.Order(last, e.Name) >= 0:
			return errors.New("its files are not in order")
		}
		last = e.Name
		if !yield(e) {
			return errStop
		}
		return nil
	})
}

var (
	errStop = errors.New("enough") // ends an iteration
	errGap  = errors.New("its chunks do not follow each other to the end of the tar")
)

func eachLine(text []byte, p piece, do func([]byte) error) error {
	n := 0
	for len(text) > 0 {
		line, rest, ended := bytes.Cut(text, []byte("\n"))
		if n++; !ended || n > p.Lines {
			return errors.New("a frame has more lines than its directory says, or an unfinished one")
		}
		if err := do(line); err != nil {
			if errors.Is(err, errStop) {
				return nil
			}
			return err
		}
		text = rest
	}
	if n != p.Lines {
		return errors.New("a frame has fewer lines than its directory says")
	}
	return nil
}
