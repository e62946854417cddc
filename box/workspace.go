package box

import (
	"encoding/json"
	"unicode/utf8"
)

// The names in the archive of a workspace, a tar compressed with zstd. What lies
// at workspace/a.txt in the box is at files/workspace/a.txt.
const (
	WorkspaceFiles        = "files/"        // the tree, as it lies in the box
	WorkspaceLists        = "entries/"      // what the tree holds, a JSON document a line
	WorkspaceRepositories = "repositories/" // bundles and patches, in parts
	WorkspaceManifest     = "manifest.json" // comes last
)

// Manifest is the last entry of a workspace's archive, by which a reader knows
// that it got all of it.
type Manifest struct {
	Version int `json:"version"` // 1
	// Entries, Files and Bytes count what is below files/.
	Entries int64 `json:"entries"`
	Files   int64 `json:"files"`
	Bytes   int64 `json:"bytes"`
	// Lists are the entries below entries/, in order. A list comes after the
	// entries that it is about.
	Lists []ManifestPart `json:"lists"`
	// LeftOut counts what is not in the archive on purpose or since it could not
	// be read, Changed what changed while it was read. The lists name them.
	LeftOut int64 `json:"left_out"`
	Changed int64 `json:"changed"`
	// Repositories are those found in the tree, whose git directories are not in
	// it.
	Repositories []ManifestRepository `json:"repositories"`
	// Incomplete says what is missing, beside what can be made again; empty
	// when nothing is. Missing counts it, beyond what is named.
	Incomplete []string `json:"incomplete,omitzero"`
	Missing    int64    `json:"missing,omitzero"`
}

// ManifestPart is one entry of the archive, or the entries of one stream joined.
type ManifestPart struct {
	Name   string `json:"name"` // a directory when the stream has parts
	Parts  int    `json:"parts,omitzero"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// ManifestRepository is one repository in the archive. To have it back, join the
// parts of the bundle, "git clone" the file, lay the tree over it, and put the
// index right with "git apply --cached" of the staged patch.
type ManifestRepository struct {
	Path   string         `json:"path"`
	Kind   RepositoryKind `json:"kind"`
	Branch string         `json:"branch,omitzero"`
	Head   string         `json:"head,omitzero"`
	// Bundle holds every reference, and below refs/rescue/ what none names:
	// stashes, detached heads, commits of reflogs. It is the bundle of the
	// repository with this path when BundleOf is set.
	Bundle   ManifestPart `json:"bundle,omitzero"`
	BundleOf string       `json:"bundle_of,omitzero"`
	// Staged and Unstaged are patches: from the last commit to the index, and
	// from there to the working tree.
	Staged   ManifestPart `json:"staged,omitzero"`
	Unstaged ManifestPart `json:"unstaged,omitzero"`
	// StagedLarge counts changes that are staged and in no patch, since a side of
	// them is over 8 MiB. The tree has them as they were last; what only the index
	// had of one is missing.
	StagedLarge int `json:"staged_large,omitzero"`
	// References counts those of the bundle, Rescued how many of them are ours.
	References int `json:"references"`
	Rescued    int `json:"rescued"`
	// Remotes maps names to addresses, without what they hold of a user.
	Remotes map[string]string `json:"remotes,omitzero"`
	// Shallow says that the bundle begins in the middle of the history.
	Shallow bool `json:"shallow,omitzero"`
	// Unbundled says why there is no bundle. The git directory is then in the
	// archive as files, below repositories/NUMBER/git/, without its settings.
	Unbundled string `json:"unbundled,omitzero"`
	// GitFiles counts those files, the empty ones left out.
	GitFiles int `json:"git_files,omitzero"`
	// BrokenOff counts streams of it that ended early and are of no use.
	BrokenOff int `json:"broken_off,omitzero"`
	// Stashes are its stash, newest first; the bundle holds their commits. Absent
	// where the repository is a worktree, which shares it.
	Stashes []ManifestStash `json:"stashes,omitzero"`
	// InProgress is what was begun and not ended, such as "rebase". Its state is
	// not in the archive, but what it names is.
	InProgress []string `json:"in_progress,omitzero"`
}

// wireRepository is a repository in JSON, which holds text alone. Names in a box are
// bytes: what is no text has a field of its own beside the one that can be read.
type wireRepository struct {
	plainRepository
	PathBase64     []byte `json:"path_base64,omitzero"`
	BranchBase64   []byte `json:"branch_base64,omitzero"`
	BundleOfBase64 []byte `json:"bundle_of_base64,omitzero"`
}

type plainRepository ManifestRepository

func (w *wireRepository) names() []wireName {
	return []wireName{{&w.Path, &w.PathBase64}, {&w.Branch, &w.BranchBase64}, {&w.BundleOf, &w.BundleOfBase64}}
}

type wireName struct {
	text  *string
	bytes *[]byte
}

// MarshalJSON writes names that are no text in full.
func (r ManifestRepository) MarshalJSON() ([]byte, error) {
	w := wireRepository{plainRepository: plainRepository(r)}
	for _, name := range w.names() {
		if !utf8.ValidString(*name.text) {
			*name.bytes = []byte(*name.text)
		}
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *ManifestRepository) UnmarshalJSON(text []byte) error {
	var w wireRepository
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	for _, name := range w.names() {
		if *name.bytes != nil {
			*name.text = string(*name.bytes)
		}
	}
	*r = ManifestRepository(w.plainRepository)
	return nil
}

// ManifestStash is one entry of a stash.
type ManifestStash struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
}

// ManifestEntry is one line of a list.
type ManifestEntry struct {
	// Name is the place below files/; NameBase64 holds it instead when it is not
	// UTF-8.
	Name       string `json:"name,omitzero"`
	NameBase64 []byte `json:"name_base64,omitzero"`
	// Type is "file", "directory", "link" (to Target, never followed), "hardlink"
	// (to the entry Target) or "left-out".
	Type   string `json:"type"`
	Target string `json:"target,omitzero"`
	Bytes  int64  `json:"bytes,omitzero"`
	SHA256 string `json:"sha256,omitzero"`
	Mode   uint32 `json:"mode,omitzero"`
	// Changed says that the file changed while it was read, so that its bytes may
	// be of two moments; what was cut off meanwhile is zeros.
	Changed bool `json:"changed,omitzero"`
	// Why says why it was left out.
	Why string `json:"why,omitzero"`
}
