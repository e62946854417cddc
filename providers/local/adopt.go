package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// Adopt answers a box of ours, and makes a directory below boxes/ that has no
// record a suspended box: its id is its name there.
func (d *Driver) Adopt(ctx context.Context, id string, as box.Identity) (box.Observation, error) {
	if err := driver.Ended(ctx); err != nil {
		return box.Observation{}, err
	}
	ref := box.Ref{ID: as.Name(), Name: as.Name(), Epoch: as.Epoch}
	if identity, ok := driver.IdentityOf(ref); !ok || identity.Installation != d.installation {
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "%q is not a box of installation %s", as.Name(), d.installation)
	}
	if strings.ContainsAny(id, `/\`) || strings.HasPrefix(id, ".") {
		return box.Observation{}, box.Errorf(box.ClassNotFound, "%q is not the name of a directory in %s", id, d.place.boxes())
	}
	print, err := d.place.fingerprint()
	if err != nil {
		return box.Observation{}, err
	}
	ref.Fingerprint = print
	rec, err := d.place.read(id)
	switch {
	case err != nil:
		return box.Observation{}, err
	case rec != nil && (rec.Identity.Installation != as.Installation || rec.Identity.Workspace != as.Workspace):
		return box.Observation{}, box.Errorf(box.ClassFailedPrecondition, "box %s is of workspace %s of installation %s; adopt it there", id, rec.Identity.Workspace, rec.Identity.Installation)
	case rec != nil:
		seen, err := d.report(rec.ref(print))
		if err == nil && seen.Phase == box.PhaseGone {
			err = box.Errorf(box.ClassNotFound, "box %s has a record and no directory; delete it, or put the directory back", id)
		}
		return seen, err
	}
	unlock, err := d.place.lock(ctx, as.Name())
	if err != nil {
		return box.Observation{}, err
	}
	defer unlock()
	if err := d.takeOver(id, as); err != nil {
		return box.Observation{}, err
	}
	return d.report(ref)
}

// takeOver writes the record first and moves the directory then, so that a call
// that was cut short is finished by the next one.
func (d *Driver) takeOver(id string, as box.Identity) error {
	name := as.Name()
	rec, err := d.place.read(name)
	if err != nil {
		return err
	}
	if rec != nil && rec.AdoptedFrom != id {
		return box.Errorf(box.ClassAlreadyExists, "%s exists and is another box", name)
	}
	if rec == nil {
		if err := d.stray(id, name); err != nil {
			return err
		}
		rec = &record{
			Version: recordVersion, Identity: as, Intent: intentSuspend, Kind: SuspendStop,
			AdoptedFrom: id, CreatedAt: time.Now().UTC(),
		}
		if err := d.place.write(rec); err != nil {
			return err
		}
	}
	if rec.Made {
		return nil
	}
	if _, err := os.Lstat(d.place.box(name)); errors.Is(err, fs.ErrNotExist) {
		if err := d.stray(id, name); err != nil {
			return err
		}
		if err := os.Rename(d.place.box(id), d.place.box(name)); err != nil {
			return ioError("move the directory of box "+id, err)
		}
		if err := syncDir(d.place.boxes()); err != nil {
			return err
		}
	}
	rec.Made = true
	return d.place.write(rec)
}

// stray refuses a directory that is not nobody's.
func (d *Driver) stray(id, name string) error {
	info, err := os.Lstat(d.place.box(id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return box.Errorf(box.ClassNotFound, "there is no directory %s", d.place.box(id))
	case err != nil:
		return ioError("look at the directory of box "+id, err)
	case !info.IsDir():
		return box.Errorf(box.ClassFailedPrecondition, "%s is not a directory; put the box's own there", d.place.box(id))
	case strings.HasPrefix(id, "bk-"):
		return box.Errorf(box.ClassFailedPrecondition, "%s is named like a box of boxkeeper and has no record, so whose it is cannot be said; restore its record", d.place.box(id))
	}
	if id != name {
		if _, err := os.Lstat(d.place.box(name)); !errors.Is(err, fs.ErrNotExist) {
			return box.Errorf(box.ClassAlreadyExists, "%s is there already; move it away", d.place.box(name))
		}
	}
	table, err := d.scan()
	if err != nil {
		return err
	}
	for _, p := range table.procs {
		if !p.dead && !p.kernel && within(p.pid, d.place.box(id)) {
			return box.Errorf(box.ClassFailedPrecondition, "process %d works in %s; end it first", p.pid, d.place.box(id))
		}
	}
	return nil
}
