package retention_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/retention"
	"github.com/openhands/boxkeeper/box"
)

// counted is a layout that counts how often it is asked.
type counted struct {
	reclaim.Layout
	asked atomic.Int32
}

func (c *counted) Places(ctx context.Context) ([]reclaim.Place, error) {
	c.asked.Add(1)
	return c.Layout.Places(ctx)
}

func TestNobodyLooksWhileNoConversationHasARule(t *testing.T) {
	t.Parallel()
	s := newSetting(t)
	s.converse(t)
	synctest.Test(t, func(t *testing.T) {
		layout := &counted{Layout: s.layout()}
		s.opts.Layouts = []reclaim.Layout{layout}
		ctx, cancel := context.WithCancel(t.Context())
		k := retention.New(s.root, s.rules, s.opts)
		ended := make(chan struct{})
		go func() { defer close(ended); k.Run(ctx) }()
		time.Sleep(30 * day)
		synctest.Wait()
		require.EqualValues(t, 1, layout.asked.Load(), "at the start, for what a crash left")
		require.NoError(t, s.rules.Set(s.id, box.Retention{Mode: box.RetentionDays, Days: 365}))
		k.Wake()
		synctest.Wait()
		require.EqualValues(t, 1, layout.asked.Load(), "a rule may be a slip")
		time.Sleep(retention.Interval + time.Second)
		synctest.Wait()
		require.EqualValues(t, 2, layout.asked.Load())
		time.Sleep(10 * retention.Interval)
		synctest.Wait()
		require.EqualValues(t, 12, layout.asked.Load())
		require.NoError(t, s.rules.Set(s.id, box.Retention{Mode: box.RetentionDefault}))
		time.Sleep(30 * day)
		synctest.Wait()
		require.EqualValues(t, 13, layout.asked.Load(), "and no more once the rule has gone")
		cancel()
		<-ended
	})
}

func TestAConversationThatIsGoneLosesItsRule(t *testing.T) {
	t.Parallel()
	s := newSetting(t)
	k := s.keeper(t)
	gone := strings.Repeat("f", 32)
	require.NoError(t, s.rules.Set(gone, box.Retention{Mode: box.RetentionDays, Days: 1}))
	file := filepath.Join(s.root, "run/retention", gone+".json")
	require.NoError(t, os.Chtimes(file, now.Add(-time.Minute), now.Add(-time.Minute)))
	_, err := k.Pass(t.Context())
	require.NoError(t, err)
	require.FileExists(t, file, "it may be about to be made")
	require.NoError(t, os.Chtimes(file, now.Add(-2*time.Hour), now.Add(-2*time.Hour)))
	_, err = k.Pass(t.Context())
	require.NoError(t, err)
	require.NoFileExists(t, file)
}
