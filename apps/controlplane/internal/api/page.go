package api

import (
	"encoding/base64"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// defaultPage is the size of a page that does not say.
const defaultPage = 50

// pageOf reads a page request. It asks for one row more than the page has: that
// there is one tells that there is a next page.
func pageOf(req *windlassv1.PageRequest) (model.Page, error) {
	size := int(req.GetSize())
	if size == 0 {
		size = defaultPage
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetToken())
	// Cursors are names and ids, and zero bytes between them.
	strange := func(c rune) bool { return c != 0 && (c <= ' ' || c > '~') }
	if err != nil || (len(after) == 0) != (req.GetToken() == "") || strings.ContainsFunc(string(after), strange) {
		return model.Page{}, apierr.Invalid("page.token", "the page token is not one that a list call returned: start without one")
	}
	return model.Page{After: string(after), Limit: size + 1}, nil
}

// cut takes the row too many off, and returns the token of the next page.
func cut[T any](rows []T, p model.Page, key func(T) string) ([]T, *windlassv1.PageResponse) {
	if len(rows) < p.Limit {
		return rows, &windlassv1.PageResponse{}
	}
	rows = rows[:p.Limit-1]
	return rows, &windlassv1.PageResponse{
		Next: base64.RawURLEncoding.EncodeToString([]byte(key(rows[len(rows)-1]))),
	}
}
