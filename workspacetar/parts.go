package workspacetar

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/openhands/boxkeeper/box"
)

// part adds one part to its stream.
func (v *reading) part(h *tar.Header, content io.Reader) error {
	offset, name := v.at.n, h.Name
	if !Whole(name) {
		return errors.New("its name leads elsewhere")
	}
	stream := path.Dir(name)
	if stream != v.stream.Name {
		v.endStream()
		if err := v.begin(stream); err != nil {
			return err
		}
	}
	v.stream.Parts++
	if path.Base(name) != fmt.Sprintf("%06d", v.stream.Parts) {
		return errors.New("a part before it is missing")
	}
	n, err := v.hand(part(h, offset), v.sum, content)
	if v.stream.Bytes += n; err != nil {
		return err
	}
	if v.at.n-offset != n {
		return errors.New("its content is not where its header says")
	}
	return v.told(part(h, offset))
}

// begin starts a stream that was not there before. Those of one git directory
// come in the order of a walk, so the newest is enough to know it.
func (v *reading) begin(stream string) error {
	v.stream, v.sum = box.ManifestPart{Name: stream}, sha256.New()
	if _, file, ok := strings.Cut(strings.TrimPrefix(stream, box.WorkspaceRepositories), "/"); ok && strings.HasPrefix(file, "git/") {
		if Order(v.gitFile, stream) >= 0 {
			return errors.New("its stream was there already, or is out of its order")
		}
		v.gitFile = stream
		return nil
	}
	if _, again := v.streams[stream]; again {
		return errors.New("its stream was there already")
	}
	if len(v.streams) == maxStreams {
		return errors.New("there are too many streams")
	}
	return nil
}

func (v *reading) endStream() {
	if v.sum == nil {
		return
	}
	if v.stream.Name == v.gitFile {
		v.git++
	} else {
		v.stream.SHA256 = hex.EncodeToString(v.sum.Sum(nil))
		v.streams[v.stream.Name] = v.stream
	}
	v.stream, v.sum = box.ManifestPart{}, nil
}

func part(h *tar.Header, offset int64) Entry {
	return Entry{ManifestEntry: box.ManifestEntry{Name: h.Name, Type: TypePart, Bytes: h.Size}, Offset: offset}
}
