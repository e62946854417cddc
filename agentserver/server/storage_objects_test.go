package server_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/server"
	"github.com/openhands/boxkeeper/box"
)

// The status tells how large the objects of a repository are that git would pack,
// and that they stay; they are work and no cache.
func TestObjectsOfARepositoryAreToldAsWork(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	before := b.status(t)
	objects := "runtime-data/" + conversationID(1) + "/workspace/repo/.git/objects"
	for i := range 30 {
		b.put(t, fmt.Sprintf("%s/17/%038x", objects, i), 5000)
	}
	for range 2 { // the second time from memory
		after := b.status(t)
		require.Len(t, after.Left, len(before.Left)+1)
		var found *box.ReclaimItem
		for i := range after.Left {
			if after.Left[i].Path == objects {
				found = &after.Left[i]
			}
		}
		require.NotNil(t, found, "%+v", after.Left)
		require.Equal(t, reclaim.ObjectsRule, found.Rule)
		require.Equal(t, "git gc", found.Native)
		require.Equal(t, b.allocated(t, objects), found.Bytes)
		require.Equal(t, before.Conversations[0].CachesBytes, after.Conversations[0].CachesBytes)
		require.Equal(t, before.Conversations[0].WorkspaceBytes+found.Bytes, after.Conversations[0].WorkspaceBytes)
		require.Equal(t, before.ByTier[box.TierDependencies], after.ByTier[box.TierDependencies])
	}
}
