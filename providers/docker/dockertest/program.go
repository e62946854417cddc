package dockertest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// Program writes the least that passes for a static program of a machine, which is
// enough for an engine that runs none, and returns its name.
func Program(t *testing.T, machine elf.Machine, progs ...elf.ProgType) string {
	t.Helper()
	const head, entry = 64, 56
	ident := [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	parts := []any{elf.Header64{
		Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: head, Ehsize: head, Phentsize: entry, Phnum: uint16(len(progs)),
	}}
	for _, p := range progs {
		parts = append(parts, elf.Prog64{Type: uint32(p)})
	}
	var out bytes.Buffer
	for _, part := range parts {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(t.TempDir(), "boxd")
	if err := os.WriteFile(name, out.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}
