package box

// Unsaved is the answer of GET /api/workspace/unsaved: the work in a box that
// exists nowhere else, as far as that can be told from inside. Nothing is asked
// of a remote, and nothing that a repository says is executed. Asking never moves
// the idle clock.
type Unsaved struct {
	Repositories []UnsavedRepository `json:"repositories"`
	// PlainFiles lie in no repository, so nothing is known of another copy;
	// PlainBytes is their size. What can be made again is not counted.
	PlainFiles int64 `json:"plain_files"`
	PlainBytes int64 `json:"plain_bytes"`
	// Unknown lists what could not be looked at, each with the reason. It counts
	// as unsaved.
	Unknown []string `json:"unknown,omitzero"`
	// Clean says that everything was looked at and nothing is unsaved. It is never
	// true of what is not known.
	Clean bool `json:"clean"`
}

// RepositoryKind says what a repository is to another one.
type RepositoryKind string

// The kinds of repositories in a box.
const (
	RepositoryClone     RepositoryKind = "clone"     // stands alone
	RepositoryWorktree  RepositoryKind = "worktree"  // added to another one's
	RepositorySubmodule RepositoryKind = "submodule" // recorded in the one around it
	RepositoryBare      RepositoryKind = "bare"      // has no working tree
)

// UnsavedRepository is what one repository holds that no remote has, as of the
// last time it heard of one. Lists of paths show the first 100; the counts
// count all.
type UnsavedRepository struct {
	Path string         `json:"path"` // relative to the box's root
	Kind RepositoryKind `json:"kind"`
	// Unknown says why it could not be judged, empty when it could. The rest then
	// is what was seen until there, and is not all.
	Unknown string `json:"unknown,omitzero"`
	// Branch is checked out, empty when the head is detached; Head is its commit,
	// empty before the first one.
	Branch   string `json:"branch,omitzero"`
	Head     string `json:"head,omitzero"`
	Detached bool   `json:"detached,omitzero"`
	// Uncommitted are tracked and changed, Untracked neither tracked nor ignored.
	// Hidden are changed or may be, while git was told not to look.
	Uncommitted PathList `json:"uncommitted,omitzero"`
	Untracked   PathList `json:"untracked,omitzero"`
	Hidden      PathList `json:"hidden,omitzero"`
	// Ignored are left out by git and cannot be made again, such as ".env".
	Ignored PathList `json:"ignored,omitzero"`
	// InProgress is what was begun and not ended, such as "rebase".
	InProgress []string `json:"in_progress,omitzero"`
	// UnpushedCommits are on no remote; Unpushed names the branches that have
	// them.
	UnpushedCommits int              `json:"unpushed_commits"`
	Unpushed        []UnpushedBranch `json:"unpushed,omitzero"`
	// UnnamedCommits are on no branch, tag or remote: on a detached head, or in a
	// reflog alone. They go with this working tree.
	UnnamedCommits int `json:"unnamed_commits"`
	// Stashes is shared by all worktrees of a repository, newest first.
	Stashes []string `json:"stashes,omitzero"`
	// Submodules are the paths of those that are checked out here; each is an
	// entry of its own.
	Submodules []string `json:"submodules,omitzero"`
	// Remotes is how many there are; without one, nothing is pushed.
	Remotes int `json:"remotes"`
	// FetchedSeconds is how long ago the repository heard of a remote, by the
	// box's clock; -1 when that is not known. What was pushed from elsewhere since
	// then, or removed there, is not seen.
	FetchedSeconds int64 `json:"fetched_seconds"`
	// SurvivesLocal says whether all commits stay when this working tree goes and
	// its repository stays, SurvivesRemote whether they stay when the box goes.
	SurvivesLocal  Tri `json:"survives_local"`
	SurvivesRemote Tri `json:"survives_remote"`
	// Saved says that all of this was looked at and nothing is unsaved.
	Saved bool `json:"saved"`
}

// PathList is a number of paths, relative to the repository, and the first of
// them.
type PathList struct {
	Count int      `json:"count"`
	Paths []string `json:"paths,omitzero"`
}

// UnpushedBranch is a branch with commits that no remote has.
type UnpushedBranch struct {
	Branch  string `json:"branch"`
	Commits int    `json:"commits"` // -1 when there are too many such branches to count each
}

// maxListed bounds the paths that a [PathList] shows.
const maxListed = 100

// Add counts a path and shows it while there is room.
func (l *PathList) Add(path string) {
	if l.Count++; len(l.Paths) < maxListed {
		l.Paths = append(l.Paths, path)
	}
}

// Judge sets Saved, and what the commits survive, from the rest.
func (r *UnsavedRepository) Judge() {
	known := func(kept bool) Tri {
		switch {
		case r.Unknown != "":
			return Unknown
		case kept:
			return Yes
		}
		return No
	}
	r.SurvivesLocal = known(r.UnnamedCommits == 0)
	r.SurvivesRemote = known(r.UnpushedCommits == 0 && r.UnnamedCommits == 0 && len(r.Stashes) == 0)
	r.Saved = r.Unknown == "" && r.SurvivesRemote == Yes && len(r.InProgress) == 0 &&
		r.Uncommitted.Count+r.Untracked.Count+r.Hidden.Count+r.Ignored.Count == 0
}

// Judge sets Clean from the rest.
func (u *Unsaved) Judge() {
	u.Clean = len(u.Unknown) == 0 && u.PlainFiles == 0
	for i := range u.Repositories {
		u.Clean = u.Clean && u.Repositories[i].Saved
	}
}
