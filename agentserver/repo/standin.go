package repo

import (
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

	"github.com/openhands/boxkeeper/box"
)

// Repository is a repository that questions can be asked about, at the state of
// its files when each is asked. It is safe for concurrent use until Close.
type Repository struct {
	git *Git
	place
	head     string // content of HEAD when it was opened
	settings settings
	standIn  string
}

// Open prepares a stand-in for the repository whose working tree is dir, or
// which is dir when it is bare. Close removes it. NotFound when there is no
// repository, FailedPrecondition when its files cannot be trusted to be one: a
// link, a record of another directory, another user's, a format that is not
// known. With any error, take it as full of work.
func (g *Git) Open(ctx context.Context, dir string) (*Repository, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	open := func() (*Repository, error) { return g.open(ctx, dir) }
	return inTime(g, ctx.Done(), dir, open, (*Repository).Close)
}

func (g *Git) open(ctx context.Context, dir string) (*Repository, error) {
	at, err := locate(dir)
	if err != nil {
		return nil, err
	}
	r := &Repository{git: g, place: at}
	if r.head, err = readHead(at.gitDir); err != nil {
		return nil, err
	}
	if r.settings, err = g.readSettings(ctx, at); err != nil {
		return nil, err
	}
	if r.standIn, err = g.makeStandIn(r.settings, r.head, r.fill); err != nil {
		return nil, err
	}
	return r, nil
}

// Close removes the stand-in.
func (r *Repository) Close() { _ = os.RemoveAll(r.standIn) } // what stays is a few kilobytes in the place for temporary files

// WorkTree is the directory, empty for a bare repository.
func (r *Repository) WorkTree() string { return r.workTree }

// GitDir is where the state of this working tree is kept.
func (r *Repository) GitDir() string { return r.gitDir }

// CommonDir is where objects and references are, shared by all worktrees.
func (r *Repository) CommonDir() string { return r.common }

// Linked reports whether it is a worktree added to a repository.
func (r *Repository) Linked() bool { return r.linked }

// Shallow reports whether the history was cut off when it was cloned.
func (r *Repository) Shallow() bool {
	_, err := os.Lstat(filepath.Join(r.common, "shallow"))
	return !errors.Is(err, fs.ErrNotExist)
}

var headForm = regexp.MustCompile(`^(ref: refs/[^\x00-\x20~^:?*\[\\\x7f]+|[0-9a-f]{40}|[0-9a-f]{64})$`)

func readHead(gitDir string) (string, error) {
	text, err := small(filepath.Join(gitDir, "HEAD"))
	if err != nil {
		return "", err
	}
	text = strings.TrimRight(text, "\n")
	if !headForm.MatchString(text) || strings.Contains(text, "..") {
		return "", refused("its HEAD is not understood")
	}
	return text, nil
}

// settings is what of a configuration answers depend on.
type settings struct {
	lines   []string // in the form of a configuration file
	remotes []Remote
}

// Remote is one remote, without what its address holds of a user.
type Remote struct{ Name, URL string }

// allowed are the settings that are copied, with the values that they may have.
// None of them names a program, a path or an address.
var allowed = map[string]*regexp.Regexp{ //nolint:gochecknoglobals // a constant table
	"core.filemode": truth, "core.symlinks": truth, "core.ignorecase": truth, "core.precomposeunicode": truth,
	"core.autocrlf": regexp.MustCompile(`(?i)^(true|false|input)$`), "core.eol": regexp.MustCompile(`(?i)^(lf|crlf|native)$`),
	"core.sparsecheckout": truth, "core.sparsecheckoutcone": truth, "index.sparse": truth,
	"extensions.objectformat": format, "extensions.compatobjectformat": format, "extensions.refstorage": format,
}

var (
	truth  = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|1|0)$`)
	format = regexp.MustCompile(`^[a-z0-9]{1,20}$`)
)

// passive are the extensions that change nothing for a reader; what else begins
// with "extensions." is not known, and then nor is the repository.
var passive = []string{ //nolint:gochecknoglobals // a constant table
	"extensions.noop", "extensions.preciousobjects", "extensions.partialclone",
	"extensions.worktreeconfig", "extensions.relativeworktrees",
}

// readSettings reads the configuration as data: git prints the file and does
// nothing it says, includes among it.
func (g *Git) readSettings(ctx context.Context, at place) (settings, error) {
	reading := &reading{urls: map[string]string{}, version: "0"}
	if err := g.readConfig(ctx, filepath.Join(at.common, "config"), reading.note); err != nil {
		return settings{}, err
	}
	if reading.own {
		if err := g.readConfig(ctx, filepath.Join(at.gitDir, "config.worktree"), reading.note); err != nil {
			return settings{}, err
		}
	}
	if reading.version != "0" && reading.version != "1" {
		return settings{}, refused("its format has version " + oneLine(reading.version) + ", which is not known here")
	}
	out := reading.settings
	out.lines = append(out.lines, "[core]\n\trepositoryformatversion = "+reading.version+"\n\tbare = "+strconv.FormatBool(at.workTree == ""))
	for name, url := range reading.urls {
		out.remotes = append(out.remotes, Remote{Name: name, URL: withoutUser(url)})
	}
	slices.SortFunc(out.remotes, func(a, b Remote) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// readConfig calls fn with each setting of one file, which may be missing.
func (g *Git) readConfig(ctx context.Context, file string, fn func(key, value string) error) error {
	// By descriptor, since a name could be anything by the time git opens it.
	in, err := openRegular(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	what := run{
		dir: "/", env: []string{"GIT_DIR=/nonexistent"}, stdin: in,
		args: []string{"config", "--file", "-", "--no-includes", "--null", "--list"},
	}
	what.out = func(r io.Reader) error {
		return eachRecord(r, func(record string) error {
			key, value, set := strings.Cut(record, "\n")
			if !set {
				value = "true"
			}
			return fn(key, value)
		})
	}
	if err := g.do(ctx, what); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	return nil
}

// reading is what the files of a configuration said so far.
type reading struct {
	settings
	version string
	own     bool // each worktree has a file of its own
	urls    map[string]string
}

func (r *reading) note(key, value string) error {
	lower := strings.ToLower(key)
	form, copied := allowed[lower]
	switch {
	case copied && !form.MatchString(value):
		return refused("its setting " + lower + " is not understood")
	case copied:
		section, name, _ := strings.Cut(lower, ".")
		r.lines = append(r.lines, "["+section+"]\n\t"+name+" = "+value)
	case lower == "core.repositoryformatversion":
		r.version = value
	case slices.Contains(passive, lower):
		// Whatever it says: a file that is read for nothing changes nothing.
		r.own = r.own || lower == "extensions.worktreeconfig"
	case strings.HasPrefix(lower, "extensions."):
		return refused("it uses " + oneLine(lower) + ", which is not known here")
	case strings.HasPrefix(lower, "remote."):
		if name, ok := strings.CutSuffix(key[len("remote."):], ".url"); ok {
			r.urls[name] = value
		}
	}
	return nil
}

// withoutUser drops what an address says of a user: it may be a password. So may
// a query.
func withoutUser(url string) string {
	url, _, _ = strings.Cut(url, "?")
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return oneLine(url)
	}
	host, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(host, '@'); at >= 0 {
		host = host[at+1:]
	}
	return oneLine(scheme + "://" + host + "/" + path)
}

// makeStandIn makes a git directory of our own; fill adds what is the
// repository's. Where no place has room there is no answer.
func (g *Git) makeStandIn(set settings, head string, fill func(dir string) error) (string, error) {
	var last error
	for _, scratch := range g.opts.Scratch {
		dir, err := os.MkdirTemp(scratch, "boxd-git-")
		if err == nil {
			// "@" alone resolves in an empty refs directory too.
			err = errors.Join(
				os.WriteFile(filepath.Join(dir, "HEAD"), []byte(head+"\n"), 0o600),
				os.WriteFile(filepath.Join(dir, "config"), []byte(strings.Join(set.lines, "\n")+"\n"), 0o600),
				os.Mkdir(filepath.Join(dir, "info"), 0o700),
			)
			if err == nil {
				err = fill(dir)
			}
			if err == nil {
				return dir, nil
			}
			_ = os.RemoveAll(dir)
		}
		last = err
	}
	return "", box.Errorf(box.ClassUnavailable, "make a place to ask git from: %w", last)
}

// fill puts the repository's references, reflogs and lists into a stand-in, as
// links: they are read when a question is asked.
func (r *Repository) fill(dir string) error {
	links := map[string]string{
		"refs": r.common + "/refs", "packed-refs": r.common + "/packed-refs", "reftable": r.common + "/reftable",
		"shallow": r.common + "/shallow", "info/exclude": r.common + "/info/exclude",
		"info/attributes":      r.common + "/info/attributes",
		"info/sparse-checkout": r.gitDir + "/info/sparse-checkout", "logs/refs": r.common + "/logs/refs",
		"logs/HEAD": r.gitDir + "/logs/HEAD",
	}
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o700); err != nil {
		return err
	}
	shared, err := filepath.Glob(escapeGlob(r.gitDir) + "/sharedindex.*")
	if err != nil {
		return err
	}
	for _, file := range shared {
		links[filepath.Base(file)] = file
	}
	for name, to := range links {
		if _, err := os.Lstat(to); err != nil {
			continue
		}
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func escapeGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(text)
}

// ask is a run in the stand-in.
func (r *Repository) ask(args ...string) run {
	what := run{dir: r.standIn, args: args, env: []string{
		"GIT_DIR=" + r.standIn, "GIT_OBJECT_DIRECTORY=" + filepath.Join(r.common, "objects"),
		"GIT_INDEX_FILE=" + filepath.Join(r.gitDir, "index"),
	}}
	if r.workTree != "" {
		what.dir = r.workTree
		what.env = append(what.env, "GIT_WORK_TREE="+r.workTree)
	}
	return what
}
