package exports

import (
	"context"
	"errors"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"

	"github.com/openhands/boxkeeper/box"
)

// layer is a bucket over another one, to be embedded by what changes a part of
// it. Errors keep their codes.
type layer struct{ under *blob.Bucket }

var _ driver.Bucket = layer{}

func (layer) ErrorCode(err error) gcerrors.ErrorCode { return codeOf(err) }
func (l layer) As(i any) bool                        { return l.under.As(i) }
func (l layer) ErrorAs(err error, i any) bool        { return l.under.ErrorAs(err, i) }
func (l layer) Close() error                         { return l.under.Close() }

func (l layer) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	a, err := l.under.Attributes(ctx, key)
	if err != nil {
		return nil, unwrapped(err)
	}
	return &driver.Attributes{
		ContentType: a.ContentType, Metadata: a.Metadata, CreateTime: a.CreateTime, ModTime: a.ModTime,
		Size: a.Size, MD5: a.MD5, ETag: a.ETag, AsFunc: a.As,
	}, nil
}

func (l layer) ListPaged(ctx context.Context, opts *driver.ListOptions) (*driver.ListPage, error) {
	var d *directory
	if l.under.As(&d) { // which walks anew for each page, and so gives all at once
		page, err := d.ListPaged(ctx, opts)
		if err != nil {
			err = coded{d.ErrorCode(err), err}
		}
		return page, err
	}
	token, size := opts.PageToken, opts.PageSize
	if len(token) == 0 {
		token = blob.FirstPageToken
	}
	if size == 0 {
		size = listPage
	}
	objects, next, err := l.under.ListPage(ctx, token, size, &blob.ListOptions{Prefix: opts.Prefix, Delimiter: opts.Delimiter, BeforeList: opts.BeforeList})
	if err != nil {
		return nil, unwrapped(err)
	}
	page := &driver.ListPage{NextPageToken: next}
	for _, o := range objects {
		page.Objects = append(page.Objects, &driver.ListObject{Key: o.Key, ModTime: o.ModTime, Size: o.Size, MD5: o.MD5, IsDir: o.IsDir, AsFunc: o.As})
	}
	return page, nil
}

// listPage is the largest page of S3. Memory for one is taken at once.
const listPage = 1000

func (l layer) NewRangeReader(ctx context.Context, key string, offset, length int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	r, err := l.under.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, unwrapped(err)
	}
	return layerReader{r}, nil
}

type layerReader struct{ *blob.Reader }

func (r layerReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	return n, unwrapped(err)
}

func (r layerReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{ContentType: r.ContentType(), ModTime: r.ModTime(), Size: r.Size()}
}

func (l layer) NewTypedWriter(ctx context.Context, key, contentType string, opts *driver.WriterOptions) (driver.Writer, error) {
	w, err := l.under.NewWriter(ctx, key, &blob.WriterOptions{
		ContentType: contentType, BufferSize: opts.BufferSize, MaxConcurrency: opts.MaxConcurrency,
		DisableContentTypeDetection: true, IfNotExist: opts.IfNotExist, BeforeWrite: opts.BeforeWrite,
	})
	if err != nil {
		return nil, unwrapped(err)
	}
	return layerWriter{w}, nil
}

type layerWriter struct{ under *blob.Writer }

func (w layerWriter) Write(p []byte) (int, error) {
	n, err := w.under.Write(p)
	return n, unwrapped(err)
}

func (w layerWriter) Close() error { return unwrapped(w.under.Close()) }

// Copy is refused: this store only appends.
func (layer) Copy(context.Context, string, string, *driver.CopyOptions) error { return errUnsupported }

func (l layer) Delete(ctx context.Context, key string) error {
	return unwrapped(l.under.Delete(ctx, key))
}

// SignedURL is refused: objects are private.
func (layer) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errUnsupported
}

// coded is an error of a driver with its code, without what the bucket over it
// said: the next one says it again.
type coded struct {
	code gcerrors.ErrorCode
	err  error
}

func (c coded) Error() string { return c.err.Error() }
func (c coded) Unwrap() error { return c.err }

func unwrapped(err error) error {
	said, ok := err.(interface{ Unwrap() []error })
	if !ok || len(said.Unwrap()) == 0 || said.Unwrap()[0] == nil {
		return err
	}
	return coded{gcerrors.Code(err), said.Unwrap()[0]}
}

func codeOf(err error) gcerrors.ErrorCode {
	if c, ok := errors.AsType[coded](err); ok {
		return c.code
	}
	return gcerrors.Code(err)
}

// denial is what a layer knows better than the code of an error can say. The
// text is for a person and names the next step.
type denial struct {
	class box.Class
	text  string
}

func (d denial) Error() string { return d.text }

// denied finds one in a chain.
func denied(err error) (denial, bool) { return errors.AsType[denial](err) }
