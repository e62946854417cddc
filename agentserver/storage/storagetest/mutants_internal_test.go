//go:build linux

package storagetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/repo"
	"github.com/openhands/boxkeeper/agentserver/storage"
	"github.com/openhands/boxkeeper/agentserver/storage/sharedworkspace"
	"github.com/openhands/boxkeeper/agentserver/storage/worktree"
	"github.com/openhands/boxkeeper/box"
)

// inPlace is a file beside a box whose process writes markers in place, and never
// gets further than to the beginning of one.
const inPlace = "in-place"

// shared is a right layout.
func shared() Harness {
	projects := ""
	return Harness{
		New: func(root string, write storage.Writer) reclaim.Layout {
			if _, err := os.Lstat(filepath.Join(filepath.Dir(root), inPlace)); err == nil {
				write = func(name string, _ []byte) error {
					if _, err := os.Create(filepath.Join(root, name)); err != nil {
						return err
					}
					for { // until it is killed
						_ = unix.Pause()
					}
				}
			}
			return sharedworkspace.New(root, write, sharedworkspace.Options{})
		},
		Make: func(t testing.TB, root, id string, used time.Time) string {
			t.Helper()
			dir := filepath.Join(storage.WorkspaceDir, "projects", id[:4])
			Converse(t, root, id, filepath.Join(root, dir), used)
			projects = filepath.Join(root, filepath.Dir(dir))
			require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(root, dir, "work"), []byte("dear"), 0o600))
			return dir
		},
		// What lies beside the directories of conversations.
		Orphans: func(context.Context, reclaim.Layout) (out []storage.Orphan, err error) {
			entries, err := os.ReadDir(projects)
			for _, entry := range entries {
				if entry.Name() != ids[0][:4] {
					out = append(out, storage.Orphan{Path: entry.Name(), Reason: "is nobody's"})
				}
			}
			return out, err
		},
	}
}

// ruled is a right layout with a rule of its own.
func ruled() Harness {
	return Harness{
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
		Make: Worktree, OwnRule: true,
	}
}

func TestMain(m *testing.M) { Main(m, shared()) }

// mutant is a layout that is wrong in one way.
type mutant interface {
	harness() Harness
}

// remade is the right layout, made wrongly.
type remade func(root string, write storage.Writer) reclaim.Layout

func (m remade) harness() Harness {
	h := shared()
	h.New = m
	return h
}

// relisted changes the list of orphans.
type relisted func([]storage.Orphan) []storage.Orphan

func (m relisted) harness() Harness {
	h := shared()
	right := h.Orphans
	h.Orphans = func(ctx context.Context, l reclaim.Layout) ([]storage.Orphan, error) {
		all, err := right(ctx, l)
		if len(all) > 0 {
			all = m(all)
		}
		return all, err
	}
	return h
}

// broken is a layout of which one part is wrong.
type broken struct {
	reclaim.Layout
	root    string
	places  func(b *broken, places []reclaim.Place) ([]reclaim.Place, error)
	hold    func(ctx context.Context, b *broken, id string) (func(), string, error)
	archive func(ctx context.Context, b *broken, id string) error
}

func (b *broken) harness() Harness {
	h := shared()
	right := h.New
	h.New = func(root string, write storage.Writer) reclaim.Layout {
		made := *b
		made.Layout, made.root = right(root, write), root
		return &made
	}
	return h
}

func (b *broken) Places(ctx context.Context) ([]reclaim.Place, error) {
	places, err := b.Layout.Places(ctx)
	if err == nil && b.places != nil {
		return b.places(b, places)
	}
	return places, err
}

func (b *broken) Hold(ctx context.Context, id string) (func(), string, error) {
	if b.hold != nil {
		return b.hold(ctx, b, id)
	}
	return b.Layout.Hold(ctx, id)
}

func (b *broken) Archive(ctx context.Context, id string) error {
	if b.archive != nil {
		return b.archive(ctx, b, id)
	}
	return b.Layout.Archive(ctx, id)
}

// brokenRule is a layout with a rule of its own of which one part is wrong.
type brokenRule struct {
	*worktree.Layout
	root   string
	judge  func(b *brokenRule, items []box.ReclaimItem)
	remove func(ctx context.Context, b *brokenRule, id string, accept bool) ([]box.ReclaimItem, error)
}

func (b *brokenRule) harness() Harness {
	h := ruled()
	right := h.New
	h.New = func(root string, write storage.Writer) reclaim.Layout {
		made := *b
		made.Layout, made.root = right(root, write).(*worktree.Layout), root //nolint:forcetypeassert,errcheck // made there
		return &made
	}
	return h
}

func (b *brokenRule) Judge(ctx context.Context, id string, accept bool) ([]box.ReclaimItem, error) {
	items, err := b.Layout.Judge(ctx, id, accept)
	if b.judge != nil {
		b.judge(b, items)
	}
	return items, err
}

func (b *brokenRule) Remove(ctx context.Context, id string, accept bool) ([]box.ReclaimItem, error) {
	if b.remove != nil {
		return b.remove(ctx, b, id, accept)
	}
	return b.Layout.Remove(ctx, id, accept)
}

// noted is a test that only notes whether it failed.
type noted struct {
	testing.TB
	failed bool
	said   string
}

func (n *noted) Helper() {}

func (n *noted) Errorf(format string, args ...any) {
	n.failed, n.said = true, n.said+fmt.Sprintf(format, args...)
}

func (n *noted) FailNow() {
	n.failed = true
	runtime.Goexit()
}

// fails reports whether a harness fails a clause, and how.
func fails(t *testing.T, one *clause, h Harness) (failed bool, said string) {
	t.Helper()
	n := &noted{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if what := recover(); what != nil {
				n.Errorf("panic: %v", what)
			}
		}()
		one.run(n, h) //nolint:testifylint // a failure ends this goroutine, which is what is wanted
	}()
	<-ended
	return n.failed, n.said
}

// A suite that nothing fails says nothing of a layout that passes it.
func TestEachClauseFindsItsMutants(t *testing.T) {
	t.Parallel()
	table := mutants()
	for _, one := range clauses() {
		right := shared()
		if one.own {
			right = ruled()
		}
		t.Run(one.name+"/as it should be", func(t *testing.T) {
			t.Parallel()
			failed, said := fails(t, &one, right)
			require.False(t, failed, said)
		})
		require.NotEmpty(t, table[one.name], "%q has no mutant, so nobody knows whether it can fail", one.name)
		for name, mutant := range table[one.name] {
			t.Run(one.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				failed, said := fails(t, &one, mutant.harness())
				require.True(t, failed, "it is not found")
				t.Log(said)
			})
		}
		delete(table, one.name)
	}
	require.Empty(t, table, "each mutant is of a clause")
}
