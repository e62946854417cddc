package workers

import (
	"fmt"
	"os"
	"strings"

	"github.com/openhands/boxkeeper/providers/driver"
)

const identityMark = "@boxkeeper-"

// Identity names this process to Temporal, with the installation whose boxes it
// keeps: two installations on one engine would take each other's work and find
// no boxes of theirs.
func Identity(installation string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%d@%s%s%s", os.Getpid(), host, identityMark, installation)
}

// InstallationOf reads the installation out of a worker's identity; false for a
// worker that does not tell, such as an older one.
func InstallationOf(identity string) (string, bool) {
	at := strings.LastIndex(identity, identityMark)
	if at < 0 {
		return "", false
	}
	id := identity[at+len(identityMark):]
	return id, driver.ValidInstallation(id)
}
