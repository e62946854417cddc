package exports

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// quietFor is how old an export of an open workspace must be before it may go:
// an export that runs now may be about to name its objects.
const quietFor = 24 * time.Hour

// Stored is one export as its manifest tells it.
type Stored struct {
	Receipt   box.Receipt `json:"receipt"`
	CreatedAt time.Time   `json:"created_at"`
	// Damage is why nothing else is known of it but its key.
	Damage string `json:"damage,omitzero"`
}

// List returns the exports of a workspace, the oldest first. No object is read
// but the manifests; a damaged one is told as such.
func (s *Store) List(ctx context.Context, workspace string) ([]Stored, error) {
	if err := box.ValidateWorkspace(workspace); err != nil {
		return nil, err
	}
	there, err := s.exportedOf(ctx, workspace)
	if err != nil {
		return nil, err
	}
	var out []Stored
	for _, o := range there.manifests {
		m, sum, err := s.manifest(ctx, o.key)
		switch {
		case err == nil:
			out = append(out, Stored{Receipt: m.receipt(o.key, sum), CreatedAt: m.CreatedAt})
		case damaged(err), box.ClassOf(err) == box.ClassNotFound:
			out = append(out, Stored{Receipt: box.Receipt{Workspace: workspace, Key: o.key}, Damage: err.Error()})
		default:
			return nil, err
		}
	}
	slices.SortStableFunc(out, func(a, b Stored) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out, nil
}

// Deletion is what the deletion of one export would take away.
type Deletion struct {
	Workspace string `json:"workspace"`
	Export    Stored `json:"export"`
	// Objects would go beside the manifest, and StoredBytes is how much of the
	// store all of it takes.
	Objects     int   `json:"objects"`
	StoredBytes int64 `json:"stored_bytes"`
	// Needed is how many of its objects stay, since other exports name them.
	Needed int `json:"needed,omitzero"`
	// Lost are the conversations of which no other export holds as much.
	Lost []string `json:"lost,omitempty"`
	// LostFiles says that it holds the workspace's files, and no other export holds
	// them as they were then; WithFiles is how many others hold them as they were at
	// another time.
	LostFiles bool `json:"lost_files,omitzero"`
	WithFiles int  `json:"with_files,omitzero"`
	// Others is how many other exports the workspace has.
	Others int `json:"others,omitzero"`
	// Later says that pieces of the workspace's archive go only after the workspace
	// is closed.
	Later bool `json:"later,omitzero"`
	// Token confirms it, until Expires.
	Token   string    `json:"token,omitzero"`
	Expires time.Time `json:"expires,omitzero"`

	manifest object
	goes     []object
}

// shown is what a confirmation is bound to.
func (d Deletion) shown() (string, error) {
	d.Token, d.Expires = "", time.Time{}
	raw, err := json.Marshal(d)
	if err != nil {
		return "", box.Errorf(box.ClassInternal, "encode what would be deleted: %w", err)
	}
	for _, o := range d.goes {
		raw = append(raw, "\n"+o.key...)
	}
	return string(raw), nil
}

// AskDeletion answers what the deletion of an export would take away, and the
// token that confirms it. It deletes nothing.
//
// FailedPrecondition: the workspace is open, and the export is the newest of its
// box or younger than a day: its deletion would take what the box may be deleted
// on, or what an export that runs now is about to name. Unknown: another export
// of the workspace cannot be read, so nobody can tell what it needs.
func (s *Store) AskDeletion(ctx context.Context, workspace, key string) (Deletion, error) {
	d, err := s.deletion(ctx, workspace, key)
	if err != nil {
		return Deletion{}, err
	}
	shown, err := d.shown()
	if err != nil {
		return Deletion{}, err
	}
	now := s.now().UTC()
	d.Token, d.Expires = box.ExportToken(shown, now), now.Add(box.ExportTokenLife.Std()).Truncate(time.Second)
	return d, nil
}

// DeleteExport deletes one export that a person was shown by [Store.AskDeletion]: its
// manifest first, then the objects that no other export names. It is in the
// ledger before and after. Repeated after a crash it may find no manifest any
// more, which is NotFound; what was left goes with a sweep after the workspace
// is closed.
//
// FailedPrecondition: the token is for something else that was shown, or too
// old; ask again.
func (s *Store) DeleteExport(ctx context.Context, workspace, key, token, by string) (Deletion, error) {
	d, err := s.deletion(ctx, workspace, key)
	if err != nil {
		return Deletion{}, err
	}
	shown, err := d.shown()
	if err != nil {
		return Deletion{}, err
	}
	if err := box.CheckExportToken(token, shown, s.now()); err != nil {
		return Deletion{}, err
	}
	why := removal{workspace: workspace, by: by, because: "a person confirmed it"}
	manifests := []object{d.manifest}
	if err := s.removeManifests(ctx, why, manifests); err != nil {
		return d, err
	}
	// Another export may have come meanwhile, that names some of them.
	needed, _, err := s.needed(ctx, workspace, key)
	if err != nil {
		return d, err
	}
	goes := slices.DeleteFunc(slices.Clone(d.goes), func(o object) bool { return needed[o.key] })
	return d, s.removeOthers(ctx, why, manifests, goes)
}

func (s *Store) deletion(ctx context.Context, workspace, key string) (Deletion, error) {
	if err := box.ValidateWorkspace(workspace); err != nil {
		return Deletion{}, err
	}
	owner, epoch, attempt, ok := parseManifestKey(key)
	if !ok || owner != workspace {
		return Deletion{}, box.Invalidf("export", "%q is not the key of an export of workspace %s; its list names them", printable(key), workspace)
	}
	d := Deletion{Workspace: workspace, Export: Stored{Receipt: box.Receipt{Workspace: workspace, Key: key}}}
	m, sum, err := s.manifest(ctx, key)
	switch {
	case box.ClassOf(err) == box.ClassNotFound:
		return Deletion{}, box.Errorf(box.ClassNotFound, "there is no export %s", key)
	case damaged(err):
		d.Export.Damage = err.Error()
	case err != nil:
		return Deletion{}, err
	default:
		d.Export = Stored{Receipt: m.receipt(key, sum), CreatedAt: m.CreatedAt}
	}
	closed, _, err := s.Closed(ctx, workspace)
	if err != nil {
		return Deletion{}, err
	}
	needed, others, err := s.needed(ctx, workspace, key)
	if err != nil {
		return Deletion{}, err
	}
	if !closed {
		if err := s.mayGoWhileOpen(d.Export, epoch, others); err != nil {
			return Deletion{}, err
		}
	}
	d.Lost, d.Others = lostWith(m, others), len(others)
	d.LostFiles, d.WithFiles = lostFiles(d.Export.Receipt.Archive, others)
	mine := map[string]bool{}
	if err := s.named(ctx, m, func(key string) { mine[key] = true }); err != nil {
		if !damaged(err) {
			return Deletion{}, err
		}
		d.Export.Damage = err.Error() // what it named beside its own directory stays until the end
	}
	there, err := s.exportedOf(ctx, workspace)
	if err != nil {
		return Deletion{}, err
	}
	prefix := attemptPrefix(workspace, epoch, attempt)
	for _, o := range append(there.manifests, there.others...) {
		switch {
		case o.key == key:
			d.manifest = o
			d.StoredBytes += o.size
		case manifestKeyForm.MatchString(o.key), !mine[o.key] && !strings.HasPrefix(o.key, prefix):
		case needed[o.key]:
			d.Needed++
		case !closed && strings.HasPrefix(o.key, chunksPrefix(workspace)):
			// An export that runs now may have found it there, and no manifest
			// says so yet.
			d.Later = true
		default:
			d.goes = append(d.goes, o)
			d.StoredBytes += o.size
		}
	}
	d.Objects = len(d.goes)
	return d, nil
}

// mayGoWhileOpen refuses what an open workspace may still stand on.
func (s *Store) mayGoWhileOpen(e Stored, epoch int, others []Manifest) error {
	newest := !slices.ContainsFunc(others, func(m Manifest) bool { return m.Epoch == epoch && m.CreatedAt.After(e.CreatedAt) })
	switch {
	case newest:
		return box.Errorf(box.ClassFailedPrecondition, "%s is the newest export of box %d, and the workspace is open; export again and delete the older one a day later, or delete the box first", e.Receipt.Key, epoch)
	case s.now().Sub(e.CreatedAt) < quietFor:
		return box.Errorf(box.ClassFailedPrecondition, "%s is younger than %s, and the workspace is open: an export that runs now may need it; try again later", e.Receipt.Key, box.Duration(quietFor))
	}
	return nil
}

// lostWith returns the conversations of m of which no other export has as many
// events.
func lostWith(m Manifest, others []Manifest) []string {
	most := map[string]int{}
	for _, o := range others {
		for _, c := range o.Conversations {
			most[c.ID] = max(most[c.ID], c.Events+1)
		}
	}
	var out []string
	for _, c := range m.Conversations {
		if most[c.ID] <= c.Events {
			out = append(out, c.ID)
		}
	}
	return out
}

// lostFiles reports whether no other export holds the same files, and how many
// hold some.
func lostFiles(a box.ArchiveReceipt, others []Manifest) (lost bool, some int) {
	lost = a.Held()
	for _, o := range others {
		if o.Archive == nil {
			continue
		}
		some++
		lost = lost && o.Archive.SHA256 != a.SHA256
	}
	return lost, some
}

// needed returns all keys that the other exports of a workspace name, and their
// manifests. Unknown: one cannot be read, so that nothing may go.
func (s *Store) needed(ctx context.Context, workspace, except string) (map[string]bool, []Manifest, error) {
	there, err := s.exportedOf(ctx, workspace)
	if err != nil {
		return nil, nil, err
	}
	keys, manifests := map[string]bool{}, []Manifest(nil)
	for _, o := range there.manifests {
		if o.key == except {
			continue
		}
		m, _, err := s.manifest(ctx, o.key)
		if box.ClassOf(err) == box.ClassNotFound {
			continue // deleted meanwhile, which takes its word away
		}
		if err == nil {
			err = s.named(ctx, m, func(key string) { keys[key] = true })
		}
		if err != nil {
			return nil, nil, box.Errorf(box.ClassOf(err), "what export %s needs cannot be told, so nothing is deleted: %w", o.key, err)
		}
		manifests = append(manifests, m)
	}
	return keys, manifests, nil
}

// named calls fn for every key that a manifest needs beside its own: the one
// place to add to when manifests name more. It reads the index of the workspace's
// archive, so an error means that not all were told.
func (s *Store) named(ctx context.Context, m Manifest, fn func(key string)) error {
	for _, c := range m.Conversations {
		fn(c.Key)
	}
	if m.Secrets != nil {
		fn(m.Secrets.Key)
	}
	if m.Archive == nil {
		return nil
	}
	return s.eachObject(ctx, m.Workspace, *m.Archive, func(key string) error {
		fn(key)
		return nil
	})
}
