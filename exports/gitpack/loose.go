package gitpack

import (
	"io"
	"strconv"
	"strings"
)

// maxLooseHead is more than the head of a loose object has: its kind and its size.
const maxLooseHead = 32

// Loose is [Reader.Bundle] for one object that lies in a file of its own.
func (r *Reader) Loose(from io.Reader, of Format, v Visitor) error {
	r.begin(from, of, v)
	if err := r.unzip(); err != nil {
		return r.broken(err, "the object")
	}
	kind, size, err := r.looseHead()
	if err != nil {
		return err
	}
	if err := r.content(&object{kind: kind}, size); err != nil {
		return err
	}
	return r.ended()
}

// looseHead reads the kind and the size, byte by byte: what follows is content.
func (r *Reader) looseHead() (Kind, int64, error) {
	var head []byte
	for {
		var c [1]byte
		if _, err := io.ReadFull(r.zip, c[:]); err != nil {
			return "", 0, r.broken(err, "the object")
		}
		if c[0] == 0 {
			break
		}
		if head = append(head, c[0]); len(head) > maxLooseHead {
			return "", 0, r.wrong("it is no object of git")
		}
	}
	name, length, _ := strings.Cut(string(head), " ")
	size, err := strconv.ParseUint(length, 10, 62)
	switch kind := Kind(name); kind {
	case Commit, Tree, Blob, Tag:
		if err == nil {
			return kind, int64(size), nil
		}
	case References, Difference:
	}
	return "", 0, r.wrong("it is no object of git")
}
