package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/internal/cli"
)

const docsHead = `# The command line

This file is generated from the commands in internal/cli; a test fails when it is stale.

` + "`boxkeeper`" + ` runs workers and steers boxes by their workspace. ` + "`boxkeeperd`" + ` has the same commands and brings an engine of its own.

## How commands behave

* Standard output holds the answer and nothing else; notes, progress and errors go to standard error. With ` + "`-o json`" + ` the answer is one JSON value of the types in ` + "docs/contract.md" + ` (` + "`watch` and `history WORKSPACE CONVERSATION`" + ` write one value per line), and an error is one JSON object ` + "`{\"error\": {\"class\", \"field\", \"message\", \"exit_code\", \"request_id\", \"repeat\"}}`" + `.
* Looking never keeps a box awake: commands speak to the workflow that owns the workspace, not to the box. ` + "`list`" + ` reads the engine's index and works with no worker up; ` + "`history`" + ` reads the export store and needs no engine at all. Where no workflow answers, ` + "`show` and `why`" + ` read the ledger in the export store instead and say so (` + "`source: ledger`" + `, exit code 8).
* Durations are written like ` + "`90s`, `15m`, `12h`, `30d` or `1d12h`, and `never`" + ` where it is allowed. A bad one is refused with its field named; nothing is ever "now" by accident.
* Every request carries an id. When no answer comes in time the outcome is unknown, and the command says how to ask again without doing it twice. A request is not sent when no worker is up. Confirmations and cancellations of a deletion are kept by the engine in any case.
* Secrets are given as references (` + "`env:NAME`, `file:/path`, `credential:NAME`" + `) that the worker resolves; see docs/configuration.md.
* What a server or a box said is shown with control characters escaped.

## Exit codes

| code | meaning |
| --- | --- |
`

const docsExamples = `
## From beginning to end

` + "```sh" + `
boxkeeper check                                   # is everything there?
boxkeeper box create mine --owner ann --dry-run   # who would watch what
boxkeeper box create mine --owner ann --wait
boxkeeper box connect mine --holder ann-laptop --wait
boxkeeper box why mine                            # why is it awake, what comes next and when
boxkeeper box release mine --holder ann-laptop
boxkeeper box watch mine                          # one line per transition
boxkeeper box suspend mine --wait
boxkeeper box delete mine                         # shows what would be lost, and the token
boxkeeper box confirm mine --token TOKEN --wait
boxkeeper box history mine --verify               # from the export store alone
` + "```" + `

## Commands

The flags ` + "`--config`, `--data`, `--address`, `--namespace`, `--profile` and `-o`" + ` work with every command.
`

// docs writes docs/cli.md from the command tree.
func docs(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(docsHead)
	_, codes, _ := strings.Cut(root.Long, "Exit codes:\n")
	for line := range strings.SplitSeq(strings.TrimRight(codes, "\n"), "\n") {
		code, meaning, _ := strings.Cut(strings.TrimSpace(line), "  ")
		fmt.Fprintf(&b, "| %s | %s |\n", code, meaning)
	}
	b.WriteString(docsExamples)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, inner := range c.Commands() {
			if inner.Hidden || inner.Name() == "help" || inner.Name() == "completion" {
				continue
			}
			if len(inner.Commands()) == 0 {
				command(&b, inner)
			}
			walk(inner)
		}
	}
	walk(root)
	return b.String()
}

func command(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n### `%s`\n\n%s.\n", strings.TrimSuffix(c.UseLine(), " [flags]"), c.Short)
	if c.Long != "" {
		fmt.Fprintf(b, "\n%s\n", c.Long)
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	var rows []string
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		usage := f.Usage
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && !strings.Contains(usage, "default") {
			usage += " (default " + f.DefValue + ")"
		}
		rows = append(rows, fmt.Sprintf("| `--%s` | %s |", f.Name, strings.ReplaceAll(usage, "|", `\|`)))
	})
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n| flag | |\n| --- | --- |\n%s\n", strings.Join(rows, "\n"))
	}
}

func TestDocsAreCurrent(t *testing.T) {
	t.Parallel()
	want := docs(cli.Root(cli.Env{}))
	path := filepath.Join("..", "..", "docs", "cli.md")
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, string(have), "docs/cli.md is stale; run: go test ./internal/cli -run TestDocsAreCurrent -update")
	assert.Equal(t, 9, strings.Count(want[strings.Index(want, "| --- |"):strings.Index(want, "## From")], "\n")-2, "every exit code has its line")
}
