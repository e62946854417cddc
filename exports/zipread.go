package exports

import (
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// zipFile reads a zip without trusting it and without holding its directory in
// memory: the standard reader keeps every entry, several hundred bytes each,
// and reads as many as the file claims. Only what an agent-server writes is
// accepted: stored or deflated entries, one disk, no encryption.
type zipFile struct {
	r         io.ReaderAt
	dirOffset int64
	dirSize   int64
	entries   int64
	comment   string
}

// zipEntry is one record of the central directory.
type zipEntry struct {
	number int64 // from 1; what errors name, since names are hostile
	at     int64 // the record's own place in the file
	name   string
	mode   uint32 // Unix mode bits, 0 when the writer gave none
	method uint16
	flags  uint16
	crc    uint32
	packed int64
	size   int64
	header int64 // place of the local header
}

const (
	endRecord     = 0x06054b50
	end64Record   = 0x06064b50
	end64Locator  = 0x07064b50
	centralRecord = 0x02014b50
	localRecord   = 0x04034b50
	trailerRecord = 0x08074b50

	endLen       = 22
	end64Len     = 56
	locatorLen   = 20
	centralLen   = 46
	localLen     = 30
	flagCrypt    = 1 << 0
	flagTrailing = 1 << 3 // sizes follow the data; the local header has none
	flagUTF8     = 1 << 11
	methodStore  = 0
	methodFlate  = 8

	maxZipEntries = 1_000_000 // 24 MB of bookkeeping while one is checked
	maxNameBytes  = 1024
	modeMask      = 0o170000
	modeRegular   = 0o100000
	modeDirectory = 0o040000
)

// badZip is why an archive is refused. It holds no name from the archive.
type badZip string

func (b badZip) Error() string { return string(b) }

func badZipf(format string, args ...any) error { return badZip(fmt.Sprintf(format, args...)) }

// openZip finds the central directory of the size bytes in r.
func openZip(r io.ReaderAt, size int64) (zipFile, error) {
	tail := make([]byte, min(size, endLen+0xffff))
	if err := readAt(r, tail, size-int64(len(tail))); err != nil {
		return zipFile{}, err
	}
	at := -1
	for i := len(tail) - endLen; i >= 0; i-- {
		if binary.LittleEndian.Uint32(tail[i:]) == endRecord &&
			int(binary.LittleEndian.Uint16(tail[i+20:])) == len(tail)-i-endLen {
			at = i
			break
		}
	}
	if at < 0 {
		return zipFile{}, badZip("the end of the zip is missing: it was cut off, or is no zip")
	}
	end, endAt := tail[at:], size-int64(len(tail)-at)
	comment := string(tail[at+endLen:])
	le := binary.LittleEndian
	disk, dirDisk := le.Uint16(end[4:]), le.Uint16(end[6:])
	here, all := le.Uint16(end[8:]), le.Uint16(end[10:])
	z := zipFile{r: r, entries: int64(all), dirSize: int64(le.Uint32(end[12:])), dirOffset: int64(le.Uint32(end[16:])), comment: comment}
	if all == 0xffff || le.Uint32(end[12:]) == 0xffffffff || le.Uint32(end[16:]) == 0xffffffff {
		at64, err := z.open64(endAt)
		switch {
		case err != nil:
			return zipFile{}, err
		case at64 >= 0:
			endAt, disk, dirDisk, here, all = at64, 0, 0, 0, 0 // the 64-bit record was checked instead
		}
	}
	switch {
	case disk != 0 || dirDisk != 0 || here != all:
		return zipFile{}, badZip("the zip has several parts")
	case z.dirOffset < 0 || z.dirSize < 0 || z.dirOffset > endAt || z.dirOffset+z.dirSize != endAt:
		return zipFile{}, badZip("the directory of the zip is not where its end says")
	case z.entries < 0 || z.entries > z.dirSize/centralLen:
		return zipFile{}, badZip("the zip counts more entries than its directory has room for")
	case z.entries > maxZipEntries:
		return zipFile{}, badZipf("the zip has %d entries, more than %d", z.entries, int64(maxZipEntries))
	}
	return z, nil
}

// open64 reads the 64-bit end record before the one at endAt, and returns its
// place, or -1 when there is none.
func (z *zipFile) open64(endAt int64) (int64, error) {
	if endAt < locatorLen {
		return -1, nil
	}
	le := binary.LittleEndian
	var locator [locatorLen]byte
	if err := readAt(z.r, locator[:], endAt-locatorLen); err != nil {
		return 0, err
	}
	if le.Uint32(locator[:]) != end64Locator {
		return -1, nil
	}
	at := int64(le.Uint64(locator[8:])) //nolint:gosec // a negative place is refused next
	if at < 0 || at > endAt-locatorLen-end64Len {
		return 0, badZip("the 64-bit end record of the zip is out of place")
	}
	var rec [end64Len]byte
	if err := readAt(z.r, rec[:], at); err != nil {
		return 0, err
	}
	if le.Uint32(rec[:]) != end64Record || at+12+int64(le.Uint64(rec[4:])) != endAt-locatorLen { //nolint:gosec // only compared
		return 0, badZip("the 64-bit end record of the zip is damaged")
	}
	if le.Uint32(rec[16:]) != 0 || le.Uint32(rec[20:]) != 0 || le.Uint64(rec[24:]) != le.Uint64(rec[32:]) {
		return 0, badZip("the zip has several parts")
	}
	//nolint:gosec // negative ones are refused by the caller
	z.entries, z.dirSize, z.dirOffset = int64(le.Uint64(rec[32:])), int64(le.Uint64(rec[40:])), int64(le.Uint64(rec[48:]))
	return at, nil
}

// walk calls fn for each entry in the order of the directory. It fails unless
// the directory holds exactly the entries that its end counts.
func (z *zipFile) walk(ctx context.Context, fn func(zipEntry) error) error {
	br := bufio.NewReaderSize(io.NewSectionReader(z.r, z.dirOffset, z.dirSize), 64<<10)
	at := z.dirOffset
	for n := int64(1); n <= z.entries; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e, used, err := readEntry(br, n)
		if err != nil {
			return err
		}
		e.at = at
		at += used
		if err := fn(e); err != nil {
			return err
		}
	}
	if at != z.dirOffset+z.dirSize {
		return badZip("the directory of the zip holds more than its end counts")
	}
	return nil
}

// entryAt reads one record again.
func (z *zipFile) entryAt(at, number int64) (zipEntry, error) {
	e, _, err := readEntry(io.NewSectionReader(z.r, at, z.dirOffset+z.dirSize-at), number)
	e.at = at
	return e, err
}

func readEntry(r io.Reader, number int64) (e zipEntry, used int64, err error) {
	le := binary.LittleEndian
	var h [centralLen]byte
	if err := readFull(r, h[:]); err != nil {
		return e, 0, err
	}
	if le.Uint32(h[:]) != centralRecord {
		return e, 0, badZipf("directory entry %d of the zip is damaged", number)
	}
	names, extras, comments := int(le.Uint16(h[28:])), int(le.Uint16(h[30:])), int(le.Uint16(h[32:]))
	if names == 0 || names > maxNameBytes {
		return e, 0, badZipf("entry %d of the zip has no name, or one of more than %d bytes", number, maxNameBytes)
	}
	rest := make([]byte, names+extras+comments)
	if err := readFull(r, rest); err != nil {
		return e, 0, err
	}
	e = zipEntry{
		number: number, name: string(rest[:names]),
		flags: le.Uint16(h[8:]), method: le.Uint16(h[10:]), crc: le.Uint32(h[16:]),
		packed: int64(le.Uint32(h[20:])), size: int64(le.Uint32(h[24:])), header: int64(le.Uint32(h[42:])),
	}
	// Only writers on Unix and macOS put a mode there.
	if creator := h[5]; creator == 3 || creator == 19 {
		e.mode = le.Uint32(h[38:]) >> 16
	}
	if err := e.widen(rest[names : names+extras]); err != nil {
		return e, 0, err
	}
	if le.Uint16(h[34:]) != 0 {
		return e, 0, badZip("the zip has several parts")
	}
	return e, int64(centralLen + len(rest)), nil
}

// widen takes the 64-bit values from an entry's extra field.
func (e *zipEntry) widen(extra []byte) error {
	le := binary.LittleEndian
	for len(extra) >= 4 {
		id, n := le.Uint16(extra), int(le.Uint16(extra[2:]))
		extra = extra[4:]
		if n > len(extra) {
			break // other programs' padding
		}
		field := extra[:n]
		extra = extra[n:]
		if id != 1 {
			continue
		}
		for _, v := range []*int64{&e.size, &e.packed, &e.header} {
			if *v != 0xffffffff {
				continue
			}
			if len(field) < 8 {
				return badZipf("entry %d of the zip lacks its 64-bit sizes", e.number)
			}
			*v = int64(le.Uint64(field)) //nolint:gosec // a negative size is refused below
			field = field[8:]
		}
		break
	}
	if e.size < 0 || e.packed < 0 || e.header < 0 {
		return badZipf("entry %d of the zip has an impossible size", e.number)
	}
	return nil
}

// unpacker reads entries one after the other with the same buffers.
type unpacker struct {
	zip     zipFile
	buf     *bufio.Reader
	inflate io.ReadCloser
	head    [localLen + maxNameBytes]byte
}

func newUnpacker(z zipFile) *unpacker {
	return &unpacker{zip: z, buf: bufio.NewReaderSize(nil, 64<<10), inflate: flate.NewReader(bytes.NewReader(nil))}
}

// open checks the local header against the directory and returns the entry's
// content, and where its data end. The reader is good until the next call. It
// ends with io.EOF only when size and sum were right.
func (u *unpacker) open(e zipEntry) (r io.Reader, end int64, err error) {
	r, end, err = u.packed(e)
	if err != nil {
		return nil, 0, err
	}
	return &wholeEntry{unpacker: u, entry: e, end: end, from: r, crc: crc32.NewIEEE()}, end, nil
}

// wholeEntry proves an entry while it is read.
type wholeEntry struct {
	unpacker *unpacker
	entry    zipEntry
	end      int64 // of its data
	from     io.Reader
	crc      hash.Hash32
	size     int64
}

func (w *wholeEntry) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	w.size += int64(n)
	_, _ = w.crc.Write(p[:n]) // never fails; documented
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	switch {
	case corrupt, errors.Is(err, io.ErrUnexpectedEOF):
		return n, badZipf("entry %d of the zip is damaged", w.entry.number)
	case errors.Is(err, io.EOF) && (w.size != w.entry.size || w.crc.Sum32() != w.entry.crc || !w.unpacker.drained()):
		return n, badZipf("entry %d of the zip is damaged: its size or its sum is wrong", w.entry.number)
	case errors.Is(err, io.EOF) && w.entry.flags&flagTrailing != 0:
		if err := w.unpacker.trailer(w.entry, w.end); err != nil {
			return n, err
		}
	}
	return n, err
}

// trailer checks the sum that follows an entry's data. Its content is proven
// without; but boxes and others refuse to unpack a zip in which the two differ.
func (u *unpacker) trailer(e zipEntry, at int64) error {
	const least = 12 // a signature may come before it, and longer sizes in it
	var t [8]byte
	if at+least > u.zip.dirOffset {
		return badZipf("entry %d of the zip lacks what must follow it", e.number)
	}
	if err := readAt(u.zip.r, t[:], at); err != nil {
		return err
	}
	sum := binary.LittleEndian.Uint32(t[:])
	if sum == trailerRecord {
		sum = binary.LittleEndian.Uint32(t[4:])
	}
	if sum != e.crc {
		return badZipf("entry %d of the zip is damaged: the sum behind it is another one", e.number)
	}
	return nil
}

// packed is open without the proof at the end.
func (u *unpacker) packed(e zipEntry) (r io.Reader, end int64, err error) {
	le := binary.LittleEndian
	if e.header > u.zip.dirOffset-localLen-int64(len(e.name)) {
		return nil, 0, badZipf("entry %d of the zip points outside of it", e.number)
	}
	h := u.head[:localLen+len(e.name)]
	if err := readAt(u.zip.r, h, e.header); err != nil {
		return nil, 0, err
	}
	names := int(le.Uint16(h[26:]))
	start := e.header + localLen + int64(names) + int64(le.Uint16(h[28:]))
	if le.Uint32(h[:]) != localRecord || start > u.zip.dirOffset || e.packed > u.zip.dirOffset-start {
		return nil, 0, badZipf("entry %d of the zip points outside of it", e.number)
	}
	same := names == len(e.name) && string(h[localLen:]) == e.name && le.Uint16(h[8:]) == e.method && le.Uint16(h[6:]) == e.flags
	if e.flags&flagTrailing == 0 {
		same = same && le.Uint32(h[14:]) == e.crc &&
			agrees(le.Uint32(h[18:]), e.packed) && agrees(le.Uint32(h[22:]), e.size)
	}
	if !same {
		return nil, 0, badZipf("entry %d of the zip differs between its directory and its data", e.number)
	}
	u.buf.Reset(io.NewSectionReader(u.zip.r, start, e.packed))
	end = start + e.packed
	switch {
	case e.flags&flagCrypt != 0:
		return nil, 0, badZipf("entry %d of the zip is encrypted", e.number)
	case e.method == methodStore && e.packed == e.size:
		return u.buf, end, nil
	case e.method == methodFlate:
		again, ok := u.inflate.(flate.Resetter)
		if !ok {
			return nil, 0, badZip("the decompressor cannot be used again")
		}
		if err := again.Reset(u.buf, nil); err != nil {
			return nil, 0, err
		}
		return io.LimitReader(u.inflate, e.size+1), end, nil
	}
	return nil, 0, badZipf("entry %d of the zip is packed in a way that agent-servers do not use", e.number)
}

// drained reports whether the packed data of the last entry were used up.
func (u *unpacker) drained() bool {
	_, err := u.buf.ReadByte()
	return errors.Is(err, io.EOF)
}

func agrees(local uint32, central int64) bool {
	return local == 0xffffffff || int64(local) == central
}

func readAt(r io.ReaderAt, p []byte, at int64) error {
	n, err := r.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	return cutOff(err)
}

func readFull(r io.Reader, p []byte) error {
	if _, err := io.ReadFull(r, p); err != nil {
		return cutOff(err)
	}
	return nil
}

func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return badZip("the zip ends too early")
	}
	return err
}
