package cli_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/internal/cli"
)

func TestCheckComparesTheInstallationsOfTheWorkers(t *testing.T) {
	t.Parallel()
	s, data := startServer(t), t.TempDir()
	check := func() (int, string) {
		var stdout, stderr locked
		code := cli.Execute(t.Context(), cli.Root(program(data, s.address, &stdout, &stderr, "check")))
		return code, stdout.String() + stderr.String()
	}
	code, text := check()
	require.Equal(t, 0, code, text)
	assert.NotContains(t, text, "installation of the workers", "a worker that does not tell is not judged")

	s.identities = []string{"7@there@boxkeeper-0a1b2c3d"}
	code, text = check()
	require.Equal(t, 0, code, text)
	assert.Regexp(t, `ok +installation of the workers +0a1b2c3d; this machine has no installation key`, text)

	require.NoError(t, os.WriteFile(filepath.Join(data, "installation.key"), []byte(strings.Repeat("a", 64)), 0o600))
	code, text = check()
	require.Equal(t, 4, code, text)
	assert.Regexp(t, `fail +installation of the workers +the workers are of installation 0a1b2c3d, this machine's key is of [0-9a-f]{8}:`, text)

	own := regexp.MustCompile(`key is of ([0-9a-f]{8}):`).FindStringSubmatch(text)[1]
	s.identities = []string{"7@there@boxkeeper-" + own}
	code, text = check()
	require.Equal(t, 0, code, text)
	assert.Regexp(t, `ok +installation of the workers +`+own+`, that of this machine`, text)

	s.identities = append(s.identities, "8@there@boxkeeper-0a1b2c3d")
	code, text = check()
	require.Equal(t, 4, code, text)
	assert.Contains(t, text, "serve one namespace and take each other's work")
}

// TestAWorkerSaysThatAnotherInstallationIsThere and works all the same: the other
// may have ended a moment ago.
func TestAWorkerSaysThatAnotherInstallationIsThere(t *testing.T) {
	t.Parallel()
	s, data := startServer(t), t.TempDir()
	start := func() string {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stdout, stderr locked
		code := make(chan int, 1)
		go func() {
			code <- cli.Execute(ctx, cli.Root(program(data, s.address, &stdout, &stderr, "worker")))
		}()
		require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "workers are up") }, time.Minute, 10*time.Millisecond)
		cancel()
		require.Equal(t, 0, <-code, stderr.String())
		return stderr.String()
	}
	const says = "serve namespace default already"
	text := start()
	require.NotContains(t, text, says, "a worker that does not tell is not judged")
	own := regexp.MustCompile(`"installation": "([0-9a-f]{8})"`).FindStringSubmatch(text)[1]
	s.identities = []string{"7@there@boxkeeper-" + own}
	require.NotContains(t, start(), says)
	s.identities = append(s.identities, "8@there@boxkeeper-0a1b2c3d", "9@there@boxkeeper-0a1b2c3d")
	text = start()
	require.Equal(t, 1, strings.Count(text, says), text)
	line := regexp.MustCompile(`(?m)^.*` + says + `.*$`).FindString(text)
	for _, want := range []string{"WARN", "installation " + own, "workers of 0a1b2c3d", "give them one installation secret, or a namespace each"} {
		assert.Contains(t, line, want)
	}
}
