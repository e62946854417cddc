package e2e_test

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/openhands/boxkeeper/internal/cli"
	"github.com/openhands/boxkeeper/internal/daemon"
)

// TestMain lets a test start this binary again as another program, to kill it:
// as boxkeeperd with the arguments of boxkeeperd, which is also how a local box
// starts its boxd. The flags of go test begin with a dash; no command does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if run, ok := childPrograms()[os.Args[1]]; ok {
			os.Exit(run(os.Args[2:]))
		}
		if name, ok := strings.CutPrefix(os.Args[1], "as-"); ok {
			os.Exit(runProgram(name, os.Args[2:]))
		}
		if !strings.HasPrefix(os.Args[1], "-") {
			os.Exit(runProgram("boxkeeperd", os.Args[1:]))
		}
	}
	runMore()
	code := m.Run()
	stopLives()
	os.Exit(code)
}

// runMore lets twice as many tests run at a time as there are cores, unless
// -parallel says how many: they mostly wait for timers. One of them does nothing
// else for two minutes.
func runMore() {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)+1)) // the name is the testing package's
	}
}

func childPrograms() map[string]func(args []string) int {
	return map[string]func(args []string) int{
		engineChild:   runEngineChild,
		sleepersChild: runSleepers,
	}
}

// runProgram is the main of boxkeeper or boxkeeperd.
func runProgram(name string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	env := cli.Env{Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()}
	if name == "boxkeeper" {
		return cli.Execute(ctx, cli.Root(env))
	}
	return cli.Execute(ctx, daemon.Root(env))
}
