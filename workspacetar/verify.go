package workspacetar

import (
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/openhands/boxkeeper/box"
)

// maxWindow is the most that a stream can make its decoder remember; the writer
// needs 1 MiB.
const maxWindow = 8 << 20

// Decompress returns the tar in a compressed stream. Close it.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	zip, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, box.Errorf(box.ClassInternal, "start to decompress: %w", err)
	}
	return zip.IOReadCloser(), nil
}

// Verify reads a compressed archive of a workspace to its end and returns its
// manifest, when all of it holds; see [Read]. ClassUnknown says what is wrong;
// an error of r itself is passed on.
func Verify(r io.Reader) (box.Manifest, error) {
	source := &counter{from: r}
	zip, err := Decompress(source)
	if err != nil {
		return box.Manifest{}, err
	}
	defer zip.Close()
	manifest, err := Read(zip, nil)
	switch {
	case source.err != nil:
		return box.Manifest{}, source.err
	case err != nil:
		return box.Manifest{}, Damaged(err)
	}
	return manifest, nil
}

// Damaged is the error for a caller of an archive that does not hold.
func Damaged(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = errors.New("it ends too early")
	}
	return box.Errorf(box.ClassUnknown, "the archive of the workspace is damaged or cut off: %w", err)
}
