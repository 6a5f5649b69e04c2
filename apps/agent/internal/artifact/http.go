package artifact

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// httpSource is a file at an HTTP server.
type httpSource struct {
	parsed
	client *http.Client
	// token is sent as a bearer token. Empty: none.
	token string
}

func (h *httpSource) digestsList() bool { return false }

func (h *httpSource) list(context.Context) ([]file, error) {
	f := file{name: path.Base(h.at.Path), size: -1, pack: packOf(h.at.Path)}
	if f.name == "/" || f.name == "." {
		return nil, &contentError{"the URL of the artifact names no file"}
	}
	return []file{f}, nil
}

func (h *httpSource) open(ctx context.Context, _ file, offset int64) (io.ReadCloser, int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.at.String(), nil)
	if err != nil {
		return nil, 0, err
	}
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	if offset > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	res, err := h.client.Do(req)
	if err != nil {
		return nil, 0, withoutURL(err)
	}
	switch {
	case res.StatusCode == http.StatusOK:
		return res.Body, 0, nil
	case res.StatusCode == http.StatusPartialContent && strings.HasPrefix(res.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)):
		return res.Body, offset, nil
	}
	_ = res.Body.Close()
	if res.StatusCode == http.StatusRequestedRangeNotSatisfiable && offset > 0 {
		// The file is complete already, or another one than before. Its digest decides.
		return http.NoBody, offset, nil
	}
	return nil, 0, &statusError{status: res.StatusCode}
}
