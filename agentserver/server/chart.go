package server

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/openhands/boxkeeper/agentserver/reclaim"
	"github.com/openhands/boxkeeper/agentserver/scan"
	"github.com/openhands/boxkeeper/box"
)

// kind is what a place counts as.
type kind int

const (
	kindHistory kind = iota
	kindWorkspace
	kindItem
	kindTrash
)

// chart says what is measured, and what each label of the walk stands for.
type chart struct {
	histories []string // ids, in the order of the list
	places    []scan.Place
	about     []about
}

// about is one label.
type about struct {
	kind         kind
	conversation string
	item         int // in the selection, of kindItem
}

// newChart gives each history, each home, workspace and runtime of a conversation,
// each candidate and the trash a label of its own. Of two places with one path the
// first counts.
func newChart(list []stored, found *reclaim.Selection) chart {
	var c chart
	taken := map[string]bool{}
	add := func(path string, place scan.Place, what about) {
		if path == "" || taken[path] {
			return
		}
		taken[path] = true
		place.Path, place.Label = path, len(c.about)
		c.places = append(c.places, place)
		c.about = append(c.about, what)
	}
	for _, one := range list {
		c.histories = append(c.histories, one.ID)
		dir := conversationsDir
		if one.taken {
			dir = importedDir
		}
		add(dir+"/"+one.ID, scan.Place{}, about{kind: kindHistory, conversation: one.ID})
	}
	for i := range found.Places {
		place := &found.Places[i]
		for _, path := range append([]string{place.Home, place.Runtime}, place.Workspaces...) {
			add(path, scan.Place{}, about{kind: kindWorkspace, conversation: place.Conversation})
		}
	}
	// What is inside something that is searched is searched for the same, too.
	var outer []*reclaim.Candidate
	for i := range found.Items {
		one := &found.Items[i]
		// What was not recognised may be work, whatever it is called.
		if one.Evidence == "" || one.Tier == box.TierRuntime {
			continue
		}
		if one.Rule == reclaim.ObjectsRule { // work, and no cache
			add(one.Path, scan.Place{}, about{kind: kindWorkspace, conversation: one.ConversationID, item: i})
			continue
		}
		for len(outer) > 0 && !belowDir(outer[len(outer)-1].Path, one.Path) {
			outer = outer[:len(outer)-1]
		}
		search := one.Search
		for _, around := range outer {
			search = max(search, around.Search)
		}
		outer = append(outer, one)
		add(one.Path, scan.Place{Estimate: true, Watch: int(search)}, about{kind: kindItem, conversation: one.ConversationID, item: i})
	}
	add(reclaim.TrashDir, scan.Place{Estimate: true}, about{kind: kindTrash})
	return c
}

// sums reads a walk by the chart that it was made for.
type sums struct {
	*charted
	result *scan.Result
	items  []box.ReclaimItem
}

func newSums(found *charted, result *scan.Result) *sums {
	s := &sums{charted: found, result: result}
	if result.Sizes == nil { // nothing was measured
		s.charted = &charted{Selection: found.Selection}
	}
	for i := range found.Items {
		s.items = append(s.items, found.Items[i].ReclaimItem)
		s.judge(&s.items[i], &found.Items[i])
	}
	return s
}

// judge measures one item, and leaves it when it holds what it must not.
func (s *sums) judge(item *box.ReclaimItem, candidate *reclaim.Candidate) {
	labels := s.labels(item.Path)
	item.Bytes, _ = s.result.Freed(labels...)
	for _, label := range labels {
		item.LowerBound = item.LowerBound || s.result.Partial[label]
		if item.Skipped != "" {
			continue
		}
		if pattern := candidate.Search.Forbids([]byte(s.result.Watched[label])); pattern != "" {
			item.Skipped = "holds " + pattern + ", which no cache holds"
		}
	}
	for _, fault := range s.result.Faults {
		if item.Skipped == "" && errors.Is(fault.Err, scan.ErrMounted) && belowDir(item.Path, fault.Path) {
			item.Skipped = "another filesystem is mounted inside"
		}
	}
}

// labels are those of a directory and of all that was charted inside.
func (s *sums) labels(dir string) []int {
	var out []int
	for i := range s.places {
		if belowDir(dir, s.places[i].Path) {
			out = append(out, s.places[i].Label)
		}
	}
	return out
}

// tell fills in what one conversation takes.
func (s *sums) tell(entry *box.ConversationStorage) {
	mine := false
	for label, what := range s.about {
		if what.conversation != entry.ID {
			continue
		}
		bytes := s.result.Sizes[label].Allocated
		switch what.kind {
		case kindHistory:
			entry.HistoryBytes += bytes
			continue
		case kindWorkspace:
			entry.WorkspaceBytes += bytes
		case kindItem:
			if s.items[what.item].Tier == box.TierCaches {
				entry.CachesBytes += bytes
			} else {
				entry.DependenciesBytes += bytes
			}
		case kindTrash:
		}
		mine = true
	}
	if mine {
		entry.ByTier = s.byTier(entry.ID)
	}
}

// byTier is what a pass of each tier frees, of one conversation or of all.
func (s *sums) byTier(conversation string) map[box.Tier]int64 {
	out := make(map[box.Tier]int64, 3)
	for _, tier := range []box.Tier{box.TierCaches, box.TierDependencies, box.TierRuntime} {
		var labels []int
		for _, item := range reclaim.Covers(s.items, tier, func(item *box.ReclaimItem) bool {
			return conversation == "" || item.ConversationID == conversation
		}) {
			labels = append(labels, s.labels(item.Path)...)
		}
		out[tier], _ = s.result.Freed(labels...)
	}
	return out
}

// left are the items that a pass would leave.
func (s *sums) left() []box.ReclaimItem {
	return slices.DeleteFunc(slices.Clone(s.items), func(item box.ReclaimItem) bool { return item.Skipped == "" })
}

// trash is what lies in the trash. The directory itself, however large, stays.
func (s *sums) trash(root string) int64 {
	for label, what := range s.about {
		if what.kind == kindTrash {
			bytes, _ := s.result.Freed(label)
			return max(0, bytes-allocated(filepath.Join(root, reclaim.TrashDir)))
		}
	}
	return 0
}

// allocated is what a directory takes itself; nothing when that is not known.
func allocated(dir string) int64 {
	if info, err := os.Lstat(dir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return st.Blocks * 512
		}
	}
	return 0
}
