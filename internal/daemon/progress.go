package daemon

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/openhands/boxkeeper/exports"
)

// progress writes lines, and a bar below them while something is transferred:
// on a terminal it moves, elsewhere only its end is written.
type progress struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	bar      string
}

func newProgress(out io.Writer) *progress {
	f, ok := out.(*os.File)
	return &progress{out: out, terminal: ok && term.IsTerminal(int(f.Fd()))} //nolint:gosec // a descriptor fits
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	_, _ = fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *progress) clear() {
	if p.bar != "" && p.terminal {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
	p.bar = ""
}

// transfer draws the bar. It is called from the workers.
func (p *progress) transfer(workspace string, at exports.Progress) {
	const width = 30
	p.mu.Lock()
	defer p.mu.Unlock()
	done := at.Stage == exports.StageManifest
	part := at.Done
	if done {
		part = at.Total
	}
	filled := 0
	if done {
		filled = width // of nothing, all is done
	}
	if at.Total > 0 {
		filled = width * part / at.Total
	}
	state := fmt.Sprintf("%d/%d %s", part, at.Total, at.Stage)
	switch {
	case at.Total > 0:
	case done:
		state = "its conversations are as they were" // none had to be fetched
	default:
		state = string(at.Stage)
	}
	bar := fmt.Sprintf("%s export [%s%s] %s", workspace, strings.Repeat("#", filled), strings.Repeat(".", width-filled), state)
	switch {
	case bar == p.bar:
	case done:
		p.clear()
		_, _ = fmt.Fprintln(p.out, bar)
	case p.terminal:
		_, _ = fmt.Fprint(p.out, "\r\x1b[K"+bar)
		p.bar = bar
	}
}

// size is a number of bytes as people read it.
func size(bytes int64) string {
	const unit = 1024
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	value, name := float64(bytes)/unit, 0
	for value >= unit && name < 3 {
		value /= unit
		name++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[name])
}
