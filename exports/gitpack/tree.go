package gitpack

import (
	"bytes"
	"io"
)

// treeNames passes on the names in a tree. All else, modes and ids, becomes line
// breaks: it is no text, and a name stays where it is.
type treeNames struct {
	to   io.Writer
	id   int // bytes
	name bool
	skip int // of an id
}

func (t *treeNames) Write(p []byte) (int, error) {
	t.blank(p)
	return t.to.Write(p)
}

// blank changes p.
func (t *treeNames) blank(p []byte) {
	for len(p) > 0 {
		n := len(p)
		switch {
		case t.skip > 0:
			n = min(n, t.skip)
			t.skip -= n
			fill(p[:n])
		case t.name:
			if i := bytes.IndexByte(p, 0); i >= 0 {
				n, t.name, t.skip = i+1, false, t.id
				p[i] = '\n'
			}
		default:
			if i := bytes.IndexByte(p, ' '); i >= 0 {
				n, t.name = i+1, true
			}
			fill(p[:n])
		}
		p = p[n:]
	}
}

func fill(p []byte) {
	for i := range p {
		p[i] = '\n'
	}
}
