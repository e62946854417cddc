package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
)

func TestScenario105ATrajectoryComesOffAFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it fills a file system of its own")
	}
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("needs to mount a file system of its own: " + err.Error())
	}
	require.NoError(t, os.Mkdir(filepath.Join(root, "conversations"), 0o700))
	r, err := reclaim.Open(root, reclaim.Options{})
	require.NoError(t, err)
	web := httptest.NewServer(server.New(server.Options{Root: root, Key: key, Reclaim: r}))
	t.Cleanup(func() {
		web.Close()
		r.Close()
		require.NoError(t, syscall.Unmount(root, syscall.MNT_DETACH))
	})
	id, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{
		Events: []agentservertest.Event{{Text: strings.Repeat("x", 100_000)}, {Text: "y"}},
	})
	require.NoError(t, err)
	from, _ := alone(t, 1)
	other := trajectory(t, connect(t, from), fmt.Sprintf("%032x", 1))

	file, err := os.Create(filepath.Join(root, "full"))
	require.NoError(t, err)
	block := make([]byte, 4096)
	for err == nil {
		_, err = file.Write(block)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, file.Close())
	var disk syscall.Statfs_t
	require.NoError(t, syscall.Statfs(root, &disk))
	require.Zero(t, disk.Bavail, "not a byte is free")

	status, text, _ := ask(t, http.MethodGet, web.URL+"/api/file/download-trajectory/"+id, "")
	require.Equal(t, http.StatusOK, status)
	require.Len(t, packedEvents(t, text), 2)
	_, err = put(t, connect(t, web.URL), fmt.Sprintf("%032x", 1), other)
	require.Equal(t, box.ClassExhausted, box.ClassOf(err), "%v", err)
	require.NoError(t, os.Remove(filepath.Join(root, "full")))
	_, err = put(t, connect(t, web.URL), fmt.Sprintf("%032x", 1), other)
	require.NoError(t, err, "with room it is taken in")
	bomb := strings.Repeat("b", 32)
	_, err = put(t, connect(t, web.URL), bomb, declared(t, bomb, 10, 64<<20))
	require.Equal(t, box.ClassInvalid, box.ClassOf(err), "no more of a bomb is unpacked than it says: %v", err)
}
