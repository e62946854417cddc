// Command boxd runs inside a box: in front of an agent-server, whose HTTP API
// it passes on unchanged and adds to, or alone, serving histories from disk.
// "boxd --help" lists its settings.
package main

import (
	"context"
	"os"

	"github.com/openhands/boxkeeper/agentserver/server"
)

func main() {
	os.Exit(server.Run(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
