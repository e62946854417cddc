// Command boxkeeper owns the life of agent sandboxes over a Temporal that runs
// elsewhere: workers, and the commands to look at boxes and steer them.
// "boxkeeper --help" lists them; boxkeeperd brings an engine of its own.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/openhands/boxkeeper/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := cli.Execute(ctx, cli.Root(cli.Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
	}))
	stop()
	os.Exit(code)
}
