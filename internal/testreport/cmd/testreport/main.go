// Command testreport reads "go test -json" on its standard input, prints what
// people need to see, and ends with 1 when a test failed or was skipped
// without being allowed to, with 2 when it could not do its work. It runs no
// test itself. .ci/run and the Taskfile call it:
//
//	go test -json ./... | go run ./internal/testreport/cmd/testreport -allow .ci/allowed-skips.txt
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/openhands/boxkeeper/internal/testreport"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(stderr)
	allowFile := flags.String("allow", "", "file with the list of allowed skips; without it no skip is allowed")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	report, err := read(*allowFile, stdin, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "testreport:", err)
		return 2
	}
	if report.Err() != nil {
		return 1 // the reasons are printed already
	}
	return 0
}

func read(allowFile string, stdin io.Reader, stdout io.Writer) (*testreport.Report, error) {
	var allow testreport.List
	if allowFile != "" {
		f, err := os.Open(allowFile)
		if err != nil {
			return nil, fmt.Errorf("open list of allowed skips: %w", err)
		}
		defer f.Close()
		if allow, err = testreport.ReadList(f); err != nil {
			return nil, fmt.Errorf("%s: %w", allowFile, err)
		}
	}
	return testreport.Read(stdin, stdout, allow)
}
