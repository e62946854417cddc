package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/openhands/boxkeeper/box"
)

// intent is what we last began to make of a box. It is written before anything
// is done, so that what is found later can be told from what was done to us.
type intent string

const (
	intentRun     intent = "run"
	intentSuspend intent = "suspend"
	intentDelete  intent = "delete"
)

// process names one process for ever: a pid alone is used again.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // as the system counts it
	Boot  string `json:"boot"`  // which boot of the machine
}

// record is what we keep about a box. It never holds a secret.
type record struct {
	Version  int               `json:"version"`
	Identity box.Identity      `json:"identity"`
	Image    string            `json:"image,omitzero"`
	Labels   map[string]string `json:"labels,omitzero"`
	Intent   intent            `json:"intent"`
	Kind     SuspendKind       `json:"kind,omitzero"` // of the last suspend
	// Made says that the directory was there once: if it is not now, the files
	// are lost and must not be replaced by an empty directory.
	Made bool `json:"made,omitzero"`
	// Process is boxd; nil before the first start, and between the intent to
	// start and the start.
	Process *process `json:"process,omitzero"`
	Started bool     `json:"started,omitzero"` // it ran once
	// AdoptedFrom is the name of the directory that became this box's.
	AdoptedFrom string    `json:"adopted_from,omitzero"`
	CreatedAt   time.Time `json:"created_at"`
	StartedAt   time.Time `json:"started_at,omitzero"`
	SuspendedAt time.Time `json:"suspended_at,omitzero"`
	// Fence is of the newest step that changed the box.
	Fence box.Fence `json:"fence,omitzero"`

	raw []byte // as read
}

const recordVersion = 1

func (r *record) ref(fingerprint string) box.Ref {
	name := r.Identity.Name()
	return box.Ref{ID: name, Name: name, Epoch: r.Identity.Epoch, Fingerprint: fingerprint}
}

// same reports whether both are the same reading; nil is "no record".
func (r *record) same(other *record) bool {
	if r == nil || other == nil {
		return r == other
	}
	return bytes.Equal(r.raw, other.raw)
}

// read returns the record of name, nil when there is none.
func (p place) read(name string) (*record, error) {
	raw, err := os.ReadFile(p.record(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no record is an answer
	}
	if err != nil {
		return nil, ioError("read the record of box "+name, err)
	}
	var rec record
	if err := json.Unmarshal(raw, &rec); err != nil {
		return nil, box.Errorf(box.ClassUnknown, "%s is not a record; restore it: %w", p.record(name), err)
	}
	switch {
	case rec.Version != recordVersion:
		return nil, box.Errorf(box.ClassUnknown, "%s has version %d, this program reads %d; use the newer program", p.record(name), rec.Version, recordVersion)
	case rec.Identity.Name() != name:
		return nil, box.Errorf(box.ClassUnknown, "%s is about box %s; restore the right one", p.record(name), rec.Identity.Name())
	}
	rec.raw = raw
	return &rec, nil
}

// write stores rec durably, whole or not at all.
func (p place) write(rec *record) error {
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return box.Errorf(box.ClassInternal, "write a record: %w", err)
	}
	path := p.record(rec.Identity.Name())
	temp, err := writeTemp(path, raw)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		err = errors.Join(err, os.Remove(temp))
		return ioError("write "+path, err)
	}
	rec.raw = raw
	return syncDir(p.control())
}

// forget removes the record: the last step of a deletion.
func (p place) forget(name string) error {
	if err := os.Remove(p.record(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("remove the record of box "+name, err)
	}
	return syncDir(p.control())
}
