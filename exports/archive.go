package exports

import (
	"context"

	"github.com/openhands/boxkeeper/box"
)

// WorkspaceArchive is the workspace in an export: the tar that the box gave, cut
// into chunks that all exports of a workspace share.
type WorkspaceArchive struct {
	Index  WorkspaceIndex `json:"index"`
	Bytes  int64          `json:"bytes"`  // of the tar
	SHA256 string         `json:"sha256"` // of the tar
	Chunks int            `json:"chunks"`
	// StoredBytes is what its chunks take in the store, each one counted once.
	StoredBytes  int64 `json:"stored_bytes"`
	Files        int64 `json:"files"`
	Repositories int   `json:"repositories"`
	// Missing counts what could not be read in the box and cannot be made again,
	// LeftOut what is not in it for whatever reason, Changed the files that changed
	// while they were read. The archive's own manifest and lists name them.
	Missing int64 `json:"missing"`
	LeftOut int64 `json:"left_out"`
	Changed int64 `json:"changed"`
}

// WorkspaceIndex is the object that says where everything in the tar is. Its
// last bytes are its directory, by which a reader begins.
type WorkspaceIndex struct {
	Key             string `json:"key"`
	Bytes           int64  `json:"bytes"`
	SHA256          string `json:"sha256"`
	DirectoryBytes  int64  `json:"directory_bytes"`
	DirectorySHA256 string `json:"directory_sha256"`
}

// maxReason bounds why there is no archive.
const maxReason = 300

// badArchive says how the part of a manifest that is about the workspace cannot
// be right, or nothing.
func (m Manifest) badArchive() string {
	a := m.Archive
	switch {
	case m.Version == 1 && (a != nil || m.NoArchive != ""):
		return "it has a part that its version has not"
	case m.Version == 1:
		return ""
	case (a == nil) != (m.NoArchive != "") || len(m.NoArchive) > maxReason || a != nil && m.Withheld:
		return "it neither has an archive of the workspace nor says why not, or both"
	case a == nil:
		return ""
	case !indexOf(a.Index.Key, m.Workspace) || !sumForm.MatchString(a.Index.SHA256) || !sumForm.MatchString(a.Index.DirectorySHA256) || !sumForm.MatchString(a.SHA256):
		return "its archive of the workspace has a sum or a key of a wrong form"
	case a.Index.DirectoryBytes <= 0 || a.Index.DirectoryBytes > maxPackedDirectory || a.Index.Bytes < a.Index.DirectoryBytes,
		a.Bytes <= 0 || a.Bytes > maxTarBytes || a.Chunks <= 0 || a.Chunks > maxChunks || a.StoredBytes <= 0,
		a.Files < 0 || a.Repositories < 0 || a.Missing < 0 || a.LeftOut < 0 || a.Changed < 0:
		return "its archive of the workspace has an impossible count"
	}
	return ""
}

// archived is what a receipt says of the workspace.
func (m Manifest) archived() box.ArchiveReceipt {
	if m.Archive == nil {
		return box.ArchiveReceipt{None: m.NoArchive, Withheld: m.Withheld}
	}
	a := m.Archive
	return box.ArchiveReceipt{
		Bytes: a.Bytes, Files: a.Files, Repositories: a.Repositories, Missing: a.Missing, Changed: a.Changed, SHA256: a.SHA256,
	}
}

// proveArchive reads the index and every chunk of an archive and compares their
// sums; seen is told of each object before it is read. Unknown means lost or
// altered.
func (s *Store) proveArchive(ctx context.Context, workspace string, a WorkspaceArchive, seen func(key string) error, tick func(int)) error {
	if err := seen(a.Index.Key); err != nil {
		return err
	}
	sum, size, err := s.sum(ctx, a.Index.Key, tick)
	switch {
	case box.ClassOf(err) == box.ClassNotFound, err == nil && (sum != a.Index.SHA256 || size != a.Index.Bytes):
		return lostObject(a.Index.Key)
	case err != nil:
		return err
	}
	x, err := s.openIndex(ctx, workspace, a)
	if err != nil {
		return err
	}
	read := newChunkReader(s, workspace)
	defer read.close()
	return x.eachChunk(ctx, func(c chunk) error {
		if err := seen(chunkKey(workspace, c.name(), int(c.copy))); err != nil {
			return err
		}
		_, err := read.prove(ctx, c, tick)
		if box.ClassOf(err) == box.ClassNotFound {
			return lostChunk(workspace, c)
		}
		return err
	})
}

// eachObject tells the keys of all objects of an archive, the index first.
func (s *Store) eachObject(ctx context.Context, workspace string, a WorkspaceArchive, do func(key string) error) error {
	if err := do(a.Index.Key); err != nil {
		return err
	}
	x, err := s.openIndex(ctx, workspace, a)
	if err != nil {
		return err
	}
	return x.eachChunk(ctx, func(c chunk) error { return do(chunkKey(workspace, c.name(), int(c.copy))) })
}

// lookForArchive looks once more for every object, without reading any.
func (s *Store) lookForArchive(ctx context.Context, workspace string, a WorkspaceArchive) error {
	return s.eachObject(ctx, workspace, a, func(key string) error {
		_, err := s.mark(ctx, key)
		if box.ClassOf(err) == box.ClassNotFound {
			return box.Errorf(box.ClassUnknown, "the export store lost %s; check the store, then export again", key)
		}
		return err
	})
}
