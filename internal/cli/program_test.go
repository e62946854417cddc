package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/internal/cli"
)

func TestWhatIsNoCommandIsRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"boxx"}, {"box", "shwo"}, {"box", "show"}, {"box", "show", "a", "b"}, {"version", "x"}, {"--nope"}, {"box", "--nope"}} {
		got := runWith(t, newFake(), args...)
		assert.Equal(t, 2, got.code, args)
		assert.Empty(t, got.stdout, args)
		assert.Contains(t, got.stderr, "--help", args)
	}
	assert.Contains(t, runWith(t, newFake(), "box", "shwo").stderr, "did you mean show?")
	help := runWith(t, newFake())
	assert.Equal(t, 0, help.code)
	assert.Contains(t, help.stdout, "Exit codes:")
	assert.NotContains(t, help.stdout, "boxd", "it is not for people")
}

func TestErrorsAreJSONWhenItIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"box", "create", "x", "--idle", "5", "-o", "json"}, {"box", "create", "x", "--idle=5", "--output=json"}, {"-o", "json", "boxx"}} {
		got := runWith(t, newFake(), args...)
		var out map[string]map[string]any
		require.NoError(t, json.Unmarshal([]byte(got.stderr), &out), got.stderr)
		assert.Equal(t, "Invalid", out["error"]["class"])
		assert.InDelta(t, 2, out["error"]["exit_code"], 0)
	}
}

// fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAnAnswerThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	env := cli.Env{Args: []string{"version"}, Stdout: fullDisk{}, Stderr: &stderr}
	assert.Equal(t, 1, cli.Execute(t.Context(), cli.Root(env)))
	assert.Contains(t, stderr.String(), "no space left on device")
}

func TestVersionSaysWhatItIs(t *testing.T) {
	t.Parallel()
	got := runWith(t, nil, "version", "-o", "json")
	require.Equal(t, 0, got.code)
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &out))
	assert.Equal(t, "boxkeeper", out["program"])
	assert.Contains(t, out["go"], "go1.")
	assert.InDelta(t, box.WireVersion, out["wire_version"], 0)
	assert.Contains(t, runWith(t, nil, "version").stdout, "platform:")
}

func TestConfigShowsWhatIsInForceAndNoSecret(t *testing.T) {
	t.Parallel()
	got := runWith(t, nil, "config", "-o", "json", "--namespace", "other")
	require.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, `"temporal_namespace": "other"`)
	assert.Contains(t, got.stdout, `"temporal_address": "temporal.test:7233"`)
	assert.Contains(t, runWith(t, nil, "config").stdout, "provider local: driver local, suspend stop")
	assert.Contains(t, runWith(t, nil, "config", "--reference").stdout, "BOXKEEPER_LOG_LEVEL")
	assert.Contains(t, runWith(t, nil, "config", "--reference", "-o", "json").stdout, `"when_to_change"`)
	data := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(data, "boxkeeper.toml"), []byte(`lissen = "off"`), 0o600))
	bad := runIn(t, nil, data, "", "config")
	assert.Equal(t, 2, bad.code)
	assert.Contains(t, bad.stderr, "lissen: is not a setting")
	other := t.TempDir()
	assert.Contains(t, runIn(t, nil, data, "", "config", "--data", other).stdout, other, "the flag wins over the environment")
}

func TestBoxdGetsItsArgumentsUntouched(t *testing.T) {
	t.Parallel()
	got := runWith(t, nil, "boxd", "--help")
	assert.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "boxd serves a box")
	bad := runWith(t, nil, "boxd", "--root", t.TempDir(), "--config", "x")
	assert.Equal(t, 2, bad.code, "our global flags are not boxd's")
	assert.True(t, strings.HasPrefix(bad.stderr, "boxd:"), bad.stderr)
}

func TestAnotherProgramTakesTheCommandsOver(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	ran := false
	root := &cobra.Command{Use: "other", RunE: func(*cobra.Command, []string) error { ran = true; return nil }}
	shared := cli.Adopt(root, cli.Env{Args: []string{"--data", t.TempDir()}, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr})
	require.Equal(t, 0, cli.Execute(t.Context(), root), stderr.String())
	assert.True(t, ran, "its own command stays")
	_, err := shared.Config()
	require.NoError(t, err)
	root = &cobra.Command{Use: "other"}
	cli.Adopt(root, cli.Env{Args: []string{"version"}, Stdout: &stdout, Stderr: &stderr})
	require.Equal(t, 0, cli.Execute(t.Context(), root))
	assert.True(t, strings.HasPrefix(stdout.String(), "other "), stdout.String())
}

func TestAWrongValueNamesItsFlag(t *testing.T) {
	t.Parallel()
	got := runWith(t, newFake(), "box", "list", "--limit", "abc")
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.stderr, "--limit")
	assert.Contains(t, got.stderr, `"abc" is not a whole number`)
	assert.NotContains(t, got.stderr, "strconv")
}

func TestANamedFileOrDirectoryIsNeverIgnored(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "nope.toml")
	for field, given := range map[string][]string{"data": {"--data", ""}, "config": {"--config", missing}} {
		got := runWith(t, newFake(), append([]string{"box", "list"}, given...)...)
		assert.Equal(t, 2, got.code, got.stderr)
		assert.Contains(t, got.stderr, field)
		assert.Contains(t, got.stderr, "leave --"+field+" out", "the next step")
	}
}

func TestAStoppedCommandSaysSo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	fake := newFake()
	fake.add("mine", box.StateSuspended)
	fake.after = func(*box.Facts) { cancel() }
	got := runContext(ctx, t, fake, t.TempDir(), "", "box", "resume", "mine", "--wait")
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.stderr, "the request stands")
}
