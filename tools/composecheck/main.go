// Command composecheck loads a compose file the way Docker does: schema,
// settings from the environment, and whether the services agree with each
// other. It is for machines without Docker, starts nothing, and prints the
// services it found. .ci/run calls it.
//
//	POSTGRES_PASSWORD=x composecheck docker-compose.yml
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	services, err := load(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "composecheck:", err)
		os.Exit(1)
	}
	fmt.Println("services:", strings.Join(services, " "))
}

func load(ctx context.Context, files []string) ([]string, error) {
	if len(files) == 0 {
		return nil, fmt.Errorf("usage: composecheck FILE...")
	}
	options, err := cli.NewProjectOptions(files, cli.WithOsEnv, cli.WithInterpolation(true), cli.WithConsistency(true))
	if err != nil {
		return nil, fmt.Errorf("read options: %w", err)
	}
	project, err := options.LoadProject(ctx)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", strings.Join(files, ", "), err)
	}
	return project.ServiceNames(), nil
}
