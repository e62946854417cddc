package repo_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func makePipe(t *testing.T, file string) {
	t.Helper()
	require.NoError(t, syscall.Mkfifo(file, 0o600))
}

// requireEnded waits for the process whose number is in file to be gone.
func requireEnded(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil && syscall.Kill(pid, 0) != nil || strings.Contains(string(state), ") Z ")
	}, 10*time.Second, 10*time.Millisecond, "what git started ended with it")
}
