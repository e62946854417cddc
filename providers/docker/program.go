package docker

import (
	"debug/elf"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

const (
	keyVariable = "OH_SESSION_API_KEYS_0"
	markBox     = "BOXKEEPER_BOX"
)

// program is boxd, as it is copied into a container.
type program struct {
	file *os.File
	size int64
	arch string // as images name it
}

func (p *program) close() { _ = p.file.Close() }

// archOf is the name that images have for what a program is built for; empty for
// what boxd is never built for.
func archOf(machine elf.Machine) string {
	switch machine { //nolint:exhaustive // there are two hundred
	case elf.EM_X86_64:
		return "amd64"
	case elf.EM_AARCH64:
		return "arm64"
	case elf.EM_ARM:
		return "arm"
	case elf.EM_RISCV:
		return "riscv64"
	case elf.EM_S390:
		return "s390x"
	}
	return ""
}

// CheckBoxd reports whether the program at path could be copied into boxes as
// boxd. FailedPrecondition: build another one. Each creation and each resume
// looks again; this is for who wants to know before.
func CheckBoxd(path string) error {
	p, err := openProgram(path)
	if err != nil {
		return err
	}
	p.close()
	return nil
}

// openProgram opens boxd and refuses one that could not run in any image: there
// is nothing in an image that it may count on.
func openProgram(path string) (*program, error) {
	const wanted = "build it with CGO_ENABLED=0 GOOS=linux, or take the one of a release"
	file, err := os.Open(path)
	if err != nil {
		return nil, box.Errorf(box.ClassFailedPrecondition, "open boxd, which is copied into boxes: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = box.Errorf(box.ClassFailedPrecondition, "boxd, %s, is not a file", path)
	}
	if err == nil {
		var arch string
		if arch, err = staticArch(file, path, wanted); err == nil {
			return &program{file: file, size: info.Size(), arch: arch}, nil
		}
	}
	_ = file.Close()
	return nil, err
}

func staticArch(file io.ReaderAt, path, wanted string) (string, error) {
	refuse := func(what string) (string, error) {
		return "", box.Errorf(box.ClassFailedPrecondition, "boxd, %s, %s; %s", path, what, wanted)
	}
	parsed, err := elf.NewFile(file)
	if err != nil {
		return refuse("is not a program for Linux (" + err.Error() + ")")
	}
	if parsed.Type != elf.ET_EXEC && parsed.Type != elf.ET_DYN {
		return refuse("is not a program but " + parsed.Type.String())
	}
	for _, p := range parsed.Progs {
		if p.Type == elf.PT_INTERP {
			return refuse("is linked dynamically")
		}
	}
	if libraries, err := parsed.ImportedLibraries(); err == nil && len(libraries) > 0 {
		return refuse("needs " + strings.Join(libraries, ", "))
	}
	arch := archOf(parsed.Machine)
	if arch == "" {
		return refuse("is for " + parsed.Machine.String())
	}
	return arch, nil
}

// environ is what boxd reads at its start: NAME=value entries that each end with
// a NUL byte. The image's own environment, its PATH for one, is under it.
func environ(name string, start driver.Start) ([]byte, error) {
	fixed := map[string]string{
		"HOME":   boxRoot + "/home",
		"TMPDIR": boxRoot + "/tmp",
		markBox:  name,
	}
	if start.SessionKey != "" {
		fixed[keyVariable] = start.SessionKey.Reveal()
	}
	all, err := start.Variables(fixed)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, fixed)
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, name+"="+all[name]+"\x00"...)
	}
	return out, nil
}
