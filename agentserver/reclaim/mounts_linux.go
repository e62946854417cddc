package reclaim

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// mount is one line of a table of mounts: the directory root of the filesystem
// dev is seen at the path at.
type mount struct {
	id, parent    uint64
	dev, root, at string
}

// readMounts reads the table of a process; that never blocks, whatever the
// mounts do.
func readMounts(process string) ([]mount, error) {
	table, err := os.ReadFile("/proc/" + process + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the table of mounts: %w", err)
	}
	var out []mount
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		id, _ := strconv.ParseUint(fields[0], 10, 64)
		parent, _ := strconv.ParseUint(fields[1], 10, 64)
		out = append(out, mount{id, parent, fields[2], unescape(fields[3]), unescape(fields[4])})
	}
	return out, nil
}

// mountsBelow returns a mount point at or below the absolute path, if any.
func mountsBelow(abs string) (string, error) {
	all, err := readMounts("self")
	if err != nil {
		return "", err
	}
	for _, m := range all {
		if inside(m.at, abs) {
			return m.at, nil
		}
	}
	return "", nil
}

// inside reports whether the path is dir or below it.
func inside(place, dir string) bool {
	rest, ok := strings.CutPrefix(place, dir)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(dir, "/"))
}

// within translates a path under the mount into one of its filesystem.
func (m *mount) within(place string) string {
	return path.Join(m.root, strings.TrimPrefix(place, m.at))
}

// places says where on the filesystem dev a path may be, as a process sees it.
// Of two mounts at one place only one is in sight, but which one is not asked.
func places(all []mount, dev, place string) []string {
	var out []string
	for i := range all {
		if all[i].dev == dev && inside(place, all[i].at) {
			out = append(out, all[i].within(place))
		}
	}
	return out
}

// shown lists the directories of a filesystem that are mounted somewhere.
func shown(all []mount, dev string) []string {
	var out []string
	for i := range all {
		if all[i].dev == dev {
			out = append(out, all[i].root)
		}
	}
	return out
}

// covered lists where on a filesystem something is mounted; removing the
// directory there would take the mount away from whoever sees it.
func covered(all []mount, dev string) []string {
	byID := make(map[uint64]*mount, len(all))
	for i := range all {
		byID[all[i].id] = &all[i]
	}
	var out []string
	for i := range all {
		if on := byID[all[i].parent]; on != nil && on != &all[i] && on.dev == dev && inside(all[i].at, on.at) {
			out = append(out, on.within(all[i].at))
		}
	}
	return out
}

// unescape reads the octal form in which the kernel writes blanks.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
