package exports

import (
	"archive/zip"
	"bytes"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"testing"

	"github.com/openhands/boxkeeper/box"
)

// kept is an object of which everything is in memory already.
func kept(data []byte) *ranges {
	r := &ranges{key: "object", size: int64(len(data)), blocks: map[int64]*block{}}
	for i := 0; i*blockSize < len(data); i++ {
		r.blocks[int64(i)] = &block{data: data[i*blockSize : min(len(data), (i+1)*blockSize)]}
	}
	return r
}

// FuzzConversation reads objects that somebody put in the place of an export's:
// no name that climbs is handed out, no content under a wrong sum, and every
// fault is one of the object.
func FuzzConversation(f *testing.F) {
	f.Add(build(f, file{name: event(0), content: "{}", method: zip.Deflate}, file{name: event(1), content: `{"kind":"x"}`, raw: true}), 2)
	f.Add(build(f, file{name: testID + "/meta.json", content: "{}"}, file{name: testID + "/events/"}), 0)
	f.Add(build(f, file{name: testID + "/../climbs", content: "{}", raw: true}), 0)
	f.Fuzz(func(t *testing.T, data []byte, events int) {
		if len(data) == 0 || len(data) > maxBlocks*blockSize || events < 0 {
			return
		}
		c := &Conversation{History: History{ConversationEntry: ConversationEntry{ID: testID, Key: "object", Bytes: int64(len(data)), Events: events}}, blocks: kept(data)}
		unknown := func(err error) bool {
			if err != nil && box.ClassOf(err) != box.ClassUnknown {
				t.Fatalf("%v is no fault of the object", err)
			}
			return err != nil
		}
		if unknown(c.readDirectory(t.Context())) {
			return
		}
		for _, err := range c.Events(t.Context(), 0, 0) {
			unknown(err)
		}
		unknown(c.WriteText(t.Context(), io.Discard, 0, 0))
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return // it wants more of a zip than a reader of events does
		}
		for f, err := range c.Files(t.Context()) {
			if unknown(err) {
				return
			}
			if !fs.ValidPath(f.Name) {
				t.Fatalf("name %q is handed out", f.Name)
			}
			if f.Directory || f.SizeBytes > 1<<20 {
				continue
			}
			r, err := c.OpenFile(t.Context(), f)
			if unknown(err) {
				continue
			}
			content, err := io.ReadAll(r)
			same := func(e *zip.File) bool { return e.Name == f.Name && e.CRC32 == crc32.ChecksumIEEE(content) }
			if !unknown(err) && !slices.ContainsFunc(z.File, same) {
				t.Fatalf("%q is read with another sum", f.Name)
			}
		}
	})
}
