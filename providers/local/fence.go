package local

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// admit refuses a step that a newer one overtook, and remembers this one before
// it does anything. Call it under the box's lock: a worker that was cut off may
// come at any time, and asking first and acting later would let it in between.
func (d *Driver) admit(ctx context.Context, rec *record) error {
	fence := driver.FenceOf(ctx)
	switch {
	case fence.IsZero() || fence == rec.Fence:
		return nil
	case fence.Before(rec.Fence):
		return driver.Overtaken(rec.Identity.Name(), fence, rec.Fence)
	}
	rec.Fence = fence
	return d.place.write(rec)
}

// mayReturn refuses to make a box again for a step that is not newer than the
// one that deleted it: a create that comes late must not bring it back.
func (d *Driver) mayReturn(ctx context.Context, name string) error {
	fence := driver.FenceOf(ctx)
	if fence.IsZero() {
		return nil
	}
	buried, err := d.place.tomb(name)
	switch {
	case err != nil:
		return err
	case !buried.IsZero() && !buried.Before(fence):
		return driver.Overtaken(name, fence, buried)
	}
	return nil
}

func (p place) tombOf(name string) string { return filepath.Join(p.fences(), name+recordSuffix) }

// tomb returns the fence that the deletion of a box left behind, zero for none.
func (p place) tomb(name string) (box.Fence, error) {
	raw, err := os.ReadFile(p.tombOf(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return box.Fence{}, nil
	case err != nil:
		return box.Fence{}, ioError("read what the deletion of box "+name+" left behind", err)
	}
	var fence box.Fence
	if err := json.Unmarshal(raw, &fence); err != nil {
		return box.Fence{}, box.Errorf(box.ClassUnknown, "%s is not a fence; restore it, or remove it if the box was deleted long ago: %w", p.tombOf(name), err)
	}
	return fence, nil
}

// entomb keeps the fence of a box that is about to be forgotten. It is a few
// bytes and stays: the name is never used again but after a loss.
func (p place) entomb(name string, fence box.Fence) error {
	if fence.IsZero() {
		return nil
	}
	raw, err := json.Marshal(fence)
	if err != nil {
		return box.Errorf(box.ClassInternal, "write a fence: %w", err)
	}
	temp, err := writeTemp(p.tombOf(name), append(raw, '\n'))
	if err != nil {
		return err
	}
	if err := os.Rename(temp, p.tombOf(name)); err != nil {
		err = errors.Join(err, os.Remove(temp))
		return ioError("write "+p.tombOf(name), err)
	}
	return syncDir(p.fences())
}
