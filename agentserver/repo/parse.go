package repo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxRecord bounds one record of an answer; paths are far shorter.
const maxRecord = 64 << 10

// eachRecord calls fn with each record that ends with a NUL byte. What follows
// the last one is an error: the answer was cut off.
func eachRecord(r io.Reader, fn func(string) error) error {
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 0, 8<<10), maxRecord)
	scan.Split(func(data []byte, end bool) (int, []byte, error) {
		if at := bytes.IndexByte(data, 0); at >= 0 {
			return at + 1, data[:at], nil
		}
		if end && len(data) > 0 {
			return 0, nil, errors.New("the answer was cut off")
		}
		return 0, nil, nil
	})
	for scan.Scan() {
		if err := fn(scan.Text()); err != nil {
			return err
		}
	}
	return scan.Err()
}

// Entry is one line of a status.
type Entry struct {
	// Kind is '1' or '2' for a change of what is tracked, 'u' for an unmerged
	// path, '?' for an untracked and '!' for an ignored one. The last two end
	// with a slash when they are directories.
	Kind byte
	// Staged and Unstaged say which side of a change there is.
	Staged, Unstaged bool
	Submodule        bool
	Path             string
	// ids are the objects of a change: that of the last commit and that of the
	// index, or the three of an unmerged path. Zeros stand for none.
	ids []string
}

// parseStatus reads "status --porcelain=v2 -z" without renames.
func parseStatus(r io.Reader, fn func(Entry) error) error {
	return eachRecord(r, func(record string) error {
		entry := Entry{}
		var skip int // fields before the path
		switch {
		case strings.HasPrefix(record, "# "):
			return nil
		case strings.HasPrefix(record, "1 "):
			skip = 8
		case strings.HasPrefix(record, "u "):
			skip = 10
		case strings.HasPrefix(record, "? "), strings.HasPrefix(record, "! "):
			skip = 1
		default:
			// With renames off there is no record 2, whose path takes two fields.
			return fmt.Errorf("git status said %.20q, which is not understood", record)
		}
		entry.Kind = record[0]
		fields := strings.SplitN(record, " ", skip+1)
		if len(fields) != skip+1 || fields[skip] == "" {
			return fmt.Errorf("git status said %.20q, which is cut off", record)
		}
		entry.Path = fields[skip]
		if skip > 1 {
			if len(fields[1]) != 2 || fields[2] == "" {
				return fmt.Errorf("git status said %.20q, which is not understood", record)
			}
			entry.Staged, entry.Unstaged = fields[1][0] != '.', fields[1][1] != '.'
			entry.Submodule = fields[2][0] == 'S'
			first := 6
			if entry.Kind == 'u' {
				first = 7
			}
			if entry.ids = fields[first:skip]; slices.ContainsFunc(entry.ids, func(id string) bool { return !isID(id) }) {
				return fmt.Errorf("git status said %.20q, which is not understood", record)
			}
		}
		return fn(entry)
	})
}

// IndexEntry is one entry of the index.
type IndexEntry struct {
	// Assumed says that git was told not to look whether it changed, Skipped
	// that it was told that it need not be there.
	Assumed, Skipped bool
	Submodule        bool
	ID               string
	Path             string
}

// parseIndex reads "ls-files -v -s -z": the tag, mode, id and stage, a tab, and
// the path.
func parseIndex(r io.Reader, fn func(IndexEntry) error) error {
	return eachRecord(r, func(record string) error {
		before, path, ok := strings.Cut(record, "\t")
		fields := strings.Split(before, " ")
		if !ok || path == "" || len(fields) != 4 || len(fields[0]) != 1 || !isID(fields[2]) {
			return fmt.Errorf("git ls-files said %.20q, which is not understood", record)
		}
		tag := fields[0][0]
		return fn(IndexEntry{
			Assumed: tag >= 'a' && tag <= 'z', Skipped: tag == 'S' || tag == 's',
			Submodule: fields[1] == "160000", ID: fields[2], Path: path,
		})
	})
}

// isID reports whether text is the full name of an object.
func isID(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}

// parseReflog returns the object names in a reflog, both columns, without the
// name of nothing.
func parseReflog(r io.Reader, fn func(id string)) error {
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 0, 8<<10), maxRecord)
	for scan.Scan() {
		line := scan.Text()
		before, _, _ := strings.Cut(line, "\t")
		fields := strings.Fields(before)
		if len(fields) < 2 || !isID(fields[0]) || !isID(fields[1]) {
			return fmt.Errorf("a reflog has the line %.20q, which is not understood", line)
		}
		for _, id := range fields[:2] {
			if strings.Trim(id, "0") != "" {
				fn(id)
			}
		}
	}
	return scan.Err()
}

// eachLine calls fn with each line; the last must end like the others.
func eachLine(r io.Reader, fn func(string) error) error {
	in := bufio.NewReaderSize(r, maxRecord)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("the answer was cut off")
		case err != nil:
			return err
		}
		if err := fn(string(line[:len(line)-1])); err != nil {
			return err
		}
	}
}
