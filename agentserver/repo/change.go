package repo

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// programs are the settings that name a program and have a part in the middle
// that anybody may choose; these are overridden one by one.
var programs = regexp.MustCompile(`(?i)^(filter\..*\.(clean|smudge|process)|diff\..*\.(command|textconv)|merge\..*\.driver|credential\..*\.helper|gpg\..*\.program|remote\..*\.(uploadpack|receivepack|vcs|proxy|promisor)|alias\..*|pager\..*)$`)

// named are those without such a part.
var named = []string{ //nolint:gochecknoglobals // a constant table
	"core.sshCommand", "core.gitProxy", "core.askPass", "core.editor", "core.pager", "core.alternateRefsCommand",
	"diff.external", "credential.helper", "gpg.program", "sequence.editor", "core.attributesFile",
}

// change runs a command in the repository itself, with every setting overridden
// that names a program.
func (r *Repository) change(ctx context.Context, stdin io.Reader, args ...string) error {
	direct := []string{"GIT_DIR=" + r.common}
	var keys, values []string
	set := func(key, value string) { keys, values = append(keys, key), append(values, value) }
	for _, key := range named {
		set(key, "")
	}
	list := run{dir: r.common, env: direct, args: []string{"config", "--null", "--name-only", "--list"}}
	list.out = func(answer io.Reader) error {
		return eachRecord(answer, func(key string) error {
			if !programs.MatchString(key) {
				return nil
			}
			set(key, "")
			if rest, ok := strings.CutPrefix(strings.ToLower(key), "filter."); ok && rest != "" {
				set(key[:strings.LastIndexByte(key, '.')]+".required", "false")
			}
			return nil
		})
	}
	if err := r.git.do(ctx, list); err != nil {
		return err
	}
	env := append(direct, "GIT_CONFIG_COUNT="+strconv.Itoa(len(keys)))
	for i := range keys {
		n := strconv.Itoa(i)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+keys[i], "GIT_CONFIG_VALUE_"+n+"="+values[i])
	}
	return r.git.do(ctx, run{dir: r.common, env: env, stdin: stdin, args: args})
}

// Lock tells git to leave the worktree, for reason. An error may mean that it is
// locked already, by somebody else.
func (r *Repository) Lock(ctx context.Context, reason string) error {
	if !r.linked {
		return refused("it is the main checkout")
	}
	return r.change(ctx, nil, "worktree", "lock", "--reason", reason, "--", r.workTree)
}

// Locked returns the reason for which the worktree is locked, and whether it is.
// It reads the file, since a list of git's may be of a moment ago.
func (r *Repository) Locked() (reason string, locked bool) {
	text, err := small(filepath.Join(r.gitDir, "locked"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	return oneLine(text), true
}

// Unlock takes the lock away again.
func (r *Repository) Unlock(ctx context.Context) error {
	return r.change(ctx, nil, "worktree", "unlock", "--", r.workTree)
}

// Unlist makes git forget a worktree whose directory is gone. Its branch stays.
// It is never forced: what git refuses stays, and the error says why. It is an
// error of class FailedPrecondition when something is at the directory.
func (r *Repository) Unlist(ctx context.Context) error {
	if !r.linked {
		return refused("it is the main checkout")
	}
	if _, err := os.Lstat(r.workTree); !errors.Is(err, fs.ErrNotExist) {
		return refused("its directory is still there")
	}
	return r.change(ctx, nil, "worktree", "remove", "--", r.workTree)
}

// Keep adds references to the repository, all or none; those that are there
// already are set anew. It may be repeated.
func (r *Repository) Keep(ctx context.Context, refs []Ref) error {
	var lines strings.Builder
	for _, ref := range refs {
		if !isID(ref.ID) || !strings.HasPrefix(ref.Name, "refs/") || strings.ContainsAny(ref.Name, " \n\x00") {
			return box.Errorf(box.ClassInternal, "%q is no reference", ref.Name)
		}
		lines.WriteString("update " + ref.Name + "\x00" + ref.ID + "\x00\x00")
	}
	return r.change(ctx, strings.NewReader(lines.String()), "update-ref", "--stdin", "-z")
}
