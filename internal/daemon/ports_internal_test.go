package daemon

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports"
	"github.com/openhands/boxkeeper/internal/config"
)

func TestAllTakenPortsAreNamedAndNothingIsMade(t *testing.T) {
	t.Parallel()
	first, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer first.Close()
	second, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer second.Close()
	data := filepath.Join(t.TempDir(), "new")
	cfg := config.Config{DataDir: data, Listen: second.Addr().String()}
	taken := first.Addr().(*net.TCPAddr).Port
	_, err = claim(t.Context(), cfg, nodeOptions{flags: flags{port: 0, uiPort: taken}, health: true})
	require.Error(t, err)
	assert.Equal(t, box.ClassInvalid, box.ClassOf(err))
	for _, want := range []string{first.Addr().String(), "--ui-port", second.Addr().String(), "BOXKEEPER_LISTEN"} {
		assert.Contains(t, err.Error(), want)
	}
	assert.NotContains(t, err.Error(), "(--port)", "that one is free")
	assert.NoDirExists(t, data)
}

func TestTheDirectoryInUseIsSaidBeforeThePorts(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	cfg := config.Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0"}
	lock, err := claim(t.Context(), cfg, nodeOptions{health: true})
	require.NoError(t, err)
	cfg.Listen = taken.Addr().String()
	_, err = claim(t.Context(), cfg, nodeOptions{health: true})
	assert.Equal(t, box.ClassFailedPrecondition, box.ClassOf(err))
	assert.ErrorContains(t, err, cfg.DataDir+" is in use by")
	lock.Release()
	_, err = claim(t.Context(), cfg, nodeOptions{health: true})
	assert.ErrorContains(t, err, "BOXKEEPER_LISTEN")
	entries, err := os.ReadDir(cfg.DataDir)
	require.NoError(t, err)
	assert.Len(t, entries, 1, "the lock's directory, and no key")
	cfg.Listen = config.ListenOff
	lock, err = claim(t.Context(), cfg, nodeOptions{})
	require.NoError(t, err, "a failed start holds nothing")
	lock.Release()
}

func TestABarOfNothingIsFullAndSaysWhy(t *testing.T) {
	t.Parallel()
	full := "demo export [" + strings.Repeat("#", 30) + "] "
	for want, at := range map[string]exports.Progress{
		full + "its conversations are as they were\n": {Stage: exports.StageManifest},
		full + "6/6 manifest\n":                       {Stage: exports.StageManifest, Done: 5, Total: 6},
	} {
		var out bytes.Buffer
		newProgress(&out).transfer("demo", at)
		assert.Equal(t, want, out.String())
	}
}
