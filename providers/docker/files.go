package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/openhands/boxkeeper/box"
)

// Where things are in a container. What is ours stands beside the volume, in the
// container's own layer, which lives as long as the container.
const (
	boxRoot    = "/box" // the volume, boxd's root
	ownDir     = "/.boxkeeper"
	programIn  = ownDir + "/boxd"
	intentFile = ownDir + "/intent"
	startDir   = ownDir + "/start" // the box's user may remove what is in it
	envFile    = startDir + "/env"
)

// intent is what we last began to make of a container. It is written before it
// is done. What a box can write there itself changes only what it is taken for.
type intent struct {
	Suspend bool        `json:"suspend"`
	Kind    SuspendKind `json:"kind,omitzero"`
	Life    string      `json:"life"` // the start that it is about: a later one makes it void
	At      time.Time   `json:"at"`   // the engine's clock
}

// suspends reports whether the run that began at life was to be suspended.
func (i intent) suspends(life string) bool { return i.Suspend && i.Life == life }

// readIntent returns the intent in a container; none is the zero one, and so is
// one that is not ours.
func (s *session) readIntent(ctx context.Context, id string) (intent, error) {
	raw, err := s.readFile(ctx, id, intentFile)
	if err != nil {
		return intent{}, err
	}
	return parseIntent(raw), nil
}

func parseIntent(raw []byte) intent {
	var out intent
	if json.Unmarshal(raw, &out) != nil {
		return intent{}
	}
	return out
}

// writeIntent works on a container in any state.
func (s *session) writeIntent(ctx context.Context, f *found, suspend bool, kind SuspendKind) error {
	raw, err := json.Marshal(intent{Suspend: suspend, Kind: kind, Life: f.life(), At: s.now})
	if err != nil {
		return box.Errorf(box.ClassInternal, "write an intent: %w", err)
	}
	return s.writeFiles(ctx, f, "mark what is done to", []entry{
		{name: ownDir, dir: true, mode: 0o755},
		{name: intentFile, mode: 0o600, size: int64(len(raw)), from: bytes.NewReader(raw)},
	})
}

// readFile reads a small file; one that is not there, or is none, is empty.
func (s *session) readFile(ctx context.Context, id, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	answer, err := s.api.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: name})
	if absent(ctx, err) {
		return nil, nil
	}
	if err != nil {
		return nil, fault(ctx, "read "+name+" of container "+id, err)
	}
	defer answer.Content.Close()
	const most = 1 << 20
	packed := tar.NewReader(answer.Content)
	head, err := packed.Next()
	if err != nil {
		return nil, box.Errorf(box.ClassUnavailable, "read %s of container %s: %w", name, id, quote(ctx, err))
	}
	if head.Typeflag != tar.TypeReg || head.Size > most {
		return nil, nil
	}
	raw, err := io.ReadAll(packed)
	if err != nil {
		return nil, box.Errorf(box.ClassUnavailable, "read %s of container %s: %w", name, id, quote(ctx, err))
	}
	return raw, nil
}

// entry is one file or directory to be written.
type entry struct {
	name     string
	dir      bool
	mode     int64
	uid, gid int
	size     int64
	from     io.Reader
}

// writeFiles puts entries into the container, whatever state it is in; what is
// there is replaced.
func (s *session) writeFiles(ctx context.Context, f *found, what string, entries []entry) error {
	var broken error
	err := s.act(ctx, forced, func(ctx context.Context) error {
		read, write := io.Pipe()
		packed := make(chan error, 1)
		go func() {
			err := pack(write, entries)
			_ = write.CloseWithError(err)
			packed <- err
		}()
		_, err := s.api.CopyToContainer(ctx, f.container.ID, client.CopyToContainerOptions{
			DestinationPath: "/", Content: read, AllowOverwriteDirWithFile: true,
		})
		_ = read.CloseWithError(io.ErrClosedPipe)
		broken = <-packed
		return err
	})
	if broken != nil && !errors.Is(broken, io.ErrClosedPipe) {
		return box.Errorf(box.ClassUnknown, "%s box %s: %w", what, f.identity.Name(), broken)
	}
	if err != nil {
		return fault(ctx, what+" box "+f.identity.Name(), err)
	}
	return nil
}

func pack(to io.Writer, entries []entry) error {
	out := tar.NewWriter(to)
	for _, e := range entries {
		head := &tar.Header{Name: strings.TrimPrefix(e.name, "/"), Mode: e.mode, Uid: e.uid, Gid: e.gid, Size: e.size, Typeflag: tar.TypeReg}
		if e.dir {
			head.Name, head.Typeflag = head.Name+"/", tar.TypeDir
		}
		if err := out.WriteHeader(head); err != nil {
			return err
		}
		if e.from == nil {
			continue
		}
		if _, err := io.Copy(out, e.from); err != nil {
			return err
		}
	}
	return out.Close()
}

// fill copies in what a start needs: boxd, and its environment.
func (s *session) fill(ctx context.Context, f *found, boxd *program, env []byte) error {
	uid, gid, err := s.user(ctx, f)
	if err != nil {
		return err
	}
	if _, err := boxd.file.Seek(0, io.SeekStart); err != nil {
		return box.Errorf(box.ClassUnknown, "read %s: %w", boxd.file.Name(), err)
	}
	return s.writeFiles(ctx, f, "copy boxd into", []entry{
		{name: ownDir, dir: true, mode: 0o755},
		{name: programIn, mode: 0o755, size: boxd.size, from: boxd.file},
		{name: startDir, dir: true, mode: 0o700, uid: uid, gid: gid},
		{name: envFile, mode: 0o600, uid: uid, gid: gid, size: int64(len(env)), from: bytes.NewReader(env)},
		{name: boxRoot, dir: true, mode: 0o700, uid: uid, gid: gid},
	})
}
