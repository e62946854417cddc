package exports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

const (
	testAccess = "BOXKEEPERTEST"
	testSecret = "not-a-secret-of-anybody"
)

// TestMain gives the tests AWS settings of their own: what the machine has must
// not be used by a test.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(exportingChild())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "boxkeeper-aws-*")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir) //nolint:errcheck // it is a temporary directory
		file := filepath.Join(dir, "credentials")
		text := fmt.Sprintf("[default]\naws_access_key_id = %[1]s\naws_secret_access_key = %[2]s\n"+
			"[wrong]\naws_access_key_id = %[1]s\naws_secret_access_key = wrong\n[unknown]\naws_access_key_id = NOBODY\naws_secret_access_key = %[2]s\n[nothing]\n", testAccess, testSecret)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		for name, value := range map[string]string{
			"AWS_SHARED_CREDENTIALS_FILE": file, "AWS_CONFIG_FILE": filepath.Join(dir, "none"), "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "2",
			"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
			"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "",
		} {
			if value == "" {
				_ = os.Unsetenv(name)
			} else {
				_ = os.Setenv(name, value)
			}
		}
		return m.Run()
	}())
}

// s3Server is a real S3 server on a directory of its own.
type s3Server struct {
	endpoint string
	dir      string
	buckets  atomic.Int64
}

// startS3 starts one, for as long as the test runs.
func startS3(t *testing.T) *s3Server {
	t.Helper()
	program := os.Getenv("BOXKEEPER_TEST_S3_SERVER")
	if program == "" {
		t.Skip("BOXKEEPER_TEST_S3_SERVER names no S3 server; scripts/s3.sh builds one")
	}
	for try := 0; ; try++ {
		s, err := tryS3(t, program)
		if err == nil {
			return s
		}
		if try == 5 {
			t.Fatal(err)
		}
	}
}

// sharedS3 starts one when it is first needed, for as long as the outer test
// runs.
func sharedS3(t *testing.T) func(t *testing.T) *s3Server {
	t.Helper()
	outer := t
	var once sync.Once
	var server *s3Server
	return func(t *testing.T) *s3Server {
		t.Helper()
		if os.Getenv("BOXKEEPER_TEST_S3_SERVER") == "" {
			t.Skip("BOXKEEPER_TEST_S3_SERVER names no S3 server; scripts/s3.sh builds one")
		}
		once.Do(func() { server = startS3(outer) })
		return server
	}
}

func tryS3(t *testing.T, program string) (*s3Server, error) {
	t.Helper()
	var lc net.ListenConfig
	free, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	address := free.Addr().String()
	must(t, free.Close())
	s := &s3Server{endpoint: "http://" + address, dir: t.TempDir()}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "--port", address, "--quiet", "posix", s.dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+testAccess, "ROOT_SECRET_KEY="+testSecret)
	if err := cmd.Start(); err != nil {
		stop()
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	client := &http.Client{Timeout: 5 * time.Second}
	for {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.endpoint, nil)
		must(t, err)
		answer, err := client.Do(req)
		if err == nil {
			_ = answer.Body.Close()
			return s, nil
		}
		select {
		case err := <-ended:
			ended <- err
			return nil, fmt.Errorf("the S3 server ended: %w", errors.Join(err, errors.New("another process may have taken its port")))
		case <-time.After(20 * time.Millisecond): // until it listens
		}
	}
}

// bucket opens a store in a new bucket; more are parameters of its URL.
func (s *s3Server) bucket(t *testing.T, opts Options, more string) *Store {
	t.Helper()
	name := fmt.Sprintf("exports-%d", s.buckets.Add(1))
	store := openAt(t, "s3://"+name+"?endpoint="+s.endpoint+more, opts)
	_, err := s3Of(t, store).client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(name)})
	must(t, err)
	return store
}

// through opens the bucket of a store by another way.
func through(t *testing.T, s *Store, endpoint string, opts Options, more string) *Store {
	t.Helper()
	return openAt(t, "s3://"+s3Of(t, s).name+"?endpoint="+endpoint+more, opts)
}

func s3Of(t *testing.T, s *Store) *s3Bucket {
	t.Helper()
	var in *s3Bucket
	if !s.bucket.As(&in) {
		t.Fatal("it is not a bucket of S3")
	}
	return in
}

// uploads counts those that are under way in a bucket.
func uploads(t *testing.T, in *s3Bucket) int {
	t.Helper()
	out, err := in.client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: aws.String(in.name)})
	must(t, err)
	return len(out.Uploads)
}

// startCutter passes connections on to a server, and breaks each off after so
// many bytes of its answers as after says of the n-th one; below zero it passes
// all. The requests that it cuts the answers of are carried out.
func startCutter(t *testing.T, to string, after func(n int64) int64) (endpoint string, cuts *atomic.Int64) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	cuts = &atomic.Int64{}
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	all.Go(func() {
		for n := int64(0); ; n++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { passOn(in, to, after(n), cuts) })
		}
	})
	return "http://" + l.Addr().String(), cuts
}

func passOn(in net.Conn, to string, most int64, cuts *atomic.Int64) {
	defer in.Close()
	out, err := net.DialTimeout("tcp", to, 10*time.Second) //nolint:noctx // ends with the connection
	if err != nil {
		return
	}
	defer out.Close()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = io.Copy(out, in)
		if tcp, ok := out.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}()
	if most < 0 {
		_, _ = io.Copy(in, out)
	} else if n, _ := io.CopyN(in, out, most); n == most {
		cuts.Add(1)
		if tcp, ok := in.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as from a machine that is gone
		}
	}
	_ = in.Close()
	_ = out.Close()
	<-asked
}
