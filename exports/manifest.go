package exports

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// ManifestVersion is the version of [Manifest] that this program writes. It
// reads version 1 too, which held conversations only.
const ManifestVersion = 2

const (
	maxManifestBytes = 32 << 20
	maxConversations = 50_000
)

// Manifest is what an export holds, as stored. It is written after every
// object that it names was read back from the store.
type Manifest struct {
	Version   int       `json:"version"`
	Workspace string    `json:"workspace"`
	Epoch     int       `json:"epoch"`
	Attempt   string    `json:"attempt"`
	CreatedAt time.Time `json:"created_at"`
	Tool      string    `json:"tool"`
	// Digest is the [box.HistoryDigest] of the conversations that are not Gone.
	Digest string `json:"history_digest"`
	Totals Totals `json:"totals"`
	// Conversations are sorted by id; each id is there once.
	Conversations []ConversationEntry `json:"conversations"`
	// Archive is the workspace. Where there is none, NoArchive says why; since
	// version 2 one of the two is set.
	Archive   *WorkspaceArchive `json:"workspace_archive,omitzero"`
	NoArchive string            `json:"no_workspace_archive,omitzero"`
	// Withheld says that it is for the secrets in it.
	Withheld bool `json:"workspace_withheld,omitzero"`
	// Secrets names the report of secrets; absent when nobody looked.
	Secrets *SecretsEntry `json:"secrets,omitzero"`
}

// Totals are the sums over all conversations of a manifest.
type Totals struct {
	Conversations int   `json:"conversations"`
	Events        int   `json:"events"`
	Bytes         int64 `json:"bytes"`
	Reused        int   `json:"reused"`
}

// ConversationEntry is one verified copy of one conversation.
type ConversationEntry struct {
	ID     string `json:"id"`  // 32 lower-case hex digits
	Key    string `json:"key"` // the zip's place in the store
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Events int    `json:"events"`
	// Reused says that an earlier export wrote the object.
	Reused bool `json:"reused,omitzero"`
	// Gone says that the server stopped listing the conversation while the
	// export ran; the copy was complete before, and is kept.
	Gone bool `json:"gone,omitzero"`
}

func marks(entries []ConversationEntry) []box.ConversationMark {
	out := make([]box.ConversationMark, 0, len(entries))
	for _, e := range entries {
		if !e.Gone {
			out = append(out, box.ConversationMark{ID: e.ID, Events: e.Events})
		}
	}
	return out
}

func totals(entries []ConversationEntry) Totals {
	t := Totals{Conversations: len(entries)}
	for _, e := range entries {
		t.Events += e.Events
		t.Bytes += e.Bytes
		if e.Reused {
			t.Reused++
		}
	}
	return t
}

// encode returns the bytes that are stored.
func (m Manifest) encode() ([]byte, error) {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "encode the manifest: %w", err)
	}
	return append(data, '\n'), nil
}

// decodeManifest reads a manifest and refuses one that contradicts itself or
// its key.
func decodeManifest(key string, data []byte) (Manifest, error) {
	workspace, epoch, attempt, ok := parseManifestKey(key)
	if !ok {
		return Manifest{}, box.Invalidf("manifest", "%.120q is not the key of a manifest; it is like exports/<workspace>/0001/<attempt>/manifest.json", key)
	}
	refuse := func(why string) (Manifest, error) {
		return Manifest{}, box.Errorf(box.ClassUnknown, "manifest %s cannot be trusted: %s", key, why)
	}
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&m); err != nil {
		return refuse("it is not whole JSON of the known form")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refuse("something follows its end")
	}
	switch {
	case m.Version < 1 || m.Version > ManifestVersion:
		return Manifest{}, box.Errorf(box.ClassUnsupported, "manifest %s has version %d, this program reads up to %d; use a newer program", key, m.Version, ManifestVersion)
	case m.Workspace != workspace || m.Epoch != epoch || m.Attempt != attempt:
		return refuse("it was written for another key")
	case len(m.Conversations) > maxConversations:
		return refuse("it lists too many conversations")
	}
	last := ""
	for _, e := range m.Conversations {
		switch {
		case !conversationForm.MatchString(e.ID), !sumForm.MatchString(e.SHA256), !objectOf(e.Key, workspace, e.ID):
			return refuse("an entry has an id, a sum or a key of a wrong form")
		case e.Events < 0 || e.Bytes <= 0:
			return refuse("an entry has a count below zero or no bytes")
		case e.ID <= last:
			return refuse("its entries are not sorted, or one is there twice")
		}
		last = e.ID
	}
	if why := m.badArchive(); why != "" {
		return refuse(why)
	}
	if s := m.Secrets; s != nil && (s.Masked < 0 || s.Findings < s.Masked || !sumForm.MatchString(s.SHA256) || !secretsOf(s.Key, workspace, epoch, attempt)) {
		return refuse("its report of secrets has a count, a sum or a key of a wrong form")
	}
	if totals(m.Conversations) != m.Totals {
		return refuse("its totals are not the sums of its entries")
	}
	if box.HistoryDigest(marks(m.Conversations)) != m.Digest {
		return refuse("its digest is not that of its entries")
	}
	return m, nil
}

// manifest reads one manifest from the store.
func (s *Store) manifest(ctx context.Context, key string) (Manifest, string, error) {
	data, err := s.small(ctx, key, maxManifestBytes)
	if err != nil {
		return Manifest{}, "", err
	}
	m, err := decodeManifest(key, data)
	return m, sumOf(data), err
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// receipt is what a manifest proves once everything was read back.
func (m Manifest) receipt(key, sum string) box.Receipt {
	return box.Receipt{
		Workspace: m.Workspace, Epoch: m.Epoch, Key: key, SHA256: sum,
		Bytes: m.Totals.Bytes, Conversations: m.Totals.Conversations, Events: m.Totals.Events,
		Digest: m.Digest, Reused: m.Totals.Reused, Archive: m.archived(), Secrets: m.found(),
	}
}
