package exports

import (
	"cmp"
	"context"
	"encoding/json"
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

// ScannedObject is one object of an export, read to its end.
type ScannedObject struct {
	Key      string `json:"key"`
	SHA256   string `json:"sha256"`
	Entries  int    `json:"entries"`
	Bytes    int64  `json:"bytes"` // unpacked
	Findings int    `json:"findings"`
	Masked   int    `json:"masked"`
	// List holds the first finds, in the order of the object.
	List []SecretFinding `json:"list,omitzero"`
}

// SecretFinding is one place where a secret stands.
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
	// Fingerprint is equal for equal values, in all exports of a workspace. It is
	// made with a key of the installation: nobody else can test a guess.
	Fingerprint string `json:"fingerprint"`
	// Masked says that what is stored has a mask there.
	Masked bool `json:"masked,omitzero"`
}

// SecretsEntry names the report in a manifest.
type SecretsEntry struct {
	Key      string `json:"key"`
	SHA256   string `json:"sha256"`
	Findings int    `json:"findings"`
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
// manifest. NotFound: the export was taken by a program that did not scan.
// Unknown: the report is lost or altered. It may be repeated.
func (s *Store) Secrets(ctx context.Context, manifest string) (SecretsReport, error) {
	m, _, err := s.manifest(ctx, manifest)
	if err != nil {
		return SecretsReport{}, err
	}
	if m.Secrets == nil {
		return SecretsReport{}, box.Errorf(box.ClassNotFound, "export %s was taken without a look for secrets; export again", manifest)
	}
	return s.secrets(ctx, *m.Secrets)
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
