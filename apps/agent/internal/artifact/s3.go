package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// s3Source is an object, or all objects with a prefix, of an S3 service.
type s3Source struct {
	client         *minio.Core
	bucket, object string
}

func newS3(t http.RoundTripper, p parsed, c Credentials) (*s3Source, error) {
	host, secure, lookup := p.hostOf(), true, minio.BucketLookupAuto
	if p.Endpoint != "" {
		at, err := url.Parse(p.Endpoint)
		if err != nil || at.Host == "" {
			return nil, &contentError{"model.artifact.endpoint is not a URL"}
		}
		host, secure, lookup = at.Host, at.Scheme == "https", minio.BucketLookupPath
	}
	v := c.Variables
	client, err := minio.NewCore(host, &minio.Options{
		// Without a key, requests are anonymous.
		Creds:  credentials.NewStaticV4(v["AWS_ACCESS_KEY_ID"], v["AWS_SECRET_ACCESS_KEY"], v["AWS_SESSION_TOKEN"]),
		Secure: secure, Region: p.regionOf(), Transport: pageLimiter{t}, BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return nil, &contentError{"model.artifact.endpoint: " + err.Error()}
	}
	return &s3Source{client: client, bucket: p.at.Host, object: strings.TrimPrefix(p.at.Path, "/")}, nil
}

func (s *s3Source) digestsList() bool { return isPrefix(s.object) }

func (s *s3Source) list(ctx context.Context) ([]file, error) {
	if !s.digestsList() {
		return []file{{name: path.Base(s.object), at: s.object, size: -1, pack: packOf(s.object)}}, nil
	}
	ctx, cancel := context.WithCancel(ctx) // ends the listing if the list is too long
	defer cancel()
	var files []file
	for o := range s.client.Client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.object, Recursive: true}) {
		if o.Err != nil {
			return nil, s3Error(o.Err)
		}
		name := strings.TrimPrefix(o.Key, s.object)
		if name == "" || strings.HasSuffix(name, "/") {
			continue // a mark for a folder
		}
		if files = append(files, file{name: name, at: o.Key, size: o.Size}); len(files) > maxFiles {
			break
		}
	}
	if len(files) == 0 {
		return nil, &contentError{fmt.Sprintf("the bucket has no objects below %q", s.object)}
	}
	return files, nil
}

func (s *s3Source) open(ctx context.Context, f file, offset int64) (io.ReadCloser, int64, error) {
	opts := minio.GetObjectOptions{}
	if offset > 0 {
		if err := opts.SetRange(offset, 0); err != nil {
			return nil, 0, err
		}
	}
	body, _, header, err := s.client.GetObject(ctx, s.bucket, f.at, opts)
	if err != nil {
		err = s3Error(err)
		var status *statusError
		if errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable && offset > 0 {
			return http.NoBody, offset, nil // The file is complete already. Its digest decides.
		}
		return nil, 0, err
	}
	if offset > 0 && !strings.HasPrefix(header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)) {
		return body, 0, nil
	}
	return body, offset, nil
}

// maxTags is the maximum number of tags on a page of a list. A page of 1000 objects has about 20,000.
const maxTags = 64 << 10

// pageLimiter limits the pages of lists, because the client holds what a page has in memory.
type pageLimiter struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l pageLimiter) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.URL.RawQuery != "" { // Requests for objects have no query.
		res.Body = &page{ReadCloser: res.Body, bytes: maxList, tags: maxTags}
	}
	return res, err
}

// page is a page of a list. bytes and tags are how much of it may still come.
type page struct {
	io.ReadCloser

	bytes, tags int
}

func (p *page) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	p.bytes -= n
	p.tags -= bytes.Count(b[:n], []byte("<"))
	if p.bytes < 0 || p.tags < 0 {
		return 0, &contentError{"a page of the list of objects is too long"}
	}
	return n, err
}

// s3Error returns the status of an answer as an error.
func s3Error(err error) error {
	if known := (minio.ErrorResponse{}); errors.As(err, &known) && known.StatusCode != 0 {
		return &statusError{known.StatusCode, known.Code}
	}
	return withoutURL(err)
}
