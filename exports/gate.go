package exports

import "io"

// heldBack is more than what lies between the reading of a tar and the look at
// it: what a stream of the scanner keeps, a buffer of the copying, and headers.
const heldBack = 1 << 20

// gate lets a tar through to where it is stored, when what lies before was looked
// through and holds nothing that must stay out. Once it is shut nothing passes any
// more, and all else is taken for nothing.
type gate struct {
	to   io.Writer
	hold bool // else everything passes at once
	shut func() bool
	wait func() bool // what was read is not all looked through yet
	held []byte
}

func (g *gate) Write(p []byte) (int, error) {
	switch {
	case !g.hold:
		return g.to.Write(p)
	case g.shut():
		g.held = nil
		return len(p), nil
	}
	g.held = append(g.held, p...)
	if ready := len(g.held) - heldBack; ready > 0 && !g.wait() {
		if err := g.pass(ready); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// open lets the rest through, after everything was looked through.
func (g *gate) open() error {
	if g.shut() {
		return nil
	}
	return g.pass(len(g.held))
}

func (g *gate) pass(n int) error {
	_, err := g.to.Write(g.held[:n])
	g.held = g.held[:copy(g.held, g.held[n:])]
	return err
}
