package server_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/server"
)

func TestASecondLookAtAnUnchangedBoxIsCheap(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 2, server.Options{})
	npm := "runtime-data/" + conversationID(1) + "/persistence/.npm/_cacache"
	for i := range 500 {
		b.put(t, fmt.Sprintf("%s/content-v2/sha512/%02d/%d", npm, i%50, i), 10)
	}
	first := b.status(t)
	work := b.StorageWork()
	require.Greater(t, work.Looked, int64(500))
	second := b.status(t)
	again := b.StorageWork()
	require.Equal(t, first.Conversations[0].CachesBytes, second.Conversations[0].CachesBytes)
	require.Equal(t, first.ByTier, second.ByTier)
	require.GreaterOrEqual(t, again.Kept, int64(55), "each directory of a cache is looked at once")
	require.Less(t, again.Looked, int64(40), "of files only those of work and histories")
	require.EqualValues(t, 1, b.layout.calls.Load(), "nothing was selected again")
	b.put(t, npm+"/content-v2/sha512/07/new", 1<<20)
	third := b.status(t)
	require.GreaterOrEqual(t, third.Conversations[0].CachesBytes, first.Conversations[0].CachesBytes+1<<20)
	require.EqualValues(t, 2, b.layout.calls.Load())
	require.Less(t, b.StorageWork().Looked, int64(60), "only what changed is read again")
	b.put(t, "runtime-data/"+conversationID(2)+"/workspace/repo/src/main.js", 400_000)
	fourth := b.status(t)
	require.Greater(t, fourth.Conversations[1].WorkspaceBytes, third.Conversations[1].WorkspaceBytes+300_000, "work that grows in place is seen")
}

func TestOneLookServesAllWhoAsk(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	entered, release := make(chan struct{}, 100), make(chan struct{})
	b.layout.wait = func(context.Context) {
		entered <- struct{}{}
		<-release
	}
	const callers = 8
	answers := make(chan error, callers)
	first, giveUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.client.Storage(first)
		gone <- err
	}()
	<-entered
	for range callers {
		go func() {
			_, err := b.client.Storage(t.Context())
			answers <- err
		}()
	}
	// The agent-server is answered for meanwhile.
	status, _, _ := ask(t, http.MethodGet, b.url+"/api/conversations/count", "")
	require.Equal(t, http.StatusNoContent, status)
	status, _, _ = ask(t, http.MethodGet, b.url+"/api/boxd/use", "")
	require.Equal(t, http.StatusOK, status)
	for b.StorageWaiting() < callers+1 {
		runtime.Gosched()
	}
	giveUp()
	require.Error(t, <-gone)
	for b.StorageWaiting() > callers {
		runtime.Gosched()
	}
	close(release)
	for range callers {
		require.NoError(t, <-answers, "whoever gives up takes nothing from the others")
	}
	require.EqualValues(t, 1, b.layout.calls.Load())
}

func TestALookThatNobodyWaitsForEnds(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 1, server.Options{})
	entered, ended := make(chan struct{}, 10), make(chan struct{}, 10)
	b.layout.wait = func(ctx context.Context) {
		entered <- struct{}{}
		if b.layout.calls.Load() == 1 {
			<-ctx.Done()
			ended <- struct{}{}
		}
	}
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.client.Storage(ctx)
		gone <- err
	}()
	<-entered
	giveUp()
	require.Error(t, <-gone)
	<-ended
	for b.StorageWaiting() > 0 {
		runtime.Gosched()
	}
	require.NotEmpty(t, b.status(t).Conversations, "the next one is answered")
}

func TestAPartThatHangsLeavesTheRestOfTheAnswer(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 2, server.Options{})
	b.SettleStorage(200 * time.Millisecond)
	release := make(chan struct{})
	b.layout.wait = func(context.Context) { <-release } // deaf to its context
	for i := range 3 {
		status := b.status(t)
		require.True(t, status.Partial)
		require.Len(t, status.Errors, 1)
		require.Contains(t, status.Errors[0], []string{"no answer within", "has not come back", "has not come back"}[i])
		require.Len(t, status.Conversations, 2)
		require.Equal(t, b.allocated(t, "conversations/"+conversationID(1)), status.Conversations[0].HistoryBytes)
		require.EqualValues(t, 1, b.layout.calls.Load(), "nobody else is sent there")
	}
	close(release)
	for {
		status := b.status(t)
		if !status.Partial {
			require.Positive(t, status.Conversations[0].CachesBytes)
			return
		}
	}
}

func TestWhatCannotBeMeasuredIsListed(t *testing.T) {
	t.Parallel()
	b := newStorageBox(t, 2, server.Options{})
	place := filepath.Join(b.root, "runtime-data", conversationID(1))
	require.NoError(t, os.Rename(place, place+".away"))
	require.NoError(t, os.Symlink(place+".away", place))
	status := b.status(t)
	require.True(t, status.Partial)
	require.Contains(t, strings.Join(status.Errors, "\n"), conversationID(1)+": is a link")
	require.Zero(t, status.Conversations[0].WorkspaceBytes)
	require.Positive(t, status.Conversations[1].WorkspaceBytes)
	require.NotEmpty(t, status.Left)
	require.Contains(t, status.Left[0].Skipped, "is a link, or lies behind one")
}
