package reclaim

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is what /proc tells of one.
type process struct {
	pid, parent string
	uid         int
	command     string
	denied      bool // something of it may not be read by us
}

// kernelThread is PF_KTHREAD in the flags of /proc/<pid>/stat.
const kernelThread = 0x00200000

// read fills in what everybody may know; false means that it has nothing open.
func (p *process) read() bool {
	text, err := os.ReadFile(p.at("stat"))
	if err != nil {
		if p.deny(err); !p.denied {
			return false
		}
		// With hidepid nothing is told: it counts as one of its owner's.
		info, err := os.Stat(p.at(""))
		if err != nil {
			return false
		}
		p.uid = ownerOf(info)
		return true
	}
	// The command is in brackets and may hold any byte.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return false
	}
	p.command = string(text[open+1 : end])
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, _ := strconv.ParseUint(fields[6], 10, 64)
	if fields[0] == "Z" || fields[0] == "X" || flags&kernelThread != 0 {
		return false
	}
	p.parent = fields[1]
	status, err := os.ReadFile(p.at("status"))
	if err != nil {
		p.deny(err)
		return p.denied
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			if each := strings.Fields(ids); len(each) > 1 {
				p.uid, _ = strconv.Atoi(each[1]) // the one that counts for access
			}
		}
	}
	return true
}

func ownerOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return 0
}

func (p *process) at(name string) string { return "/proc/" + p.pid + "/" + name }

// name says it to a person.
func (p *process) name() string {
	if p.command == "" {
		return "process " + p.pid
	}
	return "process " + p.pid + " (" + p.command + ")"
}

// deny notes an error that means: it is there and not for us to see.
func (p *process) deny(err error) {
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		p.denied = true
	}
}

// link reads one of its links, empty when there is none.
func (p *process) link(name string) string {
	to, err := os.Readlink(p.at(name))
	p.deny(err)
	return to
}

// files hands on the path of each open file.
func (p *process) files(look func(string)) {
	dir, err := os.Open(p.at("fd"))
	if err != nil {
		p.deny(err)
		return
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	p.deny(err)
	for _, name := range names {
		look(p.link("fd/" + name))
	}
}

// mapped hands on the paths of mapped files; without foreign only those that
// begin with prefix matter.
func (p *process) mapped(foreign bool, prefix string, look func(string)) {
	maps, err := os.ReadFile(p.at("maps"))
	if err != nil {
		p.deny(err)
		return
	}
	if !foreign && !bytes.Contains(maps, []byte(prefix)) {
		return
	}
	for line := range strings.Lines(string(maps)) {
		if at := strings.IndexByte(line, '/'); at >= 0 {
			look(unescape(strings.TrimSuffix(line[at:], "\n")))
		}
	}
}

// words are the places that its command line names, relative ones from its
// working directory on, and those of the environments that it runs in.
func (p *process) words(cwd string) []string {
	var out []string
	line, err := os.ReadFile(p.at("cmdline"))
	p.deny(err)
	for word := range strings.SplitSeq(string(line), "\x00") {
		out = append(out, word)
		if strings.Contains(word, "/") && !filepath.IsAbs(word) && cwd != "" {
			out = append(out, filepath.Join(cwd, word))
		}
	}
	environ, err := os.ReadFile(p.at("environ"))
	p.deny(err)
	for variable := range strings.SplitSeq(string(environ), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		if name == "VIRTUAL_ENV" || name == "CONDA_PREFIX" || name == "NODE_PATH" {
			out = append(out, value)
		}
	}
	return out
}

// heldOpen lists the files that a process has open under a name that was
// deleted: the blocks of such a one come free only when it is closed, also when
// its last name goes.
func heldOpen() map[inode]bool {
	out := map[inode]bool{}
	links, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, dir := range links {
		p := &process{pid: filepath.Base(filepath.Dir(dir))}
		files, err := os.ReadDir(dir)
		if err != nil {
			continue // ended, or not for us to see: what it holds is not known
		}
		for _, file := range files {
			name := "fd/" + file.Name()
			if to := p.link(name); !strings.HasSuffix(to, " (deleted)") || strings.HasPrefix(to, "/memfd:") {
				continue
			}
			// Through the link, so that the file itself is asked, and without
			// waiting for a file server.
			var stx unix.Statx_t
			const flags = unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
			if unix.Statx(unix.AT_FDCWD, p.at(name), flags, unix.STATX_INO|unix.STATX_TYPE, &stx) == nil {
				out[inode{unix.Mkdev(stx.Dev_major, stx.Dev_minor), stx.Ino}] = true
			}
		}
	}
	return out
}
