package worktree_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/storagetest"
	"github.com/openhands/boxkeeper/agentserver/storage/worktree"
)

func harness() storagetest.Harness {
	return storagetest.Harness{
		New: func(root string, write storage.Writer) reclaim.Layout {
			git, err := repo.New(repo.Options{Timeout: time.Minute}) // on a busy machine
			if err != nil {
				panic(err)
			}
			layout, err := worktree.New(root, write, worktree.Options{Git: git, Rescue: filepath.Join(root, "rescue")})
			if err != nil {
				panic(err)
			}
			return layout
		},
		Make:    storagetest.Worktree,
		OwnRule: true,
	}
}

func TestMain(m *testing.M) { storagetest.Main(m, harness()) }

func TestScenario87And100TheContractOfLayouts(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, harness())
}
