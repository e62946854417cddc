package exports

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/openhands/boxkeeper/box"
)

const (
	// SecretsVersion is the version of [SecretsReport] that this program writes
	// and reads.
	SecretsVersion = 1

	maxReportBytes = 32 << 20
	// What is listed at most; everything is counted.
	maxListed       = 10_000
	maxListedObject = 200
)

// SecretsReport says where secrets stand in what an export holds, and never
// what they are. It is stored beside the manifest that names it; of a refused
// export it is what remains.
type SecretsReport struct {
	Version   int    `json:"version"`
	Workspace string `json:"workspace"`
	Epoch     int    `json:"epoch"`
	Attempt   string `json:"attempt"`
	// Rules names the rules that were applied: with other ones, other things are
	// found.
	Rules  string            `json:"rules"`
	Policy box.SecretsPolicy `json:"policy"`
	// Findings counts all finds, Masked those that are masked in what is stored,
	// and Unlisted those that are counted only.
	Findings int `json:"findings"`
	Masked   int `json:"masked"`
	Unlisted int `json:"unlisted,omitzero"`
	// Objects are sorted by key; each object of the export is there once.
	Objects []ScannedObject `json:"objects"`
}

// ScannedObject is one object of an export, read to its end: the zip of a
// conversation, or the index of a workspace's archive, which stands for all of that.
type ScannedObject struct {
	Key    string `json:"key"`
	SHA256 string `json:"sha256,omitzero"` // of what is stored
	// Withheld says that it is not in the store, for what was found in the export.
	Withheld bool `json:"withheld,omitzero"`
	// Packed counts bytes of git's bundles, packs and objects that could not be looked
	// into; for each there is a find by the rule [NotLookedInto]. Reports of earlier
	// versions, without Objects, count all of them: nobody looked into any.
	Packed int64 `json:"packed,omitzero"`
	// Objects counts the objects of git that were looked into, Partial the differences
	// of which only what they add was.
	Objects  int64 `json:"objects,omitzero"`
	Partial  int64 `json:"partial,omitzero"`
	Entries  int   `json:"entries"`
	Bytes    int64 `json:"bytes"` // unpacked
	Findings int   `json:"findings"`
	Masked   int   `json:"masked"`
	// List holds the first finds, in the order of the object.
	List []SecretFinding `json:"list,omitzero"`
}

// NotLookedInto is the rule of a find that is none: what has the name of a bundle,
// a pack or an object of git and cannot be read to its end may hold anything.
const NotLookedInto = "not-looked-into"

// SecretFinding is one place where a secret stands. In the history of a repository,
// where most of a version is that of the one before, each value is one find: the
// first one in the order of the archive.
type SecretFinding struct {
	Rule string `json:"rule"`
	// Entry is the name in the archive, with what is a secret in it masked.
	Entry string `json:"entry"`
	// InName says that the name holds it; the place is one in the name then.
	InName bool `json:"in_name,omitzero"`
	// Line, from 1, and Offset, in bytes, are those of the value in the entry as it
	// came from the box. Both are 0 when the whole entry is the secret.
	Line   int64 `json:"line"`
	Offset int64 `json:"offset"`
	// Git is of what it is in a bundle or a pack: "commit", "tree" (the names in it),
	// "blob", "tag", "difference" (of something that is not known), or "references"
	// (names of branches and tags). Object is the id, empty where it is not known, and
	// At the byte of the bundle or pack where it begins. Line, 0 where it is not known,
	// and Offset are those in the object then.
	Git    string `json:"git,omitzero"`
	Object string `json:"object,omitzero"`
	At     int64  `json:"at,omitzero"`
	// Why says why something could not be looked into from At on.
	Why string `json:"why,omitzero"`
	// Fingerprint is equal for equal values, in all exports of a workspace. It is
	// made with a key of the installation: nobody else can test a guess. What could not
	// be looked into has none.
	Fingerprint string `json:"fingerprint"`
	// Masked says that what is stored has a mask there.
	Masked bool `json:"masked,omitzero"`
}

// SecretsEntry names the report in a manifest.
type SecretsEntry struct {
	Key      string `json:"key"`
	SHA256   string `json:"sha256"`
	Findings int    `json:"findings"`
	Masked   int    `json:"masked,omitzero"`
	// Whole says that the files of the workspace were looked through too; earlier
	// versions looked at conversations only.
	Whole bool `json:"whole,omitzero"`
}

// found is what a receipt says of the secrets in an export.
func (m Manifest) found() box.SecretsReceipt {
	if m.Secrets == nil {
		return box.SecretsReceipt{}
	}
	return box.SecretsReceipt{Scanned: m.Secrets.Whole, Found: m.Secrets.Findings, Masked: m.Secrets.Masked}
}

// finish sorts the objects, cuts the lists and makes the sums.
func (r *SecretsReport) finish() {
	slices.SortFunc(r.Objects, func(a, b ScannedObject) int { return cmp.Compare(a.Key, b.Key) })
	r.Findings, r.Masked, r.Unlisted = 0, 0, 0
	listed := 0
	for i := range r.Objects {
		o := &r.Objects[i]
		o.List = o.List[:min(len(o.List), maxListed-listed)]
		listed += len(o.List)
		r.Findings += o.Findings
		r.Masked += o.Masked
		r.Unlisted += o.Findings - len(o.List)
	}
}

// decodeSecrets reads a report and refuses one that contradicts itself.
func decodeSecrets(key string, data []byte) (SecretsReport, error) {
	var r SecretsReport
	if err := json.Unmarshal(data, &r); err != nil {
		return r, box.Errorf(box.ClassUnknown, "the report %s cannot be trusted: it is not whole JSON of the known form", key)
	}
	if r.Version != SecretsVersion {
		return r, box.Errorf(box.ClassUnsupported, "the report %s has version %d, this program reads %d; use a newer program", key, r.Version, SecretsVersion)
	}
	want := r
	want.Objects = slices.Clone(r.Objects)
	want.finish()
	if want.Findings != r.Findings || want.Masked != r.Masked || want.Unlisted != r.Unlisted || r.Findings < r.Masked {
		return r, box.Errorf(box.ClassUnknown, "the report %s cannot be trusted: its sums are not those of its objects", key)
	}
	return r, nil
}

func (r *SecretsReport) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "encode the report of secrets: %w", err)
	}
	return append(data, '\n'), nil
}

// Secrets returns the report of secrets of an export, by the key of its
// manifest; of an export that was refused for what it holds, which has none, by
// the key of the report itself. NotFound: there is no such export, or it was taken
// by a program that did not look. Invalid: the key is of neither. Unknown: the report
// is lost or altered. It may be repeated.
func (s *Store) Secrets(ctx context.Context, key string) (SecretsReport, error) {
	if at := reportKeyForm.FindStringSubmatch(key); at != nil {
		return s.loneSecrets(ctx, key, at[1], at[2], at[3])
	}
	if _, _, _, ok := parseManifestKey(key); !ok {
		return SecretsReport{}, box.Invalidf("export", "%q is not the key of an export or of a report of secrets; the list of exports, or the error of the one that was refused, names it", printable(key))
	}
	m, _, err := s.manifest(ctx, key)
	if err != nil {
		return SecretsReport{}, err
	}
	if m.Secrets == nil {
		return SecretsReport{}, box.Errorf(box.ClassNotFound, "export %s was taken without a look for secrets; export again", key)
	}
	return s.secrets(ctx, *m.Secrets)
}

// loneSecrets reads a report that no manifest has the sum of.
func (s *Store) loneSecrets(ctx context.Context, key, workspace, epoch, attempt string) (SecretsReport, error) {
	data, err := s.small(ctx, key, maxReportBytes)
	if err != nil {
		return SecretsReport{}, err
	}
	r, err := decodeSecrets(key, data)
	if err == nil && (r.Workspace != workspace || fmt.Sprintf("%04d", r.Epoch) != epoch || r.Attempt != attempt) {
		err = box.Errorf(box.ClassUnknown, "the report %s cannot be trusted: it was written for another key", key)
	}
	return r, err
}

// secrets reads a report that a manifest names.
func (s *Store) secrets(ctx context.Context, entry SecretsEntry) (SecretsReport, error) {
	data, err := s.small(ctx, entry.Key, maxReportBytes)
	if box.ClassOf(err) == box.ClassNotFound || err == nil && sumOf(data) != entry.SHA256 {
		return SecretsReport{}, box.Errorf(box.ClassUnknown, "the export store lost or altered the report of secrets %s; export again", entry.Key)
	}
	if err != nil {
		return SecretsReport{}, err
	}
	return decodeSecrets(entry.Key, data)
}

// proveSecrets reads the report of secrets that a manifest names.
func (s *Store) proveSecrets(ctx context.Context, m Manifest) error {
	if m.Secrets == nil {
		return nil
	}
	_, err := s.secrets(ctx, *m.Secrets)
	return err
}
