// Command boxkeeperd is boxkeeper with an engine of its own: Temporal on
// SQLite, its Web UI and the workers in one process, with everything below one
// data directory. It is the only program that links the engine.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/daemon"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := cli.Execute(ctx, daemon.Root(cli.Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
	}))
	stop()
	os.Exit(code)
}
