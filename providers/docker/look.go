package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/providers/driver"
)

// found is what the engine has of one box.
type found struct {
	identity box.Identity
	// container is the one with the name and the labels; nil when there is none.
	container *container.InspectResponse
	// copies are ids of containers with the labels and another name: such as those
	// of an image that somebody made of a box, which inherits its labels.
	copies   []string
	data     *volume.Volume
	deleting bool
	volumes  []volume.Volume // all with the labels, data and the mark among them
	intent   intent          // read for a container that does not run
	unread   error           // why the intent could not be
}

// life names the run of the container that is, or was the last.
func (f *found) life() string {
	if f.container == nil {
		return ""
	}
	return f.container.State.StartedAt
}

func (f *found) state() container.ContainerState {
	if f.container == nil {
		return ""
	}
	return f.container.State.Status
}

// nothing reports whether there is neither a container nor a volume.
func (f *found) nothing() bool { return f.container == nil && len(f.volumes) == 0 }

// unstarted reports whether the container is there and never ran.
func (f *found) unstarted() bool {
	return f.state() == container.StateCreated && instant(f.life()).IsZero()
}

// bare reports whether of a box that nobody deletes the volume alone is there.
func (f *found) bare() bool { return f.container == nil && f.data != nil && !f.deleting }

// find reads what the engine has of a box. An absence in it is proven by two
// lists, never by a 404: that may be of a proxy, or of a path it does not know.
func (s *session) find(ctx context.Context, id box.Identity) (*found, error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	const tries = 3
	for range tries {
		boxes, err := s.findAll(ctx, id)
		if err != nil {
			return nil, err
		}
		f := boxes[id]
		if f == nil {
			f = &found{identity: id}
		}
		there, err := s.inspect(ctx, f)
		if err != nil {
			return nil, err
		}
		if there {
			return f, nil
		}
	}
	return nil, box.Errorf(box.ClassConflict, "box %s changes all the time; look again", id.Name())
}

// findAll reads the lists: of one box, or with an installation alone of all.
func (s *session) findAll(ctx context.Context, id box.Identity) (map[box.Identity]*found, error) {
	containers, err := s.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter(id)})
	if err != nil {
		return nil, fault(ctx, "list the containers of box "+id.Name(), err)
	}
	volumes, err := s.api.VolumeList(ctx, client.VolumeListOptions{Filters: filter(id)})
	if err != nil {
		return nil, fault(ctx, "list the volumes of box "+id.Name(), err)
	}
	if containers.Items == nil || volumes.Items == nil { // an engine's list of none is empty, and not null
		return nil, box.Errorf(box.ClassUnknown, "the engine's list of containers or volumes is none, so nothing that is not in it is proven gone")
	}
	out := map[box.Identity]*found{}
	of := func(id box.Identity) *found {
		if out[id] == nil {
			out[id] = &found{identity: id}
		}
		return out[id]
	}
	for _, c := range containers.Items {
		if !asked(c.Labels, id) {
			return nil, box.Errorf(box.ClassUnknown, "the engine lists container %s without the labels that were asked for, so nothing that it does not list is proven gone", c.ID)
		}
		own, ok := marked(c.Labels)
		switch {
		case len(c.Names) == 0:
			return nil, box.Errorf(box.ClassUnavailable, "the engine lists container %s without a name, as one that it removes; ask again", c.ID)
		case !ok:
		case named(c.Names, own.Name()) && c.Labels[labelRole] != roleSnapshot: // one that somebody made of a snapshot has its role
			of(own).container = &container.InspectResponse{ID: c.ID}
		default:
			of(own).copies = append(of(own).copies, c.ID)
		}
	}
	for _, v := range volumes.Items {
		if !asked(v.Labels, id) {
			return nil, box.Errorf(box.ClassUnknown, "the engine lists volume %s without the labels that were asked for, so nothing that it does not list is proven gone", v.Name)
		}
		own, ok := marked(v.Labels)
		if !ok || !rightName(v, own) {
			continue
		}
		f := of(own)
		f.volumes = append(f.volumes, v)
		switch v.Labels[labelRole] {
		case roleData:
			f.data = &v
		case roleDeleting:
			f.deleting = true
		}
	}
	return out, nil
}

// inspect reads the container of f in full. It is false for one that is not
// there any more, or not the same: find again.
func (s *session) inspect(ctx context.Context, f *found) (bool, error) {
	if f.container == nil {
		return true, nil
	}
	answer, err := s.api.ContainerInspect(ctx, f.container.ID, client.ContainerInspectOptions{})
	switch {
	case absent(ctx, err):
		return false, nil
	case err != nil:
		return false, fault(ctx, "read box "+f.identity.Name(), err)
	}
	c := answer.Container
	if c.ID != f.container.ID || c.State == nil || c.Config == nil || !named([]string{c.Name}, f.identity.Name()) {
		return false, nil
	}
	if _, err := time.Parse(time.RFC3339Nano, c.State.StartedAt); err != nil { // a run is told from others by it
		return false, box.Errorf(box.ClassUnknown, "the engine does not say when box %s was started last", f.identity.Name())
	}
	f.container = &c
	switch c.State.Status {
	case container.StateExited, container.StateCreated, container.StatePaused:
		// What a box did to its own files must not be in the way of its deletion.
		if f.intent, f.unread = s.readIntent(ctx, c.ID); f.unread != nil {
			return true, driver.Ended(ctx)
		}
	case container.StateRunning, container.StateRestarting, container.StateRemoving, container.StateDead:
	}
	return true, nil
}

// sight is what a box was found to be.
type sight struct {
	phase    box.Phase
	evidence string
	since    time.Time
	frozen   bool
}

// judge says what the box is.
func (f *found) judge() sight {
	say := func(phase box.Phase, since time.Time, format string, args ...any) sight {
		return sight{phase: phase, since: since, evidence: box.OneLine(fmt.Sprintf(format, args...), 600)}
	}
	switch {
	case f.container == nil && f.data == nil:
		return say(box.PhaseGone, time.Time{}, "the engine lists no container and no data volume with its labels")
	case f.deleting:
		return say(box.PhaseFailed, time.Time{}, "deletion began and is not finished")
	case f.bare():
		return say(box.PhaseFailed, time.Time{}, "its container was removed, its files are in volume %s", f.data.Name)
	}
	state := f.container.State
	asked := f.intent.suspends(f.life())
	started, finished := instant(state.StartedAt), instant(state.FinishedAt)
	switch state.Status {
	case container.StateRunning:
		return say(box.PhaseRunning, started, "running since %s", state.StartedAt)
	case container.StatePaused:
		since := time.Time{}
		if asked {
			since = f.intent.At
		}
		out := say(box.PhaseSuspended, since, "paused")
		out.frozen = true
		return out
	case container.StateRestarting:
		return say(box.PhaseStarting, started, "restarting")
	case container.StateCreated:
		switch {
		case f.unread != nil:
			return say(box.PhaseUnknown, time.Time{}, "created and not started, and what was done to it cannot be read: %v", f.unread)
		case asked:
			return say(box.PhaseSuspended, f.intent.At, "created and not started, its volume there")
		case state.Error != "" || state.ExitCode != 0:
			return say(box.PhaseFailed, time.Time{}, "it could not be started: %s", why(state))
		}
		return say(box.PhaseStarting, instant(f.container.Created), "created and not started")
	case container.StateExited:
		switch {
		case f.unread != nil:
			return say(box.PhaseUnknown, finished, "it ended, and whether that was asked for cannot be read: %v", f.unread)
		case asked && f.intent.Kind == SuspendPause:
			return say(box.PhaseSuspended, finished, "its paused processes have ended: %s", why(state))
		case asked:
			return say(box.PhaseSuspended, finished, "exited since %s, its volume there", state.FinishedAt)
		case !started.Before(finished): // what was asked for is told by the start that it was asked of
			return say(box.PhaseUnknown, time.Time{}, "it ended, and the engine says no times of a run: from %q to %q", state.StartedAt, state.FinishedAt)
		}
		return say(box.PhaseFailed, finished, "it ended by itself: %s", why(state))
	case container.StateRemoving, container.StateDead:
		return say(box.PhaseFailed, time.Time{}, "the container is %s, its files are in its volume", state.Status)
	}
	return say(box.PhaseUnknown, time.Time{}, "the engine calls it %q", string(state.Status))
}

// why says how a container ended.
func why(state *container.State) string {
	text := fmt.Sprintf("exit code %d at %s", state.ExitCode, state.FinishedAt)
	if state.OOMKilled {
		text += ", out of memory"
	}
	if state.Error != "" {
		text += ", " + state.Error
	}
	return text
}

// observation is f as an answer. A box without a container has its name for an id.
func (s *session) observation(f *found) box.Observation {
	seen := f.judge()
	name := f.identity.Name()
	ref := box.Ref{ID: name, Name: name, Epoch: f.identity.Epoch, Fingerprint: s.print}
	if f.container != nil {
		ref.ID = f.container.ID
	}
	out := box.Observation{Ref: ref, Phase: seen.phase, Evidence: seen.evidence, Age: s.age(seen.since)}
	if f.container != nil && configLabels(*f.container)[labelFrom] != "" {
		out.Evidence += box.OneLine("; its container was made again from image "+configLabels(*f.container)[labelFrom], 250)
	}
	if seen.phase == box.PhaseSuspended {
		out.MemoryKept = box.No
		if seen.frozen {
			out.MemoryKept = box.Yes
		}
	}
	return out
}

// Observe reads the box. Nothing is sent to the box itself: a paused one would
// take the connection and never answer.
func (d *Driver) Observe(ctx context.Context, ref box.Ref) (box.Observation, error) {
	ctx, s, id, err := d.own(ctx, ref)
	if err != nil {
		return box.Observation{}, err
	}
	f, err := s.find(ctx, id)
	if err != nil {
		return box.Observation{}, err
	}
	if err := f.renamed(ref); err != nil {
		return box.Observation{}, err
	}
	out := s.observation(f)
	switch {
	case out.Phase == box.PhaseGone:
		out.Ref = ref
		return out, d.still(ctx, s.print) // the engine may have been swapped under the reading
	case out.Phase == box.PhaseUnknown && f.unread != nil:
		return box.Observation{}, f.unread
	}
	return out, nil
}

// renamed refuses a ref whose own container goes by another name: without it a
// second one would be made beside it, on the same volume.
func (f *found) renamed(ref box.Ref) error {
	if f.container == nil && slices.Contains(f.copies, ref.ID) {
		return box.Errorf(box.ClassFailedPrecondition, "container %s is box %s under another name; rename it back", ref.ID, ref.Name)
	}
	return nil
}

// List reads every box of the installation, those without a container included.
func (d *Driver) List(ctx context.Context, installation string) ([]driver.Listed, error) {
	if err := driver.Ended(ctx); err != nil {
		return nil, err
	}
	if installation != d.installation {
		return nil, box.Errorf(box.ClassFailedPrecondition, "this driver is of installation %s, not %s", d.installation, installation)
	}
	ctx, s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.all(ctx, installation)
	if err != nil {
		return nil, err
	}
	out := make([]driver.Listed, 0, len(all))
	for _, f := range all {
		if seen := s.observation(f); seen.Phase != box.PhaseGone {
			out = append(out, driver.Listed{Identity: f.identity, Observation: seen})
		}
	}
	return out, nil
}

// all reads every box of an installation, in the order of their names.
func (s *session) all(ctx context.Context, installation string) ([]*found, error) {
	short, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	boxes, err := s.findAll(short, box.Identity{Installation: installation})
	if err != nil {
		return nil, err
	}
	var out []*found
	for _, id := range slices.SortedFunc(maps.Keys(boxes), func(a, b box.Identity) int {
		return strings.Compare(a.Name(), b.Name())
	}) {
		f := boxes[id]
		there, err := s.inspect(ctx, f)
		if err == nil && !there { // changed since the lists: a reading of its own
			f, err = s.find(ctx, id)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}
