package docker

import (
	"context"
	"strconv"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// user returns the ids of the container's user. The engine could give it the
// files by itself, but one of 20.10 looks its name up on its own machine.
func (s *session) user(ctx context.Context, f *found) (uid, gid int, err error) {
	user := f.container.Config.User
	if user == "" {
		return 0, 0, nil
	}
	passwd, err := s.readFile(ctx, f.container.ID, "/etc/passwd")
	if err != nil {
		return 0, 0, err
	}
	group, err := s.readFile(ctx, f.container.ID, "/etc/group")
	if err != nil {
		return 0, 0, err
	}
	uid, gid, ok := ids(user, string(passwd), string(group))
	if !ok {
		return 0, 0, box.Errorf(box.ClassFailedPrecondition, "the image of box %s runs as %q, which is not in its /etc/passwd or /etc/group; name the user there, or by its numbers", f.identity.Name(), user)
	}
	return uid, gid, nil
}

// ids reads "user", "uid", and either with ":group" or ":gid", as an engine
// does: a number that no file knows is itself, of group 0.
func ids(user, passwd, group string) (uid, gid int, ok bool) {
	name, groupName, hasGroup := strings.Cut(user, ":")
	uid = number(name)
	if fields := lineOf(passwd, name); len(fields) > 3 {
		uid, gid = number(fields[2]), number(fields[3])
	}
	if hasGroup {
		gid = number(groupName)
		if fields := lineOf(group, groupName); len(fields) > 2 {
			gid = number(fields[2])
		}
	}
	return uid, gid, uid >= 0 && gid >= 0
}

// lineOf finds the line of a name, or of an id in its third field.
func lineOf(file, name string) []string {
	for line := range strings.Lines(file) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) > 2 && name != "" && (fields[0] == name || fields[2] == name) {
			return fields
		}
	}
	return nil
}

// number is -1 for what is none.
func number(text string) int {
	const most = 1<<31 - 1
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n <= most {
		return n
	}
	return -1
}
