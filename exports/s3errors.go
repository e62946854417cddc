package exports

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"gocloud.dev/gcerrors"

	"github.com/openhands/boxkeeper/box"
)

// s3Unauthorized are codes that come with other statuses too: versitygw v1.8.0
// answers 404 to an access key of nobody.
var s3Unauthorized = []string{ //nolint:gochecknoglobals // a constant
	"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "XAdminUserNotFound",
}

// said reads what the service, or the SDK in front of it, said. The codes of
// s3blob (v0.46.0, read 30 Nov 2026) are not for relying on: it calls an error
// "not found" whose text holds "301" anywhere, such as in the id of a request
// that was turned away for load; when the bucket is missing; and when an upload
// is. An export would be taken for lost.
func (b *s3Bucket) said(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, done := denied(err); done {
		return err
	}
	code, status := s3Answer(err)
	switch {
	case code == "NoSuchKey":
		return b.fault(gcerrors.NotFound, err)
	case code == "NoSuchBucket":
		return b.missing()
	case code == "NotFound" && status == http.StatusNotFound:
		// A HEAD has no body, so that a missing object, a missing bucket and, at one
		// server, a key of nobody look alike. A list says which it is.
		_, there := b.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(b.name), MaxKeys: aws.Int32(1)})
		if there == nil {
			return b.fault(gcerrors.NotFound, err)
		}
		return b.said(ctx, there)
	case code == "PreconditionFailed" || status == http.StatusPreconditionFailed:
		return b.fault(gcerrors.FailedPrecondition, err)
	case status == http.StatusUnauthorized || status == http.StatusForbidden || slices.Contains(s3Unauthorized, code):
		return denial{box.ClassUnauthorized, "the store refuses its credentials, or does not let them do this (" + printable(code) + "); check the key, its rights on bucket " + b.name + ", and this machine's clock"}
	case status == http.StatusMovedPermanently || status == http.StatusTemporaryRedirect || code == "AuthorizationHeaderMalformed" || code == "IllegalLocationConstraintException":
		return denial{box.ClassFailedPrecondition, "bucket " + b.name + " is in another region or at another endpoint (" + printable(code) + "); correct region or endpoint in the store's URL"}
	case status == http.StatusNotImplemented:
		return denial{box.ClassUnsupported, "the store lacks a call or a condition that exports need (" + printable(code) + "); use one that honours conditional writes (If-None-Match)"}
	case code == "" && status == 0 && noCredentials(err):
		return denial{box.ClassUnauthorized, "there are no credentials for bucket " + b.name + "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where the program is started, a profile, or a role of the machine"}
	}
	return b.fault(gcerrors.Unknown, err)
}

func (b *s3Bucket) missing() error {
	return denial{box.ClassFailedPrecondition, "there is no bucket " + b.name + " at this endpoint; make it, or correct the store's URL: nothing is known of what it held"}
}

// fault takes the error of the SDK out of what s3blob wrapped around it.
func (b *s3Bucket) fault(code gcerrors.ErrorCode, err error) error {
	if inner, ok := errors.AsType[*smithy.OperationError](err); ok {
		err = inner
	}
	return coded{code, err}
}

// s3Answer returns the service's own code and the HTTP status, where there was
// an answer.
func s3Answer(err error) (code string, status int) {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		code = e.ErrorCode()
	}
	if e, ok := errors.AsType[*awshttp.ResponseError](err); ok {
		status = e.HTTPStatusCode()
	}
	return code, status
}

// noCredentials tells that the SDK found none, which it says in words only.
func noCredentials(err error) bool {
	return strings.Contains(err.Error(), "get credentials:") || strings.Contains(err.Error(), "no EC2 IMDS role found")
}
