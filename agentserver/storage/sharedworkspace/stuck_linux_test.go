package sharedworkspace_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/agentservertest"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
)

// A caller may have pointed a conversation at a file server that is stopped since.
func TestADirectoryThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	root, layout := newBox(t)
	far := t.TempDir()
	storagetest.StuckServer(t, far, unix.S_IFDIR|0o755)
	converse(t, root, idOf('a'), filepath.Join(root, "workspace/app"), time.Now())
	_, err := agentservertest.WriteConversation(filepath.Join(root, "conversations"), agentservertest.Conversation{ID: idOf('b'), WorkingDir: far + "/project"})
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 3 {
			_, _ = layout.Places(t.Context())
		}
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		require.Fail(t, "it waits for the file server")
	}
	places := placesOf(t, layout)
	require.Contains(t, places[idOf('b')].Busy, "where it works cannot be read")
	require.NotEmpty(t, places[idOf('a')].Busy, "it may lead here")
}
