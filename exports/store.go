package exports

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"

	"github.com/openhands/boxkeeper/box"
	"github.com/openhands/boxkeeper/exports/secretscan"
)

const (
	schemes        = "file:///absolute/directory or s3://bucket?region=..."
	copyBufferSize = 128 << 10
)

// Store keeps exports and ledgers in one bucket. It is safe for concurrent
// use, also by several processes on one bucket.
type Store struct {
	bucket *blob.Bucket
	proof  proof
	spool  string
	now    func() time.Time
	tool   string

	scanner        func() (*secretscan.Scanner, error)
	fingerprintKey []byte
	secretsPolicy  box.SecretsPolicy
}

// theScanner compiles the rules that find secrets when the first export needs
// them; all stores of a process share them.
var theScanner = sync.OnceValues(secretscan.New) //nolint:gochecknoglobals // nothing writes to it

// Options are the settings of a store; the zero value works.
type Options struct {
	// SpoolDir is a directory for the one conversation that is being checked or
	// read; it needs room for the largest. Empty means the system's own.
	SpoolDir string
	// Now is the clock of manifests and ledger entries; nil means the wall clock.
	Now func() time.Time
	// Tool names the program in manifests; empty means its build version.
	Tool string
	// Keys encrypt what is written and open what is read; see [ParseKeys].
	Keys Keys
	// FingerprintKey makes fingerprints of secrets compare across processes; it is
	// a secret. Empty: they compare within one export.
	FingerprintKey []byte
	// Secrets is what is done about secrets where a request says nothing; zero
	// keeps them.
	Secrets box.SecretsPolicy
}

// Open opens the store at a URL with default [Options]: "file:///absolute/dir"
// (made when absent), "s3://bucket?region=...&endpoint=...&prefix=..." of S3 and
// what is compatible with it, or "mem://", which is empty each time and ends with
// the process. Only a directory is contacted. A bad URL is Invalid.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	return OpenWith(ctx, rawURL, Options{})
}

// OpenWith is Open with settings.
func OpenWith(ctx context.Context, rawURL string, opts Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault(ctx, "open the export store", err)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, box.Invalidf("exports.url", "is not a URL; use %s", schemes)
	}
	if u.User != nil || u.Fragment != "" || u.RawQuery != "" && u.Scheme != "s3" {
		return nil, box.Invalidf("exports.url", "takes no user, query or fragment; use %s", schemes)
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) || filepath.Clean(u.Path) == "/" {
			return nil, box.Invalidf("exports.url", "needs the absolute path of a directory; write it like file:///var/lib/boxkeeper/exports")
		}
		bucket, err := openDirectory(filepath.Clean(u.Path))
		if err != nil {
			return nil, fault(ctx, "open the directory of the export store", err)
		}
		return New(bucket, opts), nil
	case "mem":
		if u.Host != "" || u.Path != "" {
			return nil, box.Invalidf("exports.url", "mem:// takes no path")
		}
		return New(memblob.OpenBucket(&memblob.Options{NoMD5: true}), opts), nil
	case "s3":
		bucket, err := openS3(ctx, u)
		if err != nil {
			return nil, err
		}
		s := New(bucket, opts)
		s.proof.due = true // there are many that are called compatible
		return s, nil
	default:
		return nil, box.Invalidf("exports.url", "scheme %.20q is not known; use %s", u.Scheme, schemes)
	}
}

// New returns a store over an open bucket, which must honour IfNotExist
// atomically; Close closes it.
func New(bucket *blob.Bucket, opts Options) *Store {
	s := &Store{
		bucket: seal(bucket, opts.Keys), spool: opts.SpoolDir, now: opts.Now, tool: opts.Tool,
		scanner: theScanner, fingerprintKey: opts.FingerprintKey,
		secretsPolicy: cmp.Or(opts.Secrets, box.SecretsKeep),
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.spool == "" {
		s.spool = os.TempDir()
	}
	if s.tool == "" {
		s.tool = "boxkeeper"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			s.tool += " " + info.Main.Version
		}
	}
	return s
}

// Close releases the bucket. Calls after it fail.
func (s *Store) Close() error {
	if err := s.bucket.Close(); err != nil {
		return fault(context.Background(), "close the export store", err) //nolint:forbidigo // there is no caller's context here: it is only asked whether it ended
	}
	return nil
}

// put writes one object if its key is absent; otherwise the class is
// AlreadyExists. The object is there complete or not at all.
func (s *Store) put(ctx context.Context, key, contentType string, r io.Reader, tick func(int)) error {
	if err := s.proveOnce(ctx); err != nil {
		return err
	}
	return s.write(ctx, key, contentType, r, tick)
}

func (s *Store) write(ctx context.Context, key, contentType string, r io.Reader, tick func(int)) error {
	writing, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.bucket.NewWriter(writing, key, &blob.WriterOptions{
		ContentType: contentType, IfNotExist: true, DisableContentTypeDetection: true,
	})
	if err != nil {
		return fault(ctx, "write "+key, err)
	}
	if err := pour(ctx, w, r, tick); err != nil {
		cancel() // makes Close give the object up
		_ = w.Close()
		return fault(ctx, "write "+key, err)
	}
	if err := w.Close(); err != nil {
		return fault(ctx, "write "+key, err)
	}
	return nil
}

// small reads an object that must not be larger than most bytes.
func (s *Store) small(ctx context.Context, key string, most int64) ([]byte, error) {
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return nil, fault(ctx, "read "+key, err)
	}
	defer r.Close() //nolint:errcheck // nothing is written
	var buf bytes.Buffer
	// Ledger entries are many and small: no large buffer for each.
	if err := pourWith(ctx, &buf, io.LimitReader(r, most+1), nil, make([]byte, 4<<10)); err != nil {
		return nil, fault(ctx, "read "+key, err)
	}
	if int64(buf.Len()) > most {
		return nil, box.Errorf(box.ClassUnknown, "%s is larger than %d bytes and was not written by this program", key, most)
	}
	return buf.Bytes(), nil
}

// sum reads an object to the end.
func (s *Store) sum(ctx context.Context, key string, tick func(int)) (sum string, size int64, err error) {
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return "", 0, fault(ctx, "read "+key, err)
	}
	defer r.Close() //nolint:errcheck // nothing is written
	h := sha256.New()
	n := int64(0)
	err = pour(ctx, h, r, func(k int) {
		n += int64(k)
		if tick != nil {
			tick(k)
		}
	})
	if err != nil {
		return "", 0, fault(ctx, "read "+key, err)
	}
	return hex.EncodeToString(h.Sum(nil)), n, nil
}

// list calls fn for every key below prefix, in order.
func (s *Store) list(ctx context.Context, prefix string, fn func(key string)) error {
	return s.listObjects(ctx, prefix, func(o object) { fn(o.key) })
}

// newSpool makes a file that has no name any more, so that no crash leaves it.
func (s *Store) newSpool() (*os.File, error) {
	f, err := os.CreateTemp(s.spool, "boxkeeper-spool-*")
	if err != nil {
		return nil, fault(context.Background(), "make a spool file", bare(err)) //nolint:forbidigo // there is no caller's context here: it is only asked whether it ended
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fault(context.Background(), "make a spool file", bare(err)) //nolint:forbidigo // there is no caller's context here: it is only asked whether it ended
	}
	return f, nil
}

// pour copies until the end of r; it stops soon after ctx ends.
func pour(ctx context.Context, w io.Writer, r io.Reader, tick func(int)) error {
	return pourWith(ctx, w, r, tick, make([]byte, copyBufferSize))
}

func pourWith(ctx context.Context, w io.Writer, r io.Reader, tick func(int), buf []byte) error {
	for idle := 0; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(buf)
		if n > 0 {
			idle = 0
			if _, werr := w.Write(buf[:n]); werr != nil {
				return werr
			}
			if tick != nil {
				tick(n)
			}
		} else if idle++; idle > 1000 {
			return io.ErrNoProgress
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// fault wraps what the bucket or the disk said, once, with a class.
func fault(ctx context.Context, doing string, err error) error {
	if _, done := errors.AsType[*box.Error](err); done {
		return err
	}
	if d, ok := denied(err); ok && ctx.Err() == nil {
		return box.Errorf(d.class, "%s: %w", doing, storeFault{d})
	}
	return box.Errorf(faultClass(ctx, err), "%s: %w", doing, storeFault{err})
}

// storeFault marks what a bucket or a disk said.
type storeFault struct{ err error }

func (f storeFault) Error() string { return f.err.Error() }
func (f storeFault) Unwrap() error { return f.err }

// FromStore reports whether an error is what the store's bucket, or the disk of
// the spool, said, and not a refusal of the store's rules. Its class says nothing
// of a box or of its provider.
func FromStore(err error) bool {
	_, is := errors.AsType[storeFault](err)
	return is
}

func faultClass(ctx context.Context, err error) box.Class {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return box.ClassDeadlineExceeded
	case ctx.Err() != nil, errors.Is(err, context.Canceled):
		return box.ClassCanceled
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return box.ClassExhausted
	}
	switch codeOf(err) { //nolint:exhaustive // the rest is for trying again
	case gcerrors.NotFound:
		return box.ClassNotFound
	case gcerrors.FailedPrecondition, gcerrors.AlreadyExists:
		return box.ClassAlreadyExists
	case gcerrors.PermissionDenied:
		return box.ClassUnauthorized
	case gcerrors.ResourceExhausted:
		return box.ClassExhausted
	case gcerrors.Unimplemented:
		return box.ClassUnsupported
	case gcerrors.InvalidArgument:
		return box.ClassInvalid
	}
	return box.ClassUnavailable
}

// bare takes the path out of an error: paths of the worker's machine do not
// belong in a history.
func bare(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// printable cuts and quotes what a server or a file said.
func printable(text string) string {
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strings.Trim(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text), " ")
}
