package exports

import (
	"cmp"
	"context"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports/secretscan"
	"github.com/openhands/boxkeeper/workspacetar"
)

const (
	// What is listed of a workspace's archive at most: there is one for all files.
	maxListedArchive = 5_000
	maxListedNames   = 4 << 20 // bytes
	// maxAltered bounds what is remembered of files that are of the same length as
	// before and have other content.
	maxAltered = 10_000
)

// fileScan looks through the archive of a workspace, entry by entry, while it is
// read. It holds a piece of one entry. Nothing in an archive is ever masked.
type fileScan struct {
	scan   *scan
	stream *secretscan.Stream
	names  *secretscan.Stream
	object ScannedObject
	listed int // bytes of the names in object.List

	name  string // of the entry that is being read, masked
	parts string // the stream that its parts are of
	// between says that a part ended and the end of it was not looked at yet.
	between bool

	past    *pastFiles
	waiting []waiting
	altered []workspacetar.Entry
	history history
}

// waiting is a file that is as long as it was in the export before: its sum, which
// is known after it was read, says whether it must be looked through.
type waiting struct{ name, sum string }

func (c *scan) beginFiles(past *pastFiles) *fileScan {
	f := &fileScan{scan: c, past: past}
	f.history.files = f
	f.stream = c.scanner.Files(c.key, func(v secretscan.Found) { f.add(v, false) })
	f.names = c.scanner.Files(c.key, nil)
	return f
}

// take is told of an entry that begins, and takes its content.
func (f *fileScan) take(e workspacetar.Entry) (io.WriteCloser, error) {
	f.between = false
	parts := ""
	if strings.HasPrefix(e.Name, box.WorkspaceRepositories) {
		if parts = path.Dir(e.Name); parts == f.parts {
			return f, nil // a secret may lie across two parts
		}
	}
	f.end()
	f.parts = parts
	name := cmp.Or(parts, e.Name)
	f.look(name)
	if e.Target != "" {
		_, _ = io.WriteString(f, e.Target) // never fails; documented
	}
	if packed, ok := packedBy(name); ok && (parts != "" || e.Type == "file") {
		f.history.expect(name, packed)
		return f, nil
	}
	if sum, same := f.past.of(e); same && f.name == name {
		f.waiting = append(f.waiting, waiting{name, sum})
		return nil, nil //nolint:nilnil // it is not looked at
	}
	return f, nil
}

// Close ends an entry; but what may go on in a next part waits for that.
func (f *fileScan) Close() error {
	if f.between = f.parts != ""; !f.between {
		f.end()
	}
	return nil
}

// look begins an entry with its name.
func (f *fileScan) look(name string) {
	var inName []secretscan.Found
	f.name = f.names.Name(name, func(v secretscan.Found) { inName = append(inName, v) })
	for _, v := range inName {
		f.add(v, true)
	}
	f.stream.Reset(name)
	f.object.Entries++
}

// Write takes the content of an entry. It never fails.
func (f *fileScan) Write(p []byte) (int, error) {
	if f.history.takes(p) {
		return len(p), nil
	}
	return f.text(p)
}

func (f *fileScan) text(p []byte) (int, error) {
	f.object.Bytes += int64(len(p))
	return f.stream.Write(p)
}

// end ends the entry, if there is one.
func (f *fileScan) end() {
	f.history.end()
	_ = f.stream.Close() // never fails; documented
	f.between = false
}

// told is told of each entry when it was read and compared.
func (f *fileScan) told(e workspacetar.Entry) {
	switch {
	case e.Type == "left-out": // its name is in a list only
		f.end()
		f.look(e.Name)
		f.end()
	case len(f.waiting) == 0 || f.waiting[0].name != e.Name:
	case f.waiting[0].sum == e.SHA256:
		f.waiting = f.waiting[1:]
		f.object.Bytes += e.Bytes
		for _, one := range f.past.finds[e.Name] {
			f.count(one)
		}
	default:
		f.waiting = f.waiting[1:]
		if f.altered = append(f.altered, e); len(f.altered) == maxAltered {
			f.past.stop()
			f.past.none = true
		}
	}
}

// finish looks through what was put off until it was in the store, and tells what
// was found.
func (f *fileScan) finish(ctx context.Context, keeper *chunkKeeper, tick func(int)) error {
	f.end()
	from := keeper.content()
	for _, e := range f.altered {
		f.name = e.Name
		f.stream.Reset(e.Name)
		if err := from.pour(ctx, f, e.Offset, e.Bytes, tick); err != nil {
			return err
		}
		f.end()
	}
	return nil
}

func (f *fileScan) add(v secretscan.Found, inName bool) {
	if f.history.open && !inName {
		f.history.found(v)
		return
	}
	f.count(SecretFinding{Rule: v.Rule, Entry: f.name, InName: inName, Line: v.Line, Offset: v.Offset, Fingerprint: v.Fingerprint})
}

// count counts a find, and list keeps the first of them in the order of the archive,
// whatever the order is in which they are found.
func (f *fileScan) count(one SecretFinding) {
	f.object.Findings++
	f.list(one)
}

func (f *fileScan) list(one SecretFinding) {
	list := f.object.List
	i, _ := slices.BinarySearchFunc(list, one, compareFindings)
	if i == len(list) && (len(list) >= maxListedArchive || f.listed+len(one.Entry) > maxListedNames) {
		return
	}
	list = slices.Insert(list, i, one)
	f.listed += len(one.Entry)
	for last := len(list) - 1; len(list) > maxListedArchive || f.listed > maxListedNames; last-- {
		f.listed -= len(list[last].Entry)
		list = list[:last]
	}
	f.object.List = list
}

func compareFindings(a, b SecretFinding) int {
	inName := func(s SecretFinding) int {
		if s.InName {
			return 0
		}
		return 1
	}
	return cmp.Or(workspacetar.Order(a.Entry, b.Entry), cmp.Compare(inName(a), inName(b)), cmp.Compare(a.At, b.At), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Rule, b.Rule))
}

// withheld reports whether what was found keeps the files out of the store.
func (f *fileScan) withheld() bool { return f.scan.policy.Withholds() && f.object.Findings > 0 }
