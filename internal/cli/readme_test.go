package cli_test

import (
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

// typedCommands returns the boxkeeper commands that a page tells people to
// type: lines of shell blocks, and what is quoted in a sentence.
func typedCommands(page string) []string {
	var found []string
	inBlock := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			inBlock = line == "```sh" || line == "```console"
		case inBlock:
			line = strings.TrimPrefix(line, "$ ")
			line, _, _ = strings.Cut(line, " #")
			if strings.HasPrefix(line, "boxkeeper ") {
				found = append(found, line)
			}
		default:
			for i, part := range strings.Split(line, "`") {
				if i%2 == 1 && strings.HasPrefix(part, "boxkeeper ") {
					found = append(found, part)
				}
			}
		}
	}
	return found
}

// TestCommandsOnPagesExist finds each command on the pages in the command tree,
// with each of its flags.
func TestCommandsOnPagesExist(t *testing.T) {
	t.Parallel()
	checked := 0
	root := filepath.Join("..", "..")
	var pages []string
	for _, some := range []string{"*.md", "docs/*.md", "docs/providers/*.md", "docs/adr/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(some)))
		require.NoError(t, err)
		require.NotEmpty(t, found, some)
		pages = append(pages, found...)
	}
	for _, path := range pages {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, line := range typedCommands(string(page)) {
			checked++
			assert.Empty(t, wrongWith(cli.Root(cli.Env{}), strings.Fields(line)[1:]), "%s says: %s", path, line)
		}
	}
	assert.GreaterOrEqual(t, checked, 15, "the pages have more commands than this: the test looks in the wrong place")
}

// wrongWith says why a command line cannot be typed, or nothing.
func wrongWith(root *cobra.Command, words []string) string {
	c, rest, err := root.Find(words)
	if err != nil {
		return err.Error()
	}
	if c.HasSubCommands() && len(rest) > 0 {
		return c.CommandPath() + " has no command " + rest[0]
	}
	for _, word := range rest {
		name, _, _ := strings.Cut(word, "=")
		if strings.HasPrefix(name, "--") && name != "--help" && flagNamed(c, strings.TrimPrefix(name, "--")) == nil {
			return c.CommandPath() + " has no flag " + name
		}
	}
	return ""
}

func flagNamed(c *cobra.Command, name string) *pflag.Flag {
	if f := c.Flags().Lookup(name); f != nil {
		return f
	}
	return c.InheritedFlags().Lookup(name)
}

func TestWrongCommandsAreFound(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"box statuss x", "box why x --soon", "nothing"} {
		assert.NotEmpty(t, wrongWith(cli.Root(cli.Env{}), strings.Fields(line)), line)
	}
}
