package exports

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/openhands/boxkeeper/box"
)

// everyCall is each way in which the store asks its bucket.
func everyCall(ctx context.Context, s *Store) map[string]error {
	_, marked := s.mark(ctx, "exports/ws/0001/a/manifest.json")
	_, _, read := s.sum(ctx, "exports/ws/0001/a/manifest.json", nil)
	_, err := s.bucket.NewRangeReader(ctx, "exports/ws/0001/a/manifest.json", 1, 1, nil)
	_, appended := s.AppendLedger(ctx, "ws", Entry{ID: "x", Kind: KindMarks, Epoch: 1})
	_, _, closed := s.Closed(ctx, "ws")
	_, listed := s.Conversations(ctx, "ws")
	_, verified := s.Verify(ctx, "ws", box.Receipt{Key: "exports/ws/0001/a/manifest.json"})
	return map[string]error{
		"mark": marked, "read": read, "read a part": fault(ctx, "read", err), "append": appended, "closed": closed, "conversations": listed, "verify": verified,
		"write":  s.put(ctx, "exports/ws/0001/a/other", "text/plain", strings.NewReader("x"), nil),
		"remove": s.remove(ctx, "exports/ws/0001/a/manifest.json"),
		"check":  s.Check(ctx),
	}
}

func TestWrongCredentialsAreUnauthorizedAndNothingIsGone(t *testing.T) {
	t.Parallel()
	right := startS3(t).bucket(t, Options{}, "")
	must(t, right.put(t.Context(), "exports/ws/0001/a/manifest.json", "application/json", strings.NewReader("{}"), nil))
	endpoint := aws.ToString(s3Of(t, right).client.Options().BaseEndpoint)
	for _, profile := range []string{"wrong", "unknown", "nothing"} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			wrong := through(t, right, endpoint, Options{}, "&profile="+profile)
			for what, err := range everyCall(t.Context(), wrong) {
				if class := box.ClassOf(err); class != box.ClassUnauthorized {
					t.Errorf("%s: class %q: %v", what, class, err)
				}
				if err != nil && (strings.Contains(err.Error(), testSecret) || strings.Contains(err.Error(), testAccess)) {
					t.Errorf("%s tells the key: %v", what, err)
				}
			}
		})
	}
	if err := readAll(t, right, "exports/ws/0001/a/manifest.json"); err != nil {
		t.Error(err)
	}
}

func TestAMissingBucketIsNotAnEmptyOne(t *testing.T) {
	t.Parallel()
	s := openAt(t, "s3://nowhere?endpoint="+startS3(t).endpoint, Options{})
	for what, err := range everyCall(t.Context(), s) {
		if class := box.ClassOf(err); class != box.ClassFailedPrecondition || !strings.Contains(err.Error(), "bucket nowhere") {
			t.Errorf("%s: class %q: %v", what, class, err)
		}
	}
}

func TestAnswersThatAreLostLoseNothing(t *testing.T) {
	t.Parallel()
	direct := startS3(t).bucket(t, Options{}, "")
	endpoint := aws.ToString(s3Of(t, direct).client.Options().BaseEndpoint)
	random := rand.New(rand.NewPCG(1, 2))
	draws := make([]int64, 4096)
	for i := range draws {
		draws[i] = random.Int64N(3000)
	}
	cut, cuts := startCutter(t, strings.TrimPrefix(endpoint, "http://"), func(n int64) int64 {
		if n%3 == 2 {
			return -1
		}
		return draws[n%int64(len(draws))]
	})
	s := through(t, direct, cut, Options{SpoolDir: t.TempDir()}, "")
	var calls int
	again := func(what string, call func() error) {
		t.Helper()
		for try := 0; ; try++ {
			calls++
			err := call()
			switch class := box.ClassOf(err); {
			case err == nil:
				return
			case try > 300:
				t.Fatalf("%s: %v", what, err)
			case class != box.ClassUnavailable && class != box.ClassUnknown && class != box.ClassConflict:
				t.Fatalf("%s: class %q: %v", what, class, err)
			}
		}
	}
	for i := range 8 {
		again("append", func() error {
			seq, err := s.AppendLedger(t.Context(), "ws", Entry{ID: fmt.Sprint(i), Kind: KindMarks, Epoch: 1, Data: json.RawMessage(`{}`)})
			if err == nil && seq != i+1 {
				t.Fatalf("entry %d is number %d", i, seq)
			}
			return err
		})
	}
	entries, err := direct.Ledger(t.Context(), "ws")
	if err != nil || len(entries) != 8 {
		t.Fatalf("%d entries: %v", len(entries), err)
	}
	// An object of two parts, written until somebody says that it is there.
	data := someBytes(s3PartBytes + 1<<20)
	again("write", func() error {
		err := s.put(t.Context(), "exports/ws/0001/a/large", "application/octet-stream", bytes.NewReader(data), nil)
		if box.ClassOf(err) == box.ClassAlreadyExists {
			err = nil // by the call whose answer was lost
		}
		return err
	})
	got, size, err := direct.sum(t.Context(), "exports/ws/0001/a/large", nil)
	if err != nil || got != sumOf(data) || size != int64(len(data)) {
		t.Fatalf("%d bytes: %v", size, err)
	}
	if cuts.Load() == 0 {
		t.Fatal("nothing was cut")
	}
	t.Logf("%d calls, %d connections cut", calls, cuts.Load())
}

// quirks is a bucket that answers as some servers do.
type quirks struct {
	objects map[string][]byte
	// anyway overwrites, whatever the condition; inParts does so at the end of an
	// upload in parts only.
	anyway, inParts bool
	// answer replaces the answer to a request.
	answer func(w http.ResponseWriter, r *http.Request) bool

	seen atomic.Int64
}

func (q *quirks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q.seen.Add(1)
	if q.answer != nil && q.answer(w, r) {
		return
	}
	said := func(status int, code string) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>as told</Message></Error>", code)
		}
	}
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	have, there := q.objects[key]
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && query.Has("uploads"):
		fmt.Fprint(w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
	case r.Method == http.MethodPut && query.Has("uploadId"):
		w.Header().Set("ETag", `"e"`)
	case r.Method == http.MethodPost && query.Has("uploadId"):
		if there && r.Header.Get("If-None-Match") == "*" && !q.anyway && !q.inParts {
			said(http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		fmt.Fprint(w, `<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>`)
	case r.Method == http.MethodPut:
		if there && r.Header.Get("If-None-Match") == "*" && !q.anyway {
			said(http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		q.objects[key], _ = io.ReadAll(r.Body)
	case r.Method == http.MethodDelete:
		if !query.Has("uploadId") {
			delete(q.objects, key)
		}
		w.WriteHeader(http.StatusNoContent)
	case query.Get("list-type") == "2":
		fmt.Fprint(w, "<ListBucketResult></ListBucketResult>")
	case !there:
		said(http.StatusNotFound, "NoSuchKey")
	default:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(have))
	}
}

func quirky(t *testing.T, q *quirks) *Store {
	t.Helper()
	q.objects = map[string][]byte{}
	server := httptest.NewServer(q)
	t.Cleanup(server.Close)
	return openAt(t, "s3://bucket?endpoint="+server.URL, Options{})
}

func TestAStoreThatOverwritesIsRefused(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]*quirks{
		"whatever the condition": {anyway: true},
		"in parts":               {inParts: true},
		"and knows no conditions": {answer: func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("If-None-Match") == "" {
				return false
			}
			w.WriteHeader(http.StatusNotImplemented)
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := quirky(t, q)
			wantKind(t, box.ClassUnsupported, s.Check(t.Context()))
			_, err := s.AppendLedger(t.Context(), "ws", Entry{ID: "x", Kind: KindMarks, Epoch: 1})
			wantKind(t, box.ClassUnsupported, err)
			wantKind(t, box.ClassUnsupported, s.put(t.Context(), "exports/ws/0001/a/x", "text/plain", strings.NewReader("x"), nil))
			if len(q.objects) > 0 {
				t.Errorf("%q was left there", q.objects)
			}
		})
	}
	s := quirky(t, &quirks{})
	must(t, s.Check(t.Context()))
	must(t, s.put(t.Context(), "exports/ws/0001/a/x", "text/plain", strings.NewReader("x"), nil))
}

// The library calls every error "not found" whose text holds 301: it takes it
// for a redirect to another region.
func TestANumberInARequestsIDIsNotAnAbsence(t *testing.T) {
	t.Parallel()
	q := &quirks{answer: func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("X-Amz-Request-Id", "TX0301F301")
		w.WriteHeader(http.StatusServiceUnavailable)
		if r.Method != http.MethodHead {
			fmt.Fprint(w, "<Error><Code>SlowDown</Code><Message>later</Message><RequestId>TX0301F301</RequestId></Error>")
		}
		return true
	}}
	s := quirky(t, q)
	for what, err := range everyCall(t.Context(), s) {
		if class := box.ClassOf(err); class != box.ClassUnavailable {
			t.Errorf("%s: class %q: %v", what, class, err)
		}
	}
}

func TestAListThatBreaksOffIsNotAWholeOne(t *testing.T) {
	t.Parallel()
	key := func(n int) string {
		return fmt.Sprintf("<Contents><Key>ledger/ws/%08d.json</Key><Size>2</Size><LastModified>2026-11-29T12:00:00Z</LastModified></Contents>", n)
	}
	for name, row := range map[string]struct {
		list  string
		class box.Class
	}{
		"it goes on, and nowhere": {"<IsTruncated>true</IsTruncated>" + key(1), box.ClassUnavailable},
		"it begins anew":          {"<IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken>" + key(1), box.ClassUnsupported},
		"it is in no order":       {"<IsTruncated>false</IsTruncated>" + key(2) + key(1), box.ClassUnsupported},
		"it has one object twice": {"<IsTruncated>false</IsTruncated>" + key(1) + key(1), box.ClassUnsupported},
		"it is no list of S3":     {"", box.ClassUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := quirky(t, &quirks{answer: func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("list-type") != "2" {
					return false
				}
				if row.list == "" {
					fmt.Fprint(w, "<html>welcome")
					return true
				}
				fmt.Fprintf(w, "<ListBucketResult>%s</ListBucketResult>", row.list)
				return true
			}})
			_, err := s.Ledger(t.Context(), "ws")
			wantKind(t, row.class, err)
		})
	}
}

func TestURLsOfBuckets(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"s3://", "s3://bucket/path?region=a", "s3://bucket", "s3://bucket:80?region=a", "s3://user@bucket?region=a", "s3://bucket?region=a#b", "s3://bucket?region=",
		"s3://bucket?regoin=a", "s3://bucket?region=a&region=b", "s3://bucket?endpoint=example.com", "s3://bucket?endpoint=ftp://x", "s3://bucket?endpoint=https://me:pass@x",
		"s3://bucket?region=a&use_path_style=maybe", "s3://bucket?region=a&prefix=x", "s3://bucket?region=a&prefix=/", "s3://bucket?region=a&prefix=A/", "s3://bucket?region=a&request_checksum_calculation=no",
		"s3://bucket?region=a&profile=of-nobody",
	} {
		_, err := Open(t.Context(), bad)
		if box.ClassOf(err) != box.ClassInvalid {
			t.Errorf("%s: %v", bad, err)
		}
		if err != nil && strings.Contains(err.Error(), "pass") && !strings.Contains(err.Error(), "use_path_style") {
			t.Errorf("%v", err)
		}
	}
	for _, good := range []string{"s3://bucket?region=eu-central-1", "s3://bucket/?endpoint=https://s3.example.com", "s3://bucket?region=a&prefix=a/b/&use_path_style=true&request_checksum_calculation=when_supported&profile=wrong"} {
		s, err := Open(t.Context(), good)
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		must(t, s.Close())
	}
}

// What the server holds is what was sent: no checksum of the SDK's behind it.
func TestObjectsHoldNothingOfTheirTransfer(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"", "&request_checksum_calculation=when_supported"} {
		server := startS3(t)
		s := server.bucket(t, Options{}, how)
		data := someBytes(s3PartBytes + 12345)
		must(t, s.put(t.Context(), "exports/ws/0001/a/large", "application/octet-stream", bytes.NewReader(data), nil))
		must(t, s.put(t.Context(), "exports/ws/0001/a/small", "application/octet-stream", bytes.NewReader(data[:99]), nil))
		for key, want := range map[string][]byte{"large": data, "small": data[:99]} {
			got, err := os.ReadFile(filepath.Join(server.dir, s3Of(t, s).name, "exports/ws/0001/a", key))
			must(t, err)
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes are stored for %d", len(got), len(want))
			}
		}
	}
}

func TestAnUploadThatIsGivenUpLeavesNoParts(t *testing.T) {
	t.Parallel()
	s := startS3(t).bucket(t, Options{}, "")
	ctx, cancel := context.WithCancel(t.Context())
	body := io.MultiReader(bytes.NewReader(someBytes(3*s3PartBytes)), readerFunc(func([]byte) (int, error) {
		in := s3Of(t, s)
		out, err := in.client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: aws.String(in.name)})
		if err != nil || len(out.Uploads) != 1 {
			t.Errorf("%+v %v: there is no upload to give up", out, err)
		}
		cancel()
		return 0, io.EOF
	}))
	wantKind(t, box.ClassCanceled, s.put(ctx, "exports/ws/0001/a/x", "application/octet-stream", body, nil))
	if n := uploads(t, s3Of(t, s)); n > 0 {
		t.Fatalf("%d uploads were left behind", n)
	}
}
