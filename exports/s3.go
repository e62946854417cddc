package exports

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"

	"github.com/openhands/boxkeeper/box"
)

// Parameters of an s3:// URL.
const (
	s3Region    = "region"
	s3Endpoint  = "endpoint"
	s3PathStyle = "use_path_style"
	s3Prefix    = "prefix"
	s3Profile   = "profile"
	s3Checksums = "request_checksum_calculation"
)

const (
	// One object on its way holds 3 parts in memory at most. 10,000 parts are
	// the most that S3 takes, so an object ends at 80 GB.
	s3PartBytes   = 8 << 20
	s3Parts       = 2 // at a time
	s3Abort       = 30 * time.Second
	s3DialWithin  = 10 * time.Second
	s3HeadWithin  = 2 * time.Minute // the last part of an upload may be put together before the answer begins
	s3RegionOther = "us-east-1"     // for servers that have none: it only goes into signatures
)

// s3Settings are what an s3:// URL says.
type s3Settings struct {
	bucket, region, endpoint, profile, prefix string
	pathStyle, checksums                      bool
}

func badS3(form string, values ...any) error { return box.Invalidf("exports.url", form, values...) }

// parseS3 reads an s3:// URL. Invalid: it cannot be meant.
func parseS3(u *url.URL) (s3Settings, error) {
	if u.Host == "" || u.Path != "" && u.Path != "/" || u.Port() != "" {
		return s3Settings{}, badS3("names no bucket, or more than one; write it like s3://bucket?region=eu-central-1, and a directory in the bucket as &prefix=boxkeeper/")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return s3Settings{}, badS3("has parameters that cannot be read")
	}
	known := []string{s3Region, s3Endpoint, s3PathStyle, s3Prefix, s3Profile, s3Checksums}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return s3Settings{}, badS3("parameter %.40q is not known; there are %s", name, strings.Join(known, ", "))
		}
		if len(values) != 1 || values[0] == "" {
			return s3Settings{}, badS3("parameter %s needs one value", name)
		}
	}
	s := s3Settings{bucket: u.Host, region: query.Get(s3Region), endpoint: query.Get(s3Endpoint), profile: query.Get(s3Profile), prefix: query.Get(s3Prefix)}
	if !validEndpoint(s.endpoint) {
		return s3Settings{}, badS3("parameter endpoint is like https://s3.example.com, without user or query")
	}
	s.pathStyle = s.endpoint != "" // what servers of one's own understand
	if text := query.Get(s3PathStyle); text != "" {
		if s.pathStyle, err = strconv.ParseBool(text); err != nil {
			return s3Settings{}, badS3("parameter %s is true or false", s3PathStyle)
		}
	}
	// Servers other than AWS's own often cannot read the checksums that the SDK
	// puts behind a body: one is known to keep them as part of the object. Every
	// object is read back and compared anyway.
	switch query.Get(s3Checksums) {
	case "":
		s.checksums = s.endpoint == ""
	case "when_supported":
		s.checksums = true
	case "when_required":
	default:
		return s3Settings{}, badS3("parameter %s is when_supported or when_required", s3Checksums)
	}
	if s.prefix != "" && (!strings.HasSuffix(s.prefix, "/") || !keyForm.MatchString(strings.TrimSuffix(s.prefix, "/"))) {
		return s3Settings{}, badS3("parameter %s is a directory with a slash at its end, of a-z, 0-9, \"-\", \"_\" and \".\"", s3Prefix)
	}
	return s, nil
}

func validEndpoint(text string) bool {
	e, err := url.Parse(text)
	return err == nil && (text == "" || (e.Scheme == "https" || e.Scheme == "http") && e.Host != "" && e.User == nil && e.RawQuery == "" && e.Fragment == "")
}

// openS3 opens "s3://bucket?...". It contacts nobody. Credentials are found the
// way that AWS's own tools find them, when they are first needed.
func openS3(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	given, err := parseS3(u)
	if err != nil {
		return nil, err
	}
	load := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithHTTPClient(s3HTTP()),
		awsconfig.WithLogger(logging.Nop{}), // what matters comes as an error
	}
	if given.region != "" {
		load = append(load, awsconfig.WithRegion(given.region))
	}
	if given.profile != "" {
		load = append(load, awsconfig.WithSharedConfigProfile(given.profile))
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, badS3("AWS's own settings, in the environment or its configuration file, cannot be used: %v", err)
	}
	if cfg.Region == "" {
		if given.endpoint == "" {
			return nil, badS3("needs the region of the bucket, as &region=eu-central-1 or AWS_REGION")
		}
		cfg.Region = s3RegionOther
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = given.pathStyle
		if given.endpoint != "" {
			o.BaseEndpoint = aws.String(given.endpoint)
		}
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Initialize.Add(s3Habits{checksums: given.checksums}, middleware.Before)
		})
		if !given.checksums {
			o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
			o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		}
	})
	bucket, err := s3blob.OpenBucket(ctx, client, given.bucket, nil)
	if err != nil {
		return nil, fault(ctx, "open the export store", err)
	}
	guarded := driver.Bucket(&s3Bucket{layer: layer{bucket}, client: client, name: given.bucket, prefix: given.prefix})
	if given.prefix != "" {
		guarded = driver.NewPrefixedBucket(guarded, given.prefix)
	}
	return blob.NewBucket(guarded), nil
}

// s3HTTP is a client with bounds on everything but the length of a transfer.
func s3HTTP() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.TLSHandshakeTimeout = s3DialWithin
		t.ResponseHeaderTimeout = s3HeadWithin
	})
}

var errHalfList = errors.New("the store says that a list goes on, and not where")

// s3Habits mends what the SDK does by itself, below s3blob, which has no way to
// ask for it (seen in s3blob v0.46.0 and transfermanager v0.2.3).
type s3Habits struct{ checksums bool }

func (s3Habits) ID() string { return "boxkeeper" }

func (h s3Habits) HandleInitialize(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
	switch p := in.Parameters.(type) {
	case *s3.AbortMultipartUploadInput:
		// The upload was given up because ctx ended; with that context its parts
		// would stay for ever, unseen and paid for.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), s3Abort)
		defer cancel()
	case *s3.PutObjectInput:
		if !h.checksums {
			p.ChecksumAlgorithm = ""
		}
	case *s3.CreateMultipartUploadInput:
		if !h.checksums {
			p.ChecksumAlgorithm = ""
		}
	case *s3.UploadPartInput:
		if !h.checksums {
			p.ChecksumAlgorithm = ""
		}
	}
	out, meta, err := next.HandleInitialize(ctx, in)
	if list, ok := out.Result.(*s3.ListObjectsV2Output); ok && err == nil {
		// s3blob takes a page without a token for the last one.
		if aws.ToBool(list.IsTruncated) && aws.ToString(list.NextContinuationToken) == "" {
			err = errHalfList
		}
	}
	return out, meta, err
}

// s3Bucket is a bucket of S3 whose errors can be acted on, and whose writes hold
// little in memory.
type s3Bucket struct {
	layer
	client *s3.Client
	name   string
	prefix string // of the keys, added above this bucket
}

func (b *s3Bucket) As(i any) bool {
	if p, ok := i.(**s3Bucket); ok {
		*p = b
		return true
	}
	return b.layer.As(i)
}

// overwriteInParts tries to write over an object that is there, as an upload in
// parts, which some servers do whatever the condition. Nil: it was overwritten.
func (b *s3Bucket) overwriteInParts(ctx context.Context, key string) error {
	bucket, at := aws.String(b.name), aws.String(b.prefix+key)
	begun, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: bucket, Key: at})
	if err != nil {
		return b.said(ctx, err)
	}
	defer func() {
		// What was completed cannot be given up any more, which is no matter.
		_, _ = b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: bucket, Key: at, UploadId: begun.UploadId})
	}()
	part, err := b.client.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: bucket, Key: at, UploadId: begun.UploadId, PartNumber: aws.Int32(1), Body: bytes.NewReader([]byte("{}")),
	})
	if err != nil {
		return b.said(ctx, err)
	}
	_, err = b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: bucket, Key: at, UploadId: begun.UploadId, IfNoneMatch: aws.String("*"),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: part.ETag, ChecksumCRC32: part.ChecksumCRC32}}},
	})
	return b.said(ctx, err)
}

func (b *s3Bucket) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	a, err := b.layer.Attributes(ctx, key)
	return a, b.said(ctx, err)
}

func (b *s3Bucket) ListPaged(ctx context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	page, err := b.layer.ListPaged(ctx, opts)
	if err = b.said(ctx, err); codeOf(err) == gcerrors.NotFound {
		err = coded{gcerrors.Unknown, err} // an empty list is no error, so this is none
	}
	return page, err
}

func (b *s3Bucket) NewRangeReader(ctx context.Context, key string, offset, length int64, opts *driver.ReaderOptions) (driver.Reader, error) {
	r, err := b.layer.NewRangeReader(ctx, key, offset, length, opts)
	return r, b.said(ctx, err)
}

func (b *s3Bucket) NewTypedWriter(ctx context.Context, key, contentType string, opts *driver.WriterOptions) (driver.Writer, error) {
	mine := *opts
	mine.BeforeWrite = func(as func(any) bool) error {
		var manager *transfermanager.Client
		if !as(&manager) {
			return denial{box.ClassInternal, "this version of the blob library does not let its S3 uploads be bounded"}
		}
		// Its own first part is 16 MB, and five more are under way.
		*manager = *transfermanager.New(b.client, func(o *transfermanager.Options) {
			o.PartSizeBytes, o.MultipartUploadThreshold, o.Concurrency, o.FailTimeout = s3PartBytes, s3PartBytes, s3Parts, s3Abort
		})
		return nil
	}
	w, err := b.layer.NewTypedWriter(ctx, key, contentType, &mine)
	if err != nil {
		return nil, b.said(ctx, err)
	}
	return &s3Writer{Writer: w, ctx: ctx, bucket: b}, nil
}

type s3Writer struct {
	driver.Writer
	ctx    context.Context //nolint:containedctx // the driver interface hands Close none
	bucket *s3Bucket
}

func (w *s3Writer) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	return n, w.bucket.said(w.ctx, err)
}

func (w *s3Writer) Close() error {
	err := w.Writer.Close()
	if ended := w.ctx.Err(); ended != nil && err != nil {
		return ended
	}
	return w.bucket.said(w.ctx, err)
}

func (b *s3Bucket) Delete(ctx context.Context, key string) error {
	return b.said(ctx, b.layer.Delete(ctx, key))
}
