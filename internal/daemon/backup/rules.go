package backup

import (
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Reasons to leave something out, as people read them.
const (
	leftBackups  = "earlier backups (backups/)"
	leftDemo     = "data of the demo (demo/)"
	leftLive     = "locks, addresses and unfinished writes, which mean something only while running"
	leftTrash    = "directories of boxes that are being deleted"
	leftBoxes    = "directories of boxes (--no-boxes)"
	leftSpecial  = "sockets, pipes and devices"
	leftMounts   = "file systems mounted inside a box"
	leftNowhere  = "" // replaced by the engine's own copy, or of the file system
	boxesMark    = ".engine-id"
	instancesDir = "boxes" // below it, by default, one directory per instance
)

// rules say what of a data directory is left out. Paths are relative to it,
// with slashes.
type rules struct {
	instances []string // directories of local instances
	exports   string   // the export store; empty when it is elsewhere
	noBoxes   bool
}

// leaves returns whether the entry is left out, and why.
func (r rules) leaves(rel string, mode fs.FileMode) (why string, out bool) {
	if !mode.IsDir() && !mode.IsRegular() && mode&fs.ModeSymlink == 0 {
		return leftSpecial, true
	}
	dir, base := path.Split(rel)
	switch {
	case rel == "backups":
		return leftBackups, true
	case rel == "demo":
		return leftDemo, true
	case rel == "lost+found":
		return leftNowhere, true // the file system's own, and unreadable
	case dir == "" && (strings.HasPrefix(base, ".installation.") || strings.HasPrefix(base, stagePattern)):
		return leftLive, true
	case dir == engineDir+"/" && strings.HasPrefix(base, path.Base(dataFile)):
		return leftNowhere, true
	case rel == engineDir+"/lock", rel == restoringFile:
		return leftLive, true
	case r.exports != "" && rel == path.Join(r.exports, ".incoming"):
		return leftLive, true
	}
	for _, instance := range r.instances {
		if below, ok := strings.CutPrefix(rel, prefix(instance)); ok {
			if why, out := r.leavesOfInstance(below); out {
				return why, true
			}
		}
	}
	return "", false
}

// leavesOfInstance is leaves for a path below the directory of an instance.
func (r rules) leavesOfInstance(rel string) (why string, out bool) {
	part := strings.Split(rel, "/")
	base := part[len(part)-1]
	switch {
	case len(part) == 2 && part[0] == "trash":
		return leftTrash, true
	case strings.HasPrefix(base, ".new-") && (len(part) == 1 || len(part) == 2 && (part[0] == "control" || part[0] == "boxes")),
		len(part) == 2 && part[0] == "control" && strings.HasSuffix(base, ".lock"),
		len(part) == 4 && part[0] == "boxes" && part[2] == "run" && (base == "address" || base == "boxd.lock"):
		return leftLive, true
	case len(part) == 2 && part[0] == "boxes" && base != boxesMark && r.noBoxes:
		// The mark stays: without it the driver would take the place for an
		// unmounted one and refuse to start.
		return leftBoxes, true
	}
	return "", false
}

// inBox reports whether rel is the directory of a box or below it.
func (r rules) inBox(rel string) bool {
	for _, instance := range r.instances {
		if below, ok := strings.CutPrefix(rel, prefix(instance)+"boxes/"); ok && below != "" {
			return true
		}
	}
	return false
}

// order puts the names in a directory into the order of the archive: the
// engine first, by name, and the boxes after the records about them, so that a
// box that is created meanwhile has no record of a directory that is missing.
func (r rules) order(rel string, names []string) {
	last := ""
	if slices.Contains(r.instances, path.Clean(rel)) {
		last = "boxes"
	}
	rank := func(name string) int {
		switch {
		case rel == "" && name == engineDir:
			return 0
		case name == last:
			return 2
		}
		return 1
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
}

// resolve returns a path without links, as far as it is there.
func resolve(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	missing := ""
	for at := name; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, missing)
		}
		if at == filepath.Dir(at) {
			return name
		}
		missing = filepath.Join(filepath.Base(at), missing)
	}
}

// Within reports whether a backup of dataDir takes what is at name: it lies
// below it, is behind no link that leads out, and is not left out.
func Within(dataDir, name string) bool {
	rel, ok := below(resolve(dataDir), resolve(name))
	if !ok {
		return false
	}
	top, _, _ := strings.Cut(rel, "/")
	_, out := rules{}.leaves(top, fs.ModeDir)
	return !out
}

// prefix returns what the paths below dir begin with.
func prefix(dir string) string {
	if dir == "." {
		return ""
	}
	return dir + "/"
}

// below returns dir relative to root, with slashes, "." for root itself; false
// when it is not below it. Both are without links.
func below(root, dir string) (string, bool) {
	rel, err := filepath.Rel(root, dir)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false
	}
	return filepath.ToSlash(rel), true
}
