package driver

import (
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// IdentityOf reads the identity out of a ref's name and epoch. It is false for
// a name that [box.Identity.Name] does not make: such a box is not ours.
func IdentityOf(ref box.Ref) (box.Identity, bool) {
	const prefix, digits = "bk-", 8
	rest, ok := strings.CutPrefix(ref.Name, prefix)
	if !ok || len(rest) < digits || !ValidInstallation(rest[:digits]) {
		return box.Identity{}, false
	}
	// The epoch is the part after the last "-"; a workspace may hold "-" itself.
	at := strings.LastIndexByte(rest, '-')
	if at <= digits {
		return box.Identity{}, false
	}
	identity := box.Identity{Installation: rest[:digits], Workspace: rest[digits+1 : at], Epoch: ref.Epoch}
	if ref.Epoch < 1 || box.ValidateWorkspace(identity.Workspace) != nil || identity.Name() != ref.Name {
		return box.Identity{}, false
	}
	return identity, true
}

// ValidInstallation reports whether id is 8 lower-case hex digits.
func ValidInstallation(id string) bool {
	return len(id) == 8 && strings.Trim(id, "0123456789abcdef") == ""
}
