package agentserver

import (
	"io"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/workspacetar"
)

// VerifyWorkspace reads an archive of a workspace to its end and returns its
// manifest, when every entry is as the lists and the manifest say and none is
// missing. ClassUnknown says what is wrong; an error of r itself is passed on.
func VerifyWorkspace(r io.Reader) (box.Manifest, error) { return workspacetar.Verify(r) }
