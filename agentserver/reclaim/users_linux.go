package reclaim

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// users finds, for each trash entry, who uses it.
func (r *Reclaimer) users(was map[string]string) (map[string]string, error) {
	return r.tree.users(trashName, was)
}

// users finds, for each entry of dir, a process that has its working directory,
// its root, its program, an open file or a mapped file inside, in whatever
// mount namespace, and a mount that shows part of it or lies on it. was names
// the directory that a process uses by being started from it, pointed at it or
// working in it; an entry of an earlier pass has none. Our own process is left
// out, since it measures there.
//
// A process that may not be inspected and that may be inside makes it an error:
// nobody can tell, so nothing goes. That is every one of another user, unless
// the user can't enter the box or is root and the process was not started by
// ours: the machine's own services do not work in a box.
func (t *tree) users(dir string, was map[string]string) (map[string]string, error) {
	// A child of ours holds all of our descriptors until it runs its program. So
	// none is on its way while we look: those before have run theirs, and later
	// ones wait, for the milliseconds that it takes.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s, err := t.newSearch(dir, was)
	if err != nil {
		return nil, err
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the list of processes: %w", err)
	}
	for _, entry := range processes {
		if strings.Trim(entry.Name(), "0123456789") == "" {
			s.visit(entry.Name())
		}
	}
	if len(s.seen) == 0 {
		return nil, errors.New("the list of processes is empty")
	}
	return s.found, s.unknown()
}

// search is one look at all processes.
type search struct {
	trash  string            // as our own namespace sees it, with a slash at the end
	box    string            // as our own namespace sees it
	root   string            // where on its filesystem the box lies
	dev    string            // the filesystem of the trash
	within string            // where on it the trash lies, with a slash at the end
	was    map[string]string // trash entry to the path that it is used by
	open   bool              // other users may enter the box
	found  map[string]string // trash entry to who uses it
	space  string            // our mount namespace
	mounts map[string][]mount
	seen   map[string]*process
}

func (t *tree) newSearch(dir string, was map[string]string) (*search, error) {
	s := &search{was: was, found: map[string]string{}, mounts: map[string][]mount{}, seen: map[string]*process{}}
	// Where the box is now, as the links of other processes name it.
	root, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(t.fd))
	if err != nil {
		return nil, fmt.Errorf("find the box: %w", err)
	}
	s.box, s.trash = root, root+"/"+dir+"/"
	var st unix.Stat_t
	if err := unix.Fstat(t.fd, &st); err != nil {
		return nil, fmt.Errorf("read the box: %w", err)
	}
	s.open = st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid()
	if s.space, err = os.Readlink("/proc/self/ns/mnt"); err != nil {
		return nil, fmt.Errorf("find our mount namespace: %w", err)
	}
	own, err := readMounts("self")
	if err != nil {
		return nil, err
	}
	mount, err := mountOf(t.fd)
	if err != nil {
		return nil, fmt.Errorf("find the mount of the box: %w", err)
	}
	for i := range own {
		if own[i].id == mount {
			s.dev, s.root, s.within = own[i].dev, own[i].within(root), own[i].within(s.trash)+"/"
		}
	}
	s.note(shown(own, s.dev), "a mount that shows it")
	// A mount inside was carried along with its directory. What an earlier pass
	// left is deleted around it.
	for i := range own {
		s.hit(strings.TrimPrefix(own[i].at, s.trash), was != nil && strings.HasPrefix(own[i].at, s.trash), "a mount inside")
	}
	return s, nil
}

// entry returns in which trash entry rest, a path below the trash, lies.
func entry(rest string) string {
	name, _, _ := strings.Cut(strings.TrimSuffix(rest, " (deleted)"), "/")
	return name
}

// hit notes the user of the entry in which rest, a path below the trash, lies.
func (s *search) hit(rest string, ok bool, user string) {
	if ok && s.found[entry(rest)] == "" {
		s.found[entry(rest)] = user
	}
}

// note takes places on the filesystem of the trash.
func (s *search) note(all []string, user string) {
	for _, place := range all {
		rest, ok := strings.CutPrefix(place, s.within)
		s.hit(rest, ok && s.dev != "", user)
	}
}

// visit looks at one process.
func (s *search) visit(pid string) {
	p := &process{pid: pid}
	if !p.read() {
		return // ended, or a thread of the kernel
	}
	s.seen[pid] = p
	own := strconv.Itoa(os.Getpid())
	if pid == own {
		return
	}
	uses := s.uses(p)
	// The kernel says that a child of ours runs its program a moment before it
	// closes our descriptors there. What it uses itself is used later too.
	for wait := time.Millisecond; len(uses) > 0 && p.parent == own && wait < settleMost; wait *= 2 {
		time.Sleep(wait)
		uses = s.uses(p)
	}
	for name := range uses {
		s.hit(name, true, p.name())
	}
}

// settleMost ends the doubling of the wait for a child: about 60 ms in all.
const settleMost = 50 * time.Millisecond

// uses lists the entries that a process uses.
func (s *search) uses(p *process) map[string]bool {
	out := map[string]bool{}
	all := s.namespace(p)
	look := func(place string) {
		if rest, ok := strings.CutPrefix(place, s.trash); ok {
			out[entry(rest)] = true
		}
		for _, at := range places(all, s.dev, place) {
			if rest, ok := strings.CutPrefix(at, s.within); ok {
				out[entry(rest)] = true
			}
		}
	}
	cwd := p.link("cwd")
	look(cwd)
	look(p.link("root"))
	look(p.link("exe"))
	p.files(look)
	p.mapped(len(all) > 0, s.trash, look)
	if len(s.was) == 0 {
		return out
	}
	words, works := p.words(cwd), places(all, s.dev, cwd)
	for name, was := range s.was {
		rest, ok := strings.CutPrefix(was, s.box+"/")
		elsewhere := func(place string) bool { return ok && inside(place, path.Join(s.root, rest)) }
		if inside(cwd, was) || mentions(words, was) || slices.ContainsFunc(works, elsewhere) {
			out[name] = true
		}
	}
	return out
}

// namespace returns the mounts that the process sees when they are others than
// ours; its links name paths as it sees them.
func (s *search) namespace(p *process) []mount {
	space := p.link("ns/mnt")
	if space == s.space || space == "" {
		return nil
	}
	key := space + p.link("root")
	all, known := s.mounts[key]
	if known {
		return all
	}
	all, err := readMounts(p.pid)
	if err != nil {
		p.deny(err)
		return nil
	}
	s.mounts[key] = all
	s.note(append(shown(all, s.dev), covered(all, s.dev)...), "a mount in the namespace of "+p.name())
	return all
}

// unknown is an error when a process that could not be inspected may use
// anything.
func (s *search) unknown() error {
	own := os.Geteuid()
	for _, p := range s.seen {
		if !p.denied {
			continue
		}
		switch {
		case p.pid == "1": // the supervisor of the machine or the container
			continue
		case p.uid == own, p.uid != 0 && s.open, p.uid == 0 && s.startedBy(p, own):
		default:
			continue
		}
		return fmt.Errorf("%s of user %d may not be inspected", p.name(), p.uid)
	}
	return nil
}

// startedBy reports whether the process descends from one of the user.
func (s *search) startedBy(p *process, uid int) bool {
	for range len(s.seen) {
		if p = s.seen[p.parent]; p == nil {
			return false
		}
		if p.uid == uid {
			return true
		}
	}
	return false
}

// mentions reports whether one of the words names dir or something inside.
func mentions(words []string, dir string) bool {
	for _, word := range words {
		for at := strings.Index(word, dir); at >= 0; {
			rest := word[at+len(dir):]
			if rest == "" || !strings.ContainsRune(nameChars, rune(rest[0])) {
				return true
			}
			next := strings.Index(rest, dir)
			if next < 0 {
				break
			}
			at += len(dir) + next
		}
	}
	return false
}

// nameChars go on with a name, so that "/a/venv" is not found in "/a/venv2".
const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
