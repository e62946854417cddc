package reclaim

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/box"
)

// evidence returns how the open directory was recognised as what the rule says,
// and the reason to leave it; both of one that is recognised and kept. It reads this directory, and the one it is in, and
// no deeper, since it is asked again while the conversation is held.
func (r *Reclaimer) evidence(rule *rule, owner *placed, place string, fd int, names []dirEntry) (evidence, why string) {
	if rule.tier == box.TierRuntime {
		if owner.LastActive.IsZero() {
			return "runtime of the conversation, last active at an unknown time", ""
		}
		// The time is part of it: a conversation that was used since is another.
		return "runtime of the conversation, last active at " + owner.LastActive.UTC().Format(time.RFC3339Nano) + " by " + owner.LastActiveFrom, ""
	}
	evidence, why = r.tree.recognise(rule, place, fd, names)
	switch {
	case why != "":
		return evidence, why
	case rule.id == "uv" && r.uvLinks(owner.Home):
		return "", "uv is set to link packages from its cache into environments"
	}
	return evidence, ""
}

// recognise is evidence without what only the box can tell. The path place is
// relative to the tree.
func (t *tree) recognise(rule *rule, place string, fd int, names []dirEntry) (evidence, why string) {
	found := signs{names: plain(names), tagged: t.tagged(fd), within: func(file string) bool {
		return slices.ContainsFunc(names, func(entry dirEntry) bool { return t.hasFile(fd, entry.name+"/"+file) })
	}}
	if len(rule.beside)+len(rule.besideSome) > 0 {
		parent, beside, err := t.list(t.fd, rule.parent(place))
		if err != nil {
			return "", "what is beside it cannot be read: " + err.Error()
		}
		unix.Close(parent)
		found.beside = plain(beside)
	}
	evidence, why = rule.judge(found)
	if why == "" {
		why = rule.keep
	}
	return evidence, why
}

// hasFile reports whether a regular file is there.
func (t *tree) hasFile(at int, name string) bool {
	fd, err := t.open(at, name, unix.O_PATH)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

func plain(entries []dirEntry) []string {
	out := make([]string, 0, len(entries))
	for _, entry := range entries {
		out = append(out, entry.name)
	}
	return out
}

// uvLinks reports whether environments point into uv's cache by links, which
// deleting it would break.
func (r *Reclaimer) uvLinks(home string) bool {
	if strings.EqualFold(r.opts.Env("UV_LINK_MODE"), "symlink") {
		return true
	}
	for _, place := range []string{".config/uv/uv.toml", ".config/uv.toml"} {
		text, err := r.tree.read(r.tree.fd, path.Join(home, place))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return true // it is there and cannot be read: leave the cache
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "link-mode") && strings.Contains(line, "symlink") {
				return true
			}
		}
	}
	return false
}

// maxSmall bounds the files that are read for signs.
const maxSmall = 64 << 10

// read returns the text of a small regular file; one that is larger than
// maxSmall is an error, since half of it proves nothing.
func (t *tree) read(at int, name string) (string, error) {
	fd, err := t.open(at, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return "", err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular() || info.Size() > maxSmall:
		return "", errors.New("is no small file")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSmall))
	return string(text), err
}

// maxDepth bounds walks that keep a descriptor open for each level.
const maxDepth = 256

// originFile is where maven notes from which repository each file of a
// directory came; "mvn install" leaves the repository empty.
const originFile = "_remote.repositories"

// builtHere says whether maven's repository holds something that was put there
// by "mvn install", which exists nowhere else; what cannot be told counts.
func (t *tree) builtHere(ctx context.Context, fd int, names []dirEntry, depth int) string {
	if ctx.Err() != nil || depth > maxDepth {
		return "cannot tell whether something in it was built here"
	}
	var artifacts []string
	for _, entry := range names {
		switch {
		case t.kindOf(fd, entry) == unix.DT_DIR:
			child, below, err := t.list(fd, entry.name)
			if err != nil {
				return "cannot tell whether something in it was built here: " + err.Error()
			}
			why := t.builtHere(ctx, child, below, depth+1)
			unix.Close(child)
			if why != "" {
				return why
			}
		case slices.Contains([]string{".jar", ".pom", ".war", ".aar", ".ear", ".zip"}, path.Ext(entry.name)):
			artifacts = append(artifacts, entry.name)
		}
	}
	if len(artifacts) == 0 {
		return ""
	}
	origins, err := t.read(fd, originFile)
	for _, name := range artifacts {
		from := ""
		for line := range strings.Lines(origins) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name+">"); ok {
				from = strings.TrimSuffix(rest, "=")
			}
		}
		if err != nil || from == "" {
			return "holds " + name + ", which came from no repository and exists nowhere else"
		}
	}
	return ""
}

// Recognise says which rule is about a directory that git ignores as a whole:
// dir is relative to the work tree, an absolute path. why is the reason when no
// rule is, or when something in it must stay; whatever cannot be told is such a
// reason. It changes nothing.
func (c *Catalogue) Recognise(ctx context.Context, workTree, dir string) (rule, why string) {
	dir = path.Clean(dir)
	if !filepath.IsLocal(dir) || dir == "." {
		return "", "is no directory inside the work tree"
	}
	t, err := openTree(workTree)
	if err != nil {
		return "", err.Error()
	}
	defer t.close()
	why = "no rule is about it"
	for i := range c.rules {
		one := &c.rules[i]
		if one.in != inWorkspace || !one.endsIn(dir) {
			continue
		}
		fd, names, err := t.list(t.fd, dir)
		if err != nil {
			return "", refusal(err)
		}
		if _, why = t.recognise(one, dir, fd, names); why == "" {
			sum := newTally()
			if err := t.measure(ctx, fd, names, one.look.below(), sum); err != nil {
				why = err.Error()
			} else if why = sum.stay; why == "" && sum.unread > 0 {
				why = "some directories below could not be read"
			}
		}
		unix.Close(fd)
		if why == "" {
			return one.id, ""
		}
	}
	return "", why
}
