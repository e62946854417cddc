package repo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// Settled says what a git directory that we made is to be.
type Settled struct {
	Head    Head
	Remotes []Remote
	// Refs are all that it has now.
	Refs []Ref
	// Stashes are to be its stash, newest first. Of those that its references do
	// not name nothing becomes of.
	Stashes []Stash
	Shallow bool
	// Logged says that its head and logs came with it.
	Logged bool
}

// Settle makes a repository of a git directory that [Git.Unbundle] made, or that
// was made of files: its settings, which are ours and name no program, its head,
// its remotes, its stash, and a log that names what references below
// [RescueRefs] name, so that it counts as what it was. It returns what it could
// not take over.
func (g *Git) Settle(ctx context.Context, dir string, to Settled) (left []string, err error) {
	remotes, left := remoteLines(to.Remotes)
	kept, err := writeStash(dir, to)
	if err != nil {
		return nil, err
	}
	// A stash keeps its own commits. As references they would count as work of
	// another kind.
	if len(kept) > 0 {
		refs := make([]Ref, 0, len(to.Refs))
		for _, ref := range to.Refs {
			if !kept[ref.ID] || !strings.HasPrefix(ref.Name, RescueRefs) {
				refs = append(refs, ref)
			}
		}
		if err := writeRefs(dir, refs); err != nil {
			return nil, err
		}
		to.Refs = refs
	}
	if to.Shallow {
		commits, err := g.CutOff(ctx, dir)
		if err != nil {
			return nil, err
		}
		if len(commits) > 0 {
			if err := writeFile(dir, "shallow", strings.Join(commits, "\n")+"\n"); err != nil {
				return nil, err
			}
		}
	}
	objects := ""
	if len(to.Head.ID) == 64 || len(to.Refs) > 0 && len(to.Refs[0].ID) == 64 {
		objects = "sha256"
	}
	storage := ""
	if _, err := os.Lstat(filepath.Join(dir, "reftable")); err == nil {
		storage = "reftable"
	}
	if err := writeConfig(dir, objects, storage, remotes); err != nil {
		return nil, err
	}
	var rescued []string
	for _, ref := range to.Refs {
		if strings.HasPrefix(ref.Name, RescueRefs) {
			rescued = append(rescued, ref.ID)
		}
	}
	if to.Logged {
		return left, nil
	}
	return left, setHead(dir, to.Head, rescued)
}

// AddWorktree puts a working tree that will lie at workTree on the record of a
// repository that we made, whose git directory will be at home, and returns the
// record's directory and the text of the working tree's .git file.
func AddWorktree(dir, home, workTree string, head Head) (record, pointer string, err error) {
	if err := os.MkdirAll(filepath.Join(dir, "worktrees"), 0o755); err != nil { //nolint:gosec // like git's own
		return "", "", fmt.Errorf("make a worktree's record: %w", err)
	}
	name := filepath.Base(workTree)
	for n := 1; ; n++ {
		record = filepath.Join(dir, "worktrees", name)
		if err = os.Mkdir(record, 0o755); !errors.Is(err, fs.ErrExist) { //nolint:gosec // as above
			break
		}
		name = filepath.Base(workTree) + strconv.Itoa(n)
	}
	if err != nil {
		return "", "", fmt.Errorf("make a worktree's record: %w", err)
	}
	err = errors.Join(
		writeFile(record, "commondir", "../..\n"),
		writeFile(record, "gitdir", filepath.Join(workTree, ".git")+"\n"),
		setHead(record, head, nil),
	)
	return record, "gitdir: " + filepath.Join(home, "worktrees", name) + "\n", err
}

// ReadIndex makes the index at place, that of a commit of the repository in dir
// and then as a patch changes it; staged may be nil. It looks at no working tree.
// With a patch that git does not take it is that of the commit. Unknown for a
// commit that is none: git could take it for an option.
func (g *Git) ReadIndex(ctx context.Context, dir, place, commit string, staged io.Reader) error {
	if commit != "" && !isID(commit) {
		return noCommit(commit)
	}
	env := []string{"GIT_DIR=" + dir, "GIT_INDEX_FILE=" + place}
	start := run{dir: dir, env: env, args: []string{"read-tree", cmp.Or(commit, "--empty")}, stream: true}
	if commit != "" {
		if err := g.do(ctx, start); err != nil {
			return err
		}
	}
	if staged == nil {
		return nil
	}
	patches := newPatches(staged)
	for patches.next() {
		err := g.do(ctx, run{dir: dir, env: env, args: []string{"apply", "--cached", "--whitespace=nowarn"}, stdin: patches, stream: true})
		if err != nil {
			return errors.Join(err, g.do(ctx, start))
		}
	}
	return patches.err
}

func noCommit(id string) error {
	return box.Errorf(box.ClassUnknown, "a repository is said to be at %.60q, which is no commit", id)
}

// setHead writes what a working tree is at, and the log of it.
func setHead(dir string, head Head, rescued []string) error {
	text := "ref: refs/heads/" + head.Branch
	switch {
	case head.Branch == "" && head.ID == "":
		return nil // nothing is known of it: as it is
	case head.Branch == "":
		text = head.ID
	}
	if !headForm.MatchString(text) || strings.Contains(text, "..") {
		return box.Errorf(box.ClassUnknown, "a repository is said to be at %.60q, which git would not take", text)
	}
	if head.ID != "" && !isID(head.ID) {
		return noCommit(head.ID)
	}
	if err := writeFile(dir, "HEAD", text+"\n"); err != nil || head.ID == "" {
		return err
	}
	var log strings.Builder
	for _, id := range rescued {
		log.WriteString(logLine("", id, "restored: nothing but a log or a stash named it"))
	}
	log.WriteString(logLine("", head.ID, "restored from an export"))
	return writeLog(dir, "HEAD", log.String())
}

// logLine is a line of a reflog.
func logLine(before, after, why string) string {
	if before == "" {
		before = strings.Repeat("0", len(after))
	}
	return fmt.Sprintf("%s %s boxkeeper <boxkeeper@localhost> %d +0000\t%s\n", before, after, time.Now().Unix(), oneLine(why))
}

func writeLog(dir, name, text string) error {
	if err := os.MkdirAll(filepath.Join(dir, "logs", filepath.Dir(name)), 0o755); err != nil { //nolint:gosec // like git's own
		return fmt.Errorf("make the log of a git directory: %w", err)
	}
	return writeFile(dir, filepath.Join("logs", name), text)
}

// writeStash writes the log that is a stash, and returns what is in it.
func writeStash(dir string, to Settled) (map[string]bool, error) {
	newest, there := "", map[string]bool{}
	for _, ref := range to.Refs {
		there[ref.ID] = true
		if ref.Name == "refs/stash" {
			newest = ref.ID
		}
	}
	if newest == "" {
		return nil, nil //nolint:nilnil // there is no stash
	}
	list := to.Stashes
	if len(list) == 0 || list[0].ID != newest {
		// An archive of an earlier version, which knew no more of it.
		list = []Stash{{ID: newest, Subject: "restored"}}
	}
	kept := map[string]bool{}
	var log strings.Builder
	before := ""
	for _, one := range slices.Backward(list) {
		if isID(one.ID) && there[one.ID] {
			log.WriteString(logLine(before, one.ID, one.Subject))
			before, kept[one.ID] = one.ID, true
		}
	}
	return kept, writeLog(dir, "refs/stash", log.String())
}

var (
	remoteForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.+-]*(/[A-Za-z0-9][A-Za-z0-9_.+-]*)*$`)
	// helper is an address that names the program to reach it with.
	helper = regexp.MustCompile(`^[A-Za-z0-9+.-]*::`)
)

// remoteLines are the settings of remotes. One that git could take for a command
// is left.
func remoteLines(remotes []Remote) (lines, left []string) {
	for _, one := range remotes {
		odd := strings.ContainsFunc(one.URL, func(r rune) bool { return r < ' ' || r == 0x7f })
		if !remoteForm.MatchString(one.Name) || strings.Contains(one.Name, "..") || strings.HasSuffix(one.Name, ".lock") || strings.HasSuffix(one.Name, ".") ||
			one.URL == "" || odd || one.URL[0] == '-' || helper.MatchString(one.URL) {
			left = append(left, fmt.Sprintf("the remote %.60q was left out: its name or address is none that git should be given", oneLine(one.Name)))
			continue
		}
		quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
		lines = append(lines, fmt.Sprintf("[remote \"%s\"]\n\turl = \"%s\"\n\tfetch = +refs/heads/*:refs/remotes/%s/*", one.Name, quote.Replace(one.URL), one.Name))
	}
	return lines, left
}

// writeConfig writes the settings of a git directory of ours.
func writeConfig(dir, objects, storage string, more []string) error {
	version := "0"
	var extensions []string
	if objects != "" && objects != "sha1" {
		version, extensions = "1", append(extensions, "\tobjectformat = "+objects)
	}
	if storage != "" {
		version, extensions = "1", append(extensions, "\trefstorage = "+storage)
	}
	lines := []string{"[core]\n\trepositoryformatversion = " + version + "\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true"}
	if len(extensions) > 0 {
		lines = append(append(lines, "[extensions]"), extensions...)
	}
	return writeFile(dir, "config", strings.Join(append(lines, more...), "\n")+"\n")
}

// NotCarried says what of a git directory no archive holds, and nobody takes out
// of one: it may hold credentials or name programs, has an entry of its own, or
// says that settings and objects lie elsewhere. Some filesystems do not tell cases
// apart.
func NotCarried(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "hooks", "config", "config.worktree", "credentials", "fetch_head", "modules", "lfs", "commondir", "gitdir":
		return true
	}
	return strings.HasSuffix(name, ".lock")
}
