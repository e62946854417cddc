package reclaim

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// Repos asks git, which is run so that no configuration of a repository is
// carried out.
type Repos interface {
	// IgnoredDirs lists the directories of the work tree at the absolute path
	// workTree, relative to it and topmost only, in which everything is ignored
	// and nothing is tracked. With some named in only, the answer need say nothing
	// of others and comes quickly. An error of any kind keeps all of it.
	IgnoredDirs(ctx context.Context, workTree string, only ...string) ([]string, error)
}

// homeDir is the box's own home, below the root.
const homeDir = "home"

// placed is a Place of a layout, or the box's own home, with the paths made
// relative to the root.
type placed struct {
	Place
	// elsewhere are workspaces of the same conversation that another layout knows.
	elsewhere []string
	layout    Layout // nil for the box's own home
}

// scope limits a plan.
type scope struct {
	tier box.Tier
	// only are conversations; nil means all, and what belongs to none.
	only []string
	// place, when set, is the one place to look at.
	place  *placed
	accept bool // a person gives up what is nowhere else, see Remover
}

// places lists the box's own home and what the layouts know, longest unused
// first within each layout. A layout that cannot be read is told in faults, and
// nothing of it is taken.
func (r *Reclaimer) places(ctx context.Context) (all []placed, faults []string) {
	own := placed{Place: Place{Home: homeDir}}
	for i, layout := range r.opts.Layouts {
		found, err := layout.Places(ctx)
		if err != nil {
			faults = append(faults, fmt.Sprintf("list the conversations of layout %d: %v", i+1, err))
			continue
		}
		for _, place := range found {
			at := r.below(place)
			if at.Home == own.Home {
				own.Home = "" // its layout says who uses it
			}
			all = append(all, placed{Place: at, layout: layout})
		}
	}
	apart(all)
	together(all)
	if own.Home != "" {
		all = append(all, own)
	}
	return all, faults
}

// apart makes places busy that overlap with one of another conversation, or of
// none: to hold one of them says nothing about who uses the other.
func apart(all []placed) {
	tops := map[string][]int{} // by path
	for i, place := range all {
		for _, top := range place.tops() {
			tops[top] = append(tops[top], i)
		}
	}
	for i := range all {
		for _, top := range all[i].tops() {
			for at := top; at != "." && at != "/"; at = path.Dir(at) {
				for _, j := range tops[at] {
					if all[j].Conversation == all[i].Conversation {
						continue
					}
					all[i].Busy = cmp.Or(all[i].Busy, "shares "+top+" with another conversation")
					all[j].Busy = cmp.Or(all[j].Busy, "shares "+at+" with another conversation")
				}
			}
		}
	}
}

// together makes what keeps a conversation in one layout keep it in the others:
// it is archived as a whole.
func together(all []placed) {
	same := map[string][]int{}
	for i := range all {
		if id := all[i].Conversation; id != "" {
			same[id] = append(same[id], i)
		}
	}
	for _, group := range same {
		busy := ""
		for _, i := range group {
			busy = cmp.Or(busy, all[i].Busy)
		}
		for _, i := range group {
			all[i].Busy = cmp.Or(all[i].Busy, busy)
			for _, j := range group {
				if i != j {
					all[i].elsewhere = append(all[i].elsewhere, all[j].Workspaces...)
				}
			}
		}
	}
}

// tops are the directories that a place names.
func (p *placed) tops() []string {
	return slices.DeleteFunc(append([]string{p.Home, p.Runtime}, p.Workspaces...), func(top string) bool { return top == "" })
}

// below makes the paths of a place relative to the root. One that does not lie
// below it, or where the box keeps what must stay, makes the place busy.
func (r *Reclaimer) below(place Place) Place {
	fix := func(name string) string {
		if name == "" {
			return ""
		}
		at := filepath.Clean(name)
		if filepath.IsAbs(at) {
			root := r.root
			if real := r.tree.realPath(); real != root && strings.HasPrefix(at, real+"/") {
				root = real
			}
			below, err := filepath.Rel(root, at)
			if err != nil {
				below = ".."
			}
			at = below
		}
		first, _, _ := strings.Cut(filepath.ToSlash(at), "/")
		switch first {
		case "..", ".":
			place.Busy = "its layout names " + name + ", which does not lie below the box"
		case trashName, "run", "conversations":
			place.Busy = "its layout names " + name + ", where nothing may be taken"
		}
		return filepath.ToSlash(at)
	}
	place.Home, place.Runtime = fix(place.Home), fix(place.Runtime)
	place.Workspaces = slices.Clone(place.Workspaces)
	for i, workspace := range place.Workspaces {
		place.Workspaces[i] = fix(workspace)
	}
	if place.Runtime != "" && !strings.Contains(place.Runtime, "/") {
		place.Busy = "its layout names " + place.Runtime + " as its runtime, which holds more than one conversation"
	}
	return place
}

// wants reports whether the place is in the scope.
func (s scope) wants(p *placed) bool {
	return s.only == nil || slices.Contains(s.only, p.Conversation)
}

// rule returns the rule of an item when that is about a directory of this
// place, so that a journal cannot name any other.
func (p *placed) rule(c *Catalogue, entry *item) *rule {
	if p.Conversation != entry.ConversationID || !filepath.IsLocal(entry.Path) || filepath.Clean(entry.Path) != entry.Path {
		return nil
	}
	rule := c.rule(entry.Rule)
	if rule == nil || rule.tier != entry.Tier {
		return nil
	}
	if rule.tier == box.TierRuntime {
		if entry.Path != p.Runtime {
			return nil
		}
		return rule
	}
	tops := p.Workspaces
	if rule.in == inHome {
		tops = []string{p.Home}
	}
	for _, top := range tops {
		if at, below := strings.CutPrefix(entry.Path, top+"/"); top != "" && below && c.covers(rule, at) {
			return rule
		}
	}
	return nil
}

// workspaceOf returns the workspace that a path lies in.
func (p *placed) workspaceOf(place string) string {
	for _, top := range p.Workspaces {
		if place == top || strings.HasPrefix(place, top+"/") {
			return top
		}
	}
	return ""
}

var conversationForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// scopeOf looks up the conversations of a request that is valid by itself.
func (r *Reclaimer) scopeOf(ctx context.Context, request box.ReclaimRequest) (scope, error) {
	out := scope{tier: box.TierCaches, accept: request.AcceptUnsaved}
	for _, tier := range request.Tiers {
		if level(tier) > level(out.tier) {
			out.tier = tier
		}
	}
	if len(request.ConversationIDs) == 0 || request.PlanID != "" {
		return out, nil
	}
	all, faults := r.places(ctx)
	for i, id := range request.ConversationIDs {
		field := fmt.Sprintf("conversation_ids[%d]", i)
		plain := strings.ToLower(strings.ReplaceAll(id, "-", ""))
		switch known := slices.ContainsFunc(all, func(p placed) bool { return p.Conversation == plain }); {
		case !conversationForm.MatchString(plain):
			return out, box.Invalidf(field, "%q is not the id of a conversation", id)
		case !known && len(faults) > 0:
			return out, &box.Error{Class: box.ClassUnavailable, Field: field, Message: "cannot tell whether there is such a conversation: " + strings.Join(faults, "; ")}
		case !known:
			return out, box.Invalidf(field, "nothing on the disk belongs to a conversation %q", id)
		}
		out.only = append(out.only, plain)
	}
	return out, nil
}
