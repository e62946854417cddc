package exports

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// zipFacts is what an archive was found to hold.
type zipFacts struct {
	entries  int
	events   int   // files of the form that eventIndex reads
	unpacked int64 // bytes
}

// maxUnpacked bounds the work that an archive can ask for. Entries must not
// overlap, so it is bounded by the archive's size too: deflate packs 1,032 to 1.
const maxUnpacked = 64 << 30

// maxZipBytes ends a download that never ends by itself.
const maxZipBytes = 64 << 30

// checkZip reads every entry of an archive to its end and compares sizes and
// sums. It refuses (as badZip) damage, duplicate, absolute and climbing names,
// links, what overlaps, and what is not of the conversation; any other error is
// of the reader or of ctx. Memory
// use is bounded by maxZipEntries, not by the size.
func checkZip(ctx context.Context, r io.ReaderAt, size int64, conversation string, tick func(int)) (zipFacts, error) {
	z, err := openZip(r, size)
	if err != nil {
		return zipFacts{}, err
	}
	c := zipChecker{
		ctx: ctx, unpacker: newUnpacker(z), conversation: conversation, tick: tick, seed: maphash.MakeSeed(),
		names: make([]uint64, 0, z.entries), spans: make([]span, 0, z.entries), buf: make([]byte, copyBufferSize),
	}
	if err := z.walk(ctx, c.entry); err != nil {
		return zipFacts{}, err
	}
	if c.facts.entries == 0 {
		return zipFacts{}, badZip("the zip is empty")
	}
	slices.Sort(c.names)
	for i := 1; i < len(c.names); i++ {
		if c.names[i] == c.names[i-1] {
			return zipFacts{}, badZip("the zip holds one name twice")
		}
	}
	slices.SortFunc(c.spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	for i := 1; i < len(c.spans); i++ {
		if c.spans[i].start < c.spans[i-1].end {
			return zipFacts{}, badZip("entries of the zip overlap")
		}
	}
	return c.facts, nil
}

type span struct{ start, end int64 }

type zipChecker struct {
	ctx          context.Context //nolint:containedctx // lives for one call of checkZip
	unpacker     *unpacker
	conversation string
	tick         func(int)
	seed         maphash.Seed
	names        []uint64 // 64 bits of a seeded hash each: no one can aim at a collision
	spans        []span
	buf          []byte
	facts        zipFacts
}

func (c *zipChecker) entry(e zipEntry) error {
	if err := e.refuse(); err != nil {
		return err
	}
	// Of an empty conversation no count tells that it is another's.
	if !strings.HasPrefix(e.name, c.conversation+"/") {
		return badZipf("entry %d of the zip is not of the conversation", e.number)
	}
	c.facts.unpacked += e.size
	if e.size > maxUnpacked || c.facts.unpacked > maxUnpacked {
		return badZipf("the zip unpacks to more than %d GiB", maxUnpacked>>30)
	}
	r, end, err := c.unpacker.open(e)
	if err != nil {
		return err
	}
	for {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		k, err := r.Read(c.buf)
		if c.tick != nil && k > 0 {
			c.tick(k)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	c.names = append(c.names, maphash.String(c.seed, e.name))
	c.spans = append(c.spans, span{e.header, end})
	c.facts.entries++
	if _, _, ok := eventIndex(e.name, c.conversation); ok {
		c.facts.events++
	}
	return nil
}

// refuse says what makes an entry one that nobody may unpack.
func (e *zipEntry) refuse() error {
	if why := badName(e.name); why != "" {
		return badZipf("entry %d of the zip has a name that %s", e.number, why)
	}
	if kind := e.mode & modeMask; kind != 0 && kind != modeRegular && kind != modeDirectory {
		return badZipf("entry %d of the zip is a link or a device", e.number)
	}
	return nil
}

// badName says what is wrong with a name, or nothing. Nothing is unpacked here;
// the names are refused because others will unpack what we hand out.
func badName(name string) string {
	switch {
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.HasPrefix(name, "/") || strings.Contains(name, `\`) || len(name) > 1 && name[1] == ':':
		return "is absolute, or has backslashes"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "has control characters"
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(name, "/"), "/") {
		if part == "" || part == "." || part == ".." {
			return "climbs out of its directory, or has empty parts"
		}
	}
	return ""
}
