package cli

import (
	"github.com/spf13/cobra"

	"github.com/openhands/boxkeeper/agentserver/server"
)

// boxdCommand is what a local box runs: this program once more, so that nothing
// else need be installed. Its arguments are not ours to read.
func boxdCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use: "boxd", Hidden: true, DisableFlagParsing: true, Short: "Run inside a box",
		RunE: func(c *cobra.Command, given []string) error {
			getenv := func(name string) string {
				value, _ := env.lookup(name)
				return value
			}
			if code := server.Run(c.Context(), given, getenv, c.OutOrStdout(), c.ErrOrStderr()); code != 0 {
				return &silent{code}
			}
			return nil
		},
	}
}
